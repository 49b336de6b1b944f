"""What is known of a drafter with a target, carried across requests."""

from __future__ import annotations

from dataclasses import dataclass, field

from server.fleet.times import Average
from server.rounds.adaptive.acceptance import Acceptance
from server.rounds.adaptive.candidates import CandidateCount
from server.rounds.adaptive.depth import Depth
from server.rounds.adaptive.foreseen import Foreseen
from server.rounds.adaptive.lookahead import SharedLookahead
from server.rounds.adaptive.round import RoundOutcome
from server.rounds.adaptive.turns import Turns

# Credit: tokens of plain decoding, that is, the time they take.
_FIRST_CREDIT = 12.0
_MOST_CREDIT = 16.0
_LEAST_CREDIT = -4.0
FIRST_INTERVAL = 16
"""Tokens of plain decoding between tries, at first."""
_PRIOR_ROUNDS = 6.0


class Pace:
    """What a token took in rounds whose drafts the worker chose, against plain decoding at the time; older ones fade.

    In tokens of plain decoding, not in seconds: rounds on a machine that was busy must not look slow on one that is
    free. `prior` counts as much as six rounds.
    """

    def __init__(self, fading: float, prior: Pace | None = None) -> None:
        self._fading = fading
        self._prior = prior
        self._rounds = self._tokens = self._took = 0.0

    def observe(self, tokens: int, took: float) -> None:
        """A round that brought `tokens`, in the time that `took` tokens take plain decoding."""
        if self._prior is not None:
            self._prior.observe(tokens, took)
        self._rounds = self._rounds * self._fading + 1.0
        self._tokens = self._tokens * self._fading + tokens
        self._took = self._took * self._fading + took

    def a_token(self) -> float:
        """0.5 while nothing is known; from 1 on plain decoding is as fast."""
        prior = self._prior
        if prior is None or not prior._rounds:
            return (self._took + _PRIOR_ROUNDS) / (self._tokens + 2.0 * _PRIOR_ROUNDS)
        weight = _PRIOR_ROUNDS / prior._rounds
        return (self._took + weight * prior._took) / (self._tokens + weight * prior._tokens)


@dataclass(slots=True)
class PairState:
    """What is known about a drafter with a target, carried across requests.

    `credit` is what speculation has earned over plain decoding and may lose again (it also earns 2% of what is decoded
    plainly, which pays for trying again). It bounds the loss whatever the model of times and acceptance believes.
    """

    acceptance: Acceptance = field(default_factory=lambda: Acceptance(fading=0.995, strength=2.0))
    credit: float = _FIRST_CREDIT
    interval: int = FIRST_INTERVAL
    losses: Average = field(default_factory=lambda: Average(0.03))
    """Seconds a round that go to drafts which fail; slowly, since one of 0.3 s is more than three rounds may save."""
    failed_until: float | None = None
    """When the last draft that failed was given up."""
    candidates: dict[int, CandidateCount] = field(default_factory=dict)
    """By the N that a request asks for at most."""
    branching: Average = field(default_factory=lambda: Average(0.1))
    """Rows that a candidate beyond the first adds for each draft token."""

    chosen: Average = field(default_factory=lambda: Average(0.1))
    """How long the drafts are that the worker chooses."""
    pace: Pace = field(default_factory=lambda: Pace(0.98))
    lookahead: SharedLookahead = field(default_factory=SharedLookahead)
    depth: Depth = field(default_factory=Depth)
    several: Turns = field(default_factory=lambda: Turns(current=True, rest=128))
    """Whether more than one verification is in flight where `depth` has it."""
    foreseen: Foreseen = field(default_factory=Foreseen)

    def failed_with_another(self, outcome: RoundOutcome) -> bool:
        """Whether its draft failed while another one did: what stalls a draft worker stalls all requests at once, and
        is to be booked once."""
        if not outcome.draft_failed or outcome.asked_at is None:
            return False
        if self.failed_until is not None and outcome.asked_at < self.failed_until:
            return True
        self.failed_until = outcome.asked_at + outcome.draft_seconds
        return False

    def earn(self, tokens: float) -> None:
        """Book the gain of speculation over plain decoding, in tokens of plain decoding; a loss is negative."""
        self.credit = min(max(self.credit + tokens, _LEAST_CREDIT), _MOST_CREDIT)
