"""A draft model of the target's tokenizer may have more rows of logits: padding, which stands for no token."""

from __future__ import annotations

from protocol.messages import Candidate, DraftResponse
from protocol.worker_info import ModelInfo


def rows_of_either(target: int, draft: ModelInfo | None) -> int:
    """The ids that a drafter's answer may hold, before `within`."""
    return max(target, draft.vocabulary.logits_size) if draft is not None and draft.vocabulary is not None else target


def within(answer: DraftResponse, rows: int) -> DraftResponse:
    """The same drafts, each cut before the first id that the target has no row for.

    Where q is known, before the first place whose q names such an id: a cut may follow from the tokens before it, never
    from the one that was drawn there, or what is kept would no longer have been drawn from q.
    """
    lengths = [_length(candidate, rows) for candidate in answer.candidates]
    if all(length == len(candidate.token_ids) for length, candidate in zip(lengths, answer.candidates, strict=True)):
        return answer
    kept: list[Candidate] = []
    for candidate, length in zip(answer.candidates, lengths, strict=True):
        shorter = cut(candidate, length)
        if not kept or (length and all(shorter.token_ids != one.token_ids for one in kept)):
            kept.append(shorter)
    left, parts = lengths[0], []
    for part in answer.parts:
        parts.append(part.model_copy(update={"tokens": min(left, part.tokens)}))
        left -= parts[-1].tokens
    return answer.model_copy(update={"candidates": kept, "parts": parts})


def _length(candidate: Candidate, rows: int) -> int:
    if candidate.q is not None:
        return next((i for i, q in enumerate(candidate.q) if max(q.token_ids) >= rows), len(candidate.token_ids))
    return next((i for i, token_id in enumerate(candidate.token_ids) if token_id >= rows), len(candidate.token_ids))


def cut(candidate: Candidate, length: int) -> Candidate:
    """Its first `length` tokens."""
    return Candidate(
        token_ids=candidate.token_ids[:length],
        logprobs=candidate.logprobs[:length] if candidate.logprobs is not None else None,
        q=candidate.q[:length] if candidate.q is not None else None,
    )
