"""How the tests of Tandem in this process load their models, and what they ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tandem import Answer
from testing.patience import tries

EXACT: dict[str, Any] = {"device": "cpu", "batch_invariant": True, "target_options": {"slots": 16}}
MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]


def until_drafted(ask: Callable[[], Answer]) -> list[Answer]:
    """Ask until an answer's rounds carried drafts: all the answers. A drafter may take longer to read the prompt than
    the target to answer."""
    return tries(ask, lambda answer: answer.stats.draft_tokens > 0, "an answer with drafts")
