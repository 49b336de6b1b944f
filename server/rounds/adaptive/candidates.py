"""How many candidates a round is worth, and what they cost and won."""

from __future__ import annotations

from protocol.messages import Candidate, VerifyResponse
from server.fleet.times import Average

_LOW_ACCEPTANCE = 0.2
_LOW_ROUNDS = 5
_JUDGED_ROUNDS = 8
_FIRST_REST = 64
_LONGEST_REST = 1024
# Of every _COMPARED_EVERY rounds, _COMPARED_ROUNDS are drafted with one candidate.
_COMPARED_EVERY = 32
_COMPARED_ROUNDS = 2


class CandidateCount:
    """N: falls by one if acceptance stays under 20% for five rounds, or if the extra candidates win less than
    they cost; after a rest, ever longer, one more is tried again."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.count = most
        self._low = 0
        self._seen = 0
        self._net = Average(0.1)
        self._rest = _FIRST_REST
        self._rested = 0
        self._rounds = 0

    def next(self) -> int:
        """N for the next round: now and then 1, so that what one candidate takes stays known."""
        return 1 if self._rounds % _COMPARED_EVERY < _COMPARED_ROUNDS else self.count

    def observe(self, num_candidates: int, drafted: int, accepted: int, gain: int, cost: float) -> None:
        """One round. `gain`: tokens that candidates 1 and up won; `cost`: what drafting and verifying them took, in
        tokens of plain decoding."""
        self._rounds += 1
        if self._most == 1 or num_candidates != self.count:
            return
        if self.count > 1:
            self._judge(drafted, accepted, gain, cost)
        if self.count < self._most:
            self._rested += 1
            if self._rested >= self._rest:
                self._set(self.count + 1)
                self._rest = min(2 * self._rest, _LONGEST_REST)

    def _judge(self, drafted: int, accepted: int, gain: int, cost: float) -> None:
        self._low = self._low + 1 if accepted < _LOW_ACCEPTANCE * max(drafted, 1) else 0
        self._seen += 1
        self._net.add(gain - cost)
        if self._low >= _LOW_ROUNDS or (self._seen >= _JUDGED_ROUNDS and self._net.value < 0.0):
            self._set(self.count - 1)

    def _set(self, count: int) -> None:
        self.count = count
        self._low = self._seen = self._rested = 0
        self._net = Average(0.1)


def rows_of(candidates: list[Candidate]) -> int:
    """Rows that verification needs: one, and one for each distinct drafted prefix."""
    if len(candidates) == 1:
        return 1 + len(candidates[0].token_ids)
    return 1 + len({tuple(c.token_ids[: i + 1]) for c in candidates for i in range(len(c.token_ids))})


def gain_of(candidates: list[Candidate], answer: VerifyResponse) -> int:
    """Tokens accepted beyond what candidate 0 alone would have brought."""
    if not answer.candidate:
        return 0
    first, kept = candidates[0].token_ids, candidates[answer.candidate].token_ids
    common = 0
    for ours, theirs in zip(first, kept, strict=False):
        if ours != theirs:
            break
        common += 1
    return max(0, answer.num_accepted - common)
