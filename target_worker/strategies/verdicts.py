"""From outcomes of chains to one verdict a request: which candidate is kept, what is emitted, and why."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from protocol.messages import StopReason
from target_worker.strategies.drafts import Drafts, Outcome, Target


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of one drafted token, for the log. `position` is absolute; `q` is None where none was sent.

    `own` is the target's own draw there. `instead` is the token that takes a rejected one's place, which may be another
    than `own` (`probabilistic` draws it from the residual distribution); None elsewhere.
    """

    position: int
    drafted: int
    p: float
    q: float | None
    own: int
    accepted: bool
    reason: str
    instead: int | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """`candidate` is the index of the kept one among the request's, `num_accepted` how many of its tokens are accepted.

    `token_ids` are what is emitted: the accepted tokens and one of the target's own.
    """

    candidate: int
    num_accepted: int
    token_ids: list[int]


def verdicts(drafts: Drafts, target: Target, outcome: Outcome, group_sizes: Sequence[int]) -> list[Verdict]:
    """One verdict for each group of consecutive chains (the candidates of one request; at least one, maybe empty).

    The longest accepted prefix wins; ties go to the larger summed target log-probability of the accepted tokens, then
    to the lowest index.
    """
    token_ids = drafts.token_ids.tolist()
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
        found.append(Verdict(kept - begin, most, [*accepted, next_tokens[kept]]))
        begin += size
    return found


def _log_probability(drafts: Drafts, target: Target, chain: int, length: int) -> float:
    places = slice(0, length)
    logprobs = target.distribution.logprob_of(drafts.token_ids[chain, places], drafts.rows[chain, places])
    return float(logprobs.sum())


@dataclass(frozen=True, slots=True)
class Cut:
    """What is emitted of a round: its tokens, how many of them were drafted, and what ended the text there, if it has.

    `stop_token_id` is the last of `token_ids` where `stop_reason` is "stop_token", else None.
    """

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


def decisions(
    drafts: Drafts, target: Target, outcome: Outcome, chain: int, rejection: str, stop_ids: Collection[int] = ()
) -> list[Decision]:
    """The decisions on one chain's drafted tokens. `rejection` says why this strategy rejects (Strategy.rejection).

    Nothing is accepted after one of `stop_ids`, which ends the text.
    """
    length = int(drafts.lengths[chain])
    ids, rows = drafts.token_ids[chain, :length], drafts.rows[chain, :length]
    p = target.distribution.probability_of(ids, rows).tolist()
    q: list[float | None] = [None] * length
    if drafts.q is not None:
        same = drafts.q.token_ids[chain, :length] == ids[:, None]
        q = list(drafts.q.probabilities[chain, :length].masked_fill(~same, 0.0).sum(-1).tolist())
    num_accepted, next_token = int(outcome.num_accepted[chain]), int(outcome.next_token[chain])
    drafted, own = ids.tolist(), target.own[rows].tolist()
    end = len(cut_after_stop([*drafted[:num_accepted], next_token], num_accepted, stop_ids, length + 1).token_ids)

    def reason(place: int) -> str:
        if place >= end:
            return "after a stop token" if end <= num_accepted else "after a rejected token"
        return "accepted" if place < num_accepted else rejection

    return [
        Decision(
            position=target.rows[row].position,
            drafted=drafted[place],
            p=p[place],
            q=q[place],
            own=own[place],
            accepted=place < min(num_accepted, end),
            reason=reason(place),
            instead=next_token if place == num_accepted < end else None,
        )
        for place, row in enumerate(rows.tolist())
    ]
