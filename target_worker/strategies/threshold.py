"""`threshold`: a drafted token is accepted if its processed probability under the target reaches the threshold.

On rejection, and after a fully accepted draft, the target's own draw follows. Not lossless above temperature 0:
drafts are favoured.
"""

from __future__ import annotations

from target_worker.strategies.drafts import Drafts, Judgement, Target, accept_prefix, at_end


def verify(drafts: Drafts, target: Target) -> Judgement:
    """`drafts.threshold` float64 [B] is needed."""
    assert drafts.threshold is not None
    flat_rows = drafts.rows[:, :-1].flatten()
    p = target.distribution.probability_of(drafts.token_ids.flatten(), flat_rows).view_as(drafts.token_ids)
    # A token that cannot be drawn at all is never accepted, not even at threshold 0.
    num_accepted = accept_prefix(drafts, (p >= drafts.threshold[:, None]) & (p > 0))
    return Judgement(num_accepted, at_end(target.own[drafts.rows], num_accepted))
