"""From outcomes of chains to one verdict a request: which candidate is kept, what is emitted, and why."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from protocol.messages import StopReason
from target_worker.strategies.drafts import Drafts, Outcome, Target


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of one drafted token, for the log. `position` is absolute; `q` is None where none was sent."""

    position: int
    drafted: int
    p: float
    q: float | None
    own: int
    accepted: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """`candidate` is the index of the kept one among the request's. `mask` has an entry for each of its tokens.

    `token_ids` are what is emitted: the accepted tokens and one of the target's own.
    """

    candidate: int
    num_accepted: int
    mask: list[bool]
    token_ids: list[int]


def verdicts(drafts: Drafts, target: Target, outcome: Outcome, group_sizes: Sequence[int]) -> list[Verdict]:
    """One verdict for each group of consecutive chains (the candidates of one request; at least one, maybe empty).

    The longest accepted prefix wins; ties go to the larger summed target log-probability of the accepted tokens, then
    to the lowest index.
    """
    token_ids, lengths = drafts.token_ids.tolist(), drafts.lengths.tolist()
    num_accepted, next_tokens = outcome.num_accepted.tolist(), outcome.next_token.tolist()
    found: list[Verdict] = []
    begin = 0
    for size in group_sizes:
        group = range(begin, begin + size)
        most = max(num_accepted[chain] for chain in group)
        tied = [chain for chain in group if num_accepted[chain] == most]
        kept = tied[0]
        if any(token_ids[chain][:most] != token_ids[kept][:most] for chain in tied):
            kept = max(tied, key=lambda chain: (_log_probability(drafts, target, chain, most), -chain))
        accepted = token_ids[kept][:most]
        mask = [place < most for place in range(lengths[kept])]
        found.append(Verdict(kept - begin, most, mask, [*accepted, next_tokens[kept]]))
        begin += size
    return found


def _log_probability(drafts: Drafts, target: Target, chain: int, length: int) -> float:
    places = slice(0, length)
    logprobs = target.distribution.logprob_of(drafts.token_ids[chain, places], drafts.rows[chain, places])
    return float(logprobs.sum())


def decisions(drafts: Drafts, target: Target, outcome: Outcome, chain: int, rejection: str) -> list[Decision]:
    """The decisions on one chain's drafted tokens. `rejection` says why this strategy rejects (Strategy.rejection)."""
    length = int(drafts.lengths[chain])
    ids, rows = drafts.token_ids[chain, :length], drafts.rows[chain, :length]
    p = target.distribution.probability_of(ids, rows).tolist()
    q: list[float | None] = [None] * length
    if drafts.q is not None:
        same = drafts.q.token_ids[chain, :length] == ids[:, None]
        q = list(drafts.q.probabilities[chain, :length].masked_fill(~same, 0.0).sum(-1).tolist())
    accepted = int(outcome.num_accepted[chain])
    own = target.own[rows].tolist()
    return [
        Decision(
            position=target.rows[row].position,
            drafted=drafted,
            p=p[place],
            q=q[place],
            own=own[place],
            accepted=place < accepted,
            reason="accepted" if place < accepted else rejection if place == accepted else "after a rejected token",
        )
        for place, (row, drafted) in enumerate(zip(rows.tolist(), ids.tolist(), strict=True))
    ]


@dataclass(frozen=True, slots=True)
class Cut:
    token_ids: list[int]
    num_accepted: int
    stop_reason: StopReason | None
    stop_token_id: int | None


def cut_after_stop(token_ids: Sequence[int], num_accepted: int, stop_ids: Collection[int], max_tokens: int) -> Cut:
    """A round's tokens up to the first stop token, which is kept, and `max_tokens` at most."""
    for place, token_id in enumerate(token_ids[:max_tokens]):
        if token_id in stop_ids:
            kept = list(token_ids[: place + 1])
            return Cut(kept, min(num_accepted, len(kept)), "stop_token", token_id)
    kept = list(token_ids[:max_tokens])
    return Cut(kept, min(num_accepted, len(kept)), "length" if len(kept) == max_tokens else None, None)
