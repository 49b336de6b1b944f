"""`deterministic`: a drafted token is accepted if it equals the target's own draw.

Whatever was drafted, what comes out are the target's own draws, each a function of the sequence before it, the seed
and the position: the text does not depend on the drafter (Daliri, Musco and Suresh, 2024). Lossless; at temperature 0
it is the greedy verification of Leviathan et al. (2022).
"""

from __future__ import annotations

from target_worker.strategies.drafts import Drafts, Judgement, Target, accept_prefix, at_end


def verify(drafts: Drafts, target: Target) -> Judgement:
    """Of B chains (laid out as drafts.py says): accepted up to the first token that differs from the target's own draw,
    which comes in its place; after a whole draft comes its next own draw. Needs neither q nor threshold."""
    own = target.own[drafts.rows]
    num_accepted = accept_prefix(drafts, drafts.token_ids == own[:, :-1])
    return Judgement(num_accepted, at_end(own, num_accepted))
