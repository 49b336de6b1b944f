"""What several workers can do: each of them, or one of them."""

from __future__ import annotations

from basics.names import STRATEGIES
from protocol.messages import Capabilities


def common(all_of: list[Capabilities]) -> Capabilities:
    """What every one of them can do."""
    first = all_of[0]
    return first.model_copy(
        update={
            "strategies": [s for s in first.strategies if all(s in c.strategies for c in all_of)],
            "sampling": [s for s in first.sampling if all(s in c.sampling for c in all_of)],
            "grammar_types": [g for g in first.grammar_types if all(g in c.grammar_types for c in all_of)],
            "max_candidates": min(c.max_candidates for c in all_of),
            "max_draft_tokens": min(c.max_draft_tokens for c in all_of),
            "q": all(c.q for c in all_of),
            "prediction": all(c.prediction for c in all_of),
            "batch_invariant": all(c.batch_invariant for c in all_of),
        }
    )


def of_any(reference: Capabilities, all_of: list[Capabilities]) -> Capabilities:
    """The reference's, with the strategies and the number of candidates that at least one of them offers."""
    return reference.model_copy(
        update={
            "strategies": [name for name in STRATEGIES if any(name in able.strategies for able in all_of)],
            "strategy_facts": list({facts.name: facts for able in all_of for facts in able.strategy_facts}.values()),
            "max_candidates": max(able.max_candidates for able in all_of),
        }
    )
