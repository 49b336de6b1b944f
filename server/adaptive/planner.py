"""What to do next in one request: how many draft tokens, how many candidates, or plain decoding for a while."""

from __future__ import annotations

from dataclasses import dataclass, field

from server.adaptive.acceptance import Acceptance
from server.adaptive.candidates import CandidateCount
from server.adaptive.times import Average, DraftTimes, StepTimes

# Units: tokens of plain decoding, that is: the time they take.
_FIRST_CREDIT = 12.0
_MOST_CREDIT = 24.0
_LEAST_CREDIT = -8.0
_CREDIT_A_TOKEN = 0.03
_FIRST_INTERVAL = 16
_LONGEST_INTERVAL = 512
_UNMEASURED_ROUNDS = 3
_HYSTERESIS = 1.03


@dataclass(frozen=True, slots=True)
class Plan:
    """Either a round of `draft_tokens` (at least 1), or, with 0, `plain_tokens` of plain decoding."""

    draft_tokens: int
    num_candidates: int = 1
    plain_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """One speculative round. Times are seconds; `rows` are ours in the pass, `gain` is what candidates 1 and up won."""

    asked: int
    num_candidates: int
    drafted: int
    accepted: int
    emitted: int
    gain: int
    draft_seconds: float
    draft_failed: bool
    verify_seconds: float
    rows: int


@dataclass(frozen=True, slots=True)
class Times:
    """Of the target and the drafter in use."""

    steps: StepTimes
    drafts: DraftTimes


@dataclass(slots=True)
class PairState:
    """What is known of a drafter with a target, carried across requests.

    `credit` is what speculation has earned over plain decoding and may lose again (it also earns 3% of what is decoded
    plainly, which pays for trying again). It bounds the loss whatever the model of times and acceptance believes.
    """

    acceptance: Acceptance = field(default_factory=lambda: Acceptance(fading=0.995, strength=2.0))
    credit: float = _FIRST_CREDIT
    interval: int = _FIRST_INTERVAL
    losses: Average = field(default_factory=lambda: Average(0.1))

    def earn(self, tokens: float) -> None:
        self.credit = min(max(self.credit + tokens, _LEAST_CREDIT), _MOST_CREDIT)


class FixedPlanner:
    """γ and N exactly as asked."""

    def __init__(self, draft_tokens: int, num_candidates: int) -> None:
        self._plan = Plan(draft_tokens, num_candidates)

    def plan(self, times: Times) -> Plan:
        return self._plan

    def observe(self, outcome: Outcome, times: Times) -> None:
        pass

    def observe_plain(self, tokens: int) -> None:
        pass


class AdaptivePlanner:
    """The γ (0 to `max_draft_tokens`) and N (1 to `num_candidates`) of the most expected tokens a second.

    Where that is γ = 0 it decodes plainly and tries a draft now and then, ever more rarely, within the pair's credit.
    """

    def __init__(
        self,
        pair: PairState,
        draft_tokens: int,
        max_draft_tokens: int,
        num_candidates: int,
    ) -> None:
        self._pair = pair
        self._max = max_draft_tokens
        self._current = min(draft_tokens, max_draft_tokens)
        self._candidates = CandidateCount(num_candidates)
        self._acceptance = Acceptance(fading=0.95, strength=6.0, prior=pair.acceptance)
        self._until_try = min(pair.interval, 2 * _FIRST_INTERVAL)
        self._trying = False
        self._promising = False

    def plan(self, times: Times) -> Plan:
        draft_tokens, seconds_a_token = self._best(times)
        plain = times.steps.plain()
        pays = seconds_a_token < plain
        cost = self._price(draft_tokens, plain, times)
        if self._pair.credit > 0.0 and (pays or self._promising or self._pair.acceptance.rounds < _UNMEASURED_ROUNDS):
            self._trying = not pays
            return Plan(draft_tokens, self._candidates.count)
        missing = cost - self._pair.credit
        if self._until_try <= 0 and missing <= 0.0:
            self._trying = True
            return Plan(draft_tokens, self._candidates.count)
        wait = max(self._until_try, int(missing / _CREDIT_A_TOKEN) + 1, 1)
        return Plan(0, plain_tokens=min(wait, _LONGEST_INTERVAL))

    def observe(self, outcome: Outcome, times: Times) -> None:
        pair, plain = self._pair, times.steps.plain()
        seconds = outcome.draft_seconds + outcome.verify_seconds
        pair.losses.add(outcome.draft_seconds if outcome.draft_failed else 0.0)
        pair.earn(outcome.emitted - seconds / plain)
        if not outcome.draft_failed:
            pair.acceptance.observe(outcome.asked, outcome.drafted, outcome.accepted)
            self._acceptance.observe(outcome.asked, outcome.drafted, outcome.accepted)
            extra = times.steps.verify(outcome.rows) - times.steps.verify(1 + outcome.drafted)
            self._candidates.observe(
                outcome.num_candidates, outcome.drafted, outcome.accepted, outcome.gain, extra / plain
            )
        self._promising = outcome.accepted >= outcome.asked
        if self._trying and not self._promising:
            pair.interval = min(2 * pair.interval, _LONGEST_INTERVAL)
            self._until_try = pair.interval
        elif not self._trying:
            pair.interval = _FIRST_INTERVAL
            self._until_try = 0

    def observe_plain(self, tokens: int) -> None:
        self._until_try -= tokens
        self._pair.earn(_CREDIT_A_TOKEN * tokens)

    def _best(self, times: Times) -> tuple[int, float]:
        """The best γ of at least 1, and the seconds a token it is expected to take."""
        if self._pair.acceptance.rounds < _UNMEASURED_ROUNDS:
            return self._current, self._seconds_a_token(self._current, times)
        options = {count: self._seconds_a_token(count, times) for count in range(1, self._max + 1)}
        best = min(options, key=options.__getitem__)
        if options[self._current] > _HYSTERESIS * options[best]:
            self._current = best
        return self._current, options[self._current]

    def _seconds_a_token(self, draft_tokens: int, times: Times) -> float:
        tokens = self._acceptance.expected_tokens(draft_tokens)[-1]
        return self._seconds(draft_tokens, times) / tokens

    def _seconds(self, draft_tokens: int, times: Times) -> float:
        fill = self._acceptance.fill()
        verify = (1.0 - fill) * times.steps.verify(1) + fill * times.steps.verify(1 + draft_tokens)
        return times.drafts.draft(draft_tokens) + verify + self._pair.losses.value

    def _price(self, draft_tokens: int, plain: float, times: Times) -> float:
        """What a round is expected to lose, in tokens of plain decoding; at least a little."""
        tokens = self._acceptance.expected_tokens(draft_tokens)[-1]
        return max(0.1, self._seconds(draft_tokens, times) / plain - tokens)
