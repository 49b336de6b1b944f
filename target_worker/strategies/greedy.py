"""`greedy`: nothing but the target's top token (after bias, penalties and masks), whatever the temperature.

For debugging; not lossless above temperature 0.
"""

from __future__ import annotations

from target_worker.strategies.drafts import Drafts, Judgement, Target, accept_prefix, at_end


def verify(drafts: Drafts, target: Target) -> Judgement:
    """Of B chains (drafts.py says how they are laid out): accepted up to the first token that is not the target's
    likeliest there (the lowest id on ties), which comes in its place. Needs neither q nor threshold."""
    top = target.distribution.top1()[drafts.rows]
    num_accepted = accept_prefix(drafts, drafts.token_ids == top[:, :-1])
    return Judgement(num_accepted, at_end(top, num_accepted))
