"""From outcomes of chains to one verdict a request: which candidate is kept, what is emitted, and why."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from protocol.messages import StopReason
from target_worker.strategies.drafts import Drafts, Judgement, Target

_ACCEPTED = "accepted"


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of one drafted token, for the log. `position` is absolute; `q` is None if none was sent.

    `own` is the target's own draw there. `instead` is the token that takes a rejected one's place, which may be another
    than `own` (`probabilistic` draws it from the residual distribution); None elsewhere. `p` and `own` are None if
    the engine reports only what is emitted.
    """

    position: int
    drafted: int
    p: float | None
    q: float | None
    own: int | None
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


def verdicts(drafts: Drafts, target: Target, outcome: Judgement, group_sizes: Sequence[int]) -> list[Verdict]:
    """One verdict for each group of consecutive chains (the candidates of one request; at least one, maybe empty).

    The longest accepted prefix wins; ties go to the larger summed target log-probability of the accepted tokens, then
    to the lowest index.
    """
    token_ids = drafts.token_ids.tolist()
    num_accepted, next_tokens = outcome.num_accepted.tolist(), outcome.next_token.tolist()
    found: list[Verdict] = []
    begin = 0
    for size in group_sizes:
        group = slice(begin, begin + size)

        def log_probability(chain: int, length: int, begin: int = begin) -> float:
            at = begin + chain, slice(0, length)
            return float(target.distribution.logprob_of(drafts.token_ids[at], drafts.rows[at]).sum())

        kept = keep_longest(token_ids[group], num_accepted[group], log_probability)
        most = num_accepted[begin + kept]
        found.append(Verdict(kept, most, [*token_ids[begin + kept][:most], next_tokens[begin + kept]]))
        begin += size
    return found


def keep_longest(
    chains: Sequence[Sequence[int]],
    num_accepted: Sequence[int],
    log_probability: Callable[[int, int], float] = lambda chain, length: 0.0,
) -> int:
    """The index of the chain with the longest accepted prefix.

    Ties between different prefixes go to the larger `log_probability(chain, length)` of the accepted tokens, then to
    the lowest index. If a strategy accepts only what the target draws, as `deterministic`, tied prefixes are equal.
    """
    most = max(num_accepted)
    tied = [chain for chain, accepted in enumerate(num_accepted) if accepted == most]
    if any(chains[chain][:most] != chains[tied[0]][:most] for chain in tied):
        return max(tied, key=lambda chain: (log_probability(chain, most), -chain))
    return tied[0]


@dataclass(frozen=True, slots=True)
class Cut:
    """What is emitted of a round: its tokens, how many of them were drafted, and what ended the text there, if it has.

    `stop_token_id` is the last of `token_ids` if `stop_reason` is "stop_token", else None.
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
    drafts: Drafts, target: Target, outcome: Judgement, chain: int, rejection: str, stop_ids: Collection[int] = ()
) -> list[Decision]:
    """The decisions on one chain's drafted tokens. `rejection` is the strategy's reason to reject (Strategy.rejection).

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
    reasons = _reasons(drafted, num_accepted, next_token, rejection, stop_ids)
    return [
        Decision(
            position=target.rows[row].position,
            drafted=drafted[place],
            p=p[place],
            q=q[place],
            own=own[place],
            accepted=reasons[place] == _ACCEPTED,
            reason=reasons[place],
            instead=next_token if reasons[place] == rejection else None,
        )
        for place, row in enumerate(rows.tolist())
    ]


def emitted_decisions(
    chain: Sequence[int],
    emitted: Sequence[int | None],
    num_accepted: int,
    position: int,
    rejection: str,
    stop_ids: Collection[int] = (),
) -> list[Decision]:
    """The same from the tokens emitted at a chain's places, None if one is not known; `position`: the first's."""
    next_token = emitted[num_accepted]
    reasons = _reasons(chain, num_accepted, next_token, rejection, stop_ids)
    return [
        Decision(
            position=position + place,
            drafted=token,
            p=None,
            q=None,
            own=None,
            accepted=reasons[place] == _ACCEPTED,
            reason=reasons[place],
            instead=next_token if reasons[place] == rejection else None,
        )
        for place, token in enumerate(chain)
    ]


def _reasons(
    drafted: Sequence[int], num_accepted: int, next_token: int | None, rejection: str, stop_ids: Collection[int]
) -> list[str]:
    """Why each drafted token was accepted or not."""
    round_ = [*drafted[:num_accepted], *([] if next_token is None else [next_token])]
    end = len(cut_after_stop(round_, num_accepted, stop_ids, len(drafted) + 1).token_ids)
    found = []
    for place in range(len(drafted)):
        if place >= end:
            found.append("after a stop token" if end <= num_accepted else "after a rejected token")
        else:
            found.append(_ACCEPTED if place < num_accepted else rejection)
    return found
