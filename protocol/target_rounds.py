"""Which requests may carry drafts in rounds that the target drives itself: their sampling decides."""

from __future__ import annotations

from basics.names import GREEDY_TEMPERATURE
from protocol.messages import Grammar, Sampling

_EDITS = ("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "min_tokens")


def is_greedy(sampling: Sampling) -> bool:
    return sampling.temperature < GREEDY_TEMPERATURE


def edits_logits(sampling: Sampling) -> bool:
    """Whether a token's logit may be changed before anything is drawn, so that another may be the greatest."""
    neutral = Sampling(seed=sampling.seed)
    return any(getattr(sampling, name) != getattr(neutral, name) for name in _EDITS)


def may_be_drafted_for(sampling: Sampling, grammar: Grammar | None) -> bool:
    """Whether the engine's own processing of logits is all that the request needs, so that its greedy token is ours.

    What is left out (grammars, penalties, biases, min_p, min_tokens) is for our own sampling, in gateway-driven rounds.
    """
    return grammar is None and sampling.min_p == 0.0 and not edits_logits(sampling)
