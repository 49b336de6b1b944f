"""Reading a draft worker's answers, none of which is trusted."""

from __future__ import annotations

from typing import Any, Literal

# Lost: the worker does not hold what the question built on. Refused: a retry would get the same answer.
Verdict = Literal["served", "lost", "refused", "failed"]


def verdict(item: object) -> Verdict:
    """Of one item of a DraftBatchResponse (protocol/messages.py)."""
    if not isinstance(item, dict):
        return "failed"
    if isinstance(item.get("response"), dict):
        return "served"
    error = item.get("error")
    status = error.get("status") if isinstance(error, dict) else None
    if status == 409:
        return "lost"
    return "refused" if status in (400, 422) else "failed"


def drafted(item: dict[str, Any], most: int, vocabulary: int) -> list[int] | None:
    """The tokens of candidate 0, [] if there is nothing to propose; None if it does not answer the question."""
    candidates = item["response"].get("candidates")
    if candidates == []:
        return []
    if not isinstance(candidates, list) or not isinstance(candidates[0], dict):
        return None
    token_ids = candidates[0].get("token_ids")
    if not isinstance(token_ids, list) or len(token_ids) > most:
        return None
    if any(type(token_id) is not int or not 0 <= token_id < vocabulary for token_id in token_ids):
        return None
    return token_ids
