"""`greedy`: nothing but the target's top token (after bias, penalties and masks), whatever the temperature.

For debugging; not lossless above temperature 0.
"""

from __future__ import annotations

from target_worker.strategies.drafts import Drafts, Outcome, Target, accept_prefix, at_end


def verify(drafts: Drafts, target: Target) -> Outcome:
    top = target.distribution.top1()[drafts.rows]
    accepted, num_accepted = accept_prefix(drafts, drafts.token_ids == top[:, :-1])
    return Outcome(accepted, num_accepted, at_end(top, num_accepted))
