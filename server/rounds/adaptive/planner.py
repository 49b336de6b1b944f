"""What to do next in one request: how many draft tokens, how many candidates, or plain decoding for a while."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from server.rounds.adaptive.acceptance import Acceptance
from server.rounds.adaptive.candidates import CandidateCount
from server.rounds.adaptive.depth import Depth
from server.rounds.adaptive.pair import FIRST_INTERVAL, Pace, PairState
from server.rounds.adaptive.round import RoundOutcome, RoundPlan, Times

_CREDIT_A_TOKEN = 0.02
"""Earned by a token of plain decoding."""
# Tokens of plain decoding between tries: if better acceptance would make speculation pay, and if it would not.
_LONGEST_INTERVAL = 64
_LONGEST_HOPELESS_INTERVAL = 512
# Plain decoding is the baseline: measured at first, and again after this many rounds without it.
_PLAIN_SAMPLE = 4
_ROUNDS_UNTIL_SAMPLE = 256
_UNMEASURED_ROUNDS = 3
_HYSTERESIS = 1.03
_FIRST_ASKING_INTERVAL = 4
"""Tokens of plain decoding before a worker that chooses is asked again after a round that did not pay."""
_LONGEST_WHERE_OTHERS_PAY = 8
"""At most, while the pair's rounds pay on the whole: a few wrong drafts in a row are no news then, and a try takes a
third of a token."""
_WITH_ANOTHER_STREAM = 2.0
_SPENT_ON_ASKING = 0.1
_SPENT_IN_VAIN = 0.02
"""Shares of plain decoding's time that go to asking a worker that has nothing: at first, and in the end at most."""


class FixedPlanner:
    """γ and N exactly as asked; nothing is tried out."""

    def __init__(self, draft_tokens: int, num_candidates: int, lookahead: bool = False) -> None:
        self._plan = RoundPlan(draft_tokens, num_candidates, lookahead=lookahead)
        self._depth = Depth()

    def plan(self, times: Times) -> RoundPlan:
        tokens = self._plan.draft_tokens
        depth = self._depth.under_way(times, tokens) if self._plan.lookahead else 1
        return replace(self._plan, depth=depth, least_ahead=tokens if depth > 1 else None)

    def observe(self, outcome: RoundOutcome, times: Times) -> None:
        pass

    def observe_plain(self, tokens: int) -> None:
        pass

    def observe_nothing(self, seconds: float, times: Times) -> None:
        pass

    def observe_ahead(self, used: bool, others: int) -> None:
        self._depth.observe(used, others)

    @property
    def alike(self) -> int:
        return 1

    def serving(self) -> AbstractContextManager[None]:
        return nullcontext()


class AdaptivePlanner:
    """The γ (0 to `max_draft_tokens`) and N (1 to `num_candidates`) of the most expected tokens a second.

    If that is γ = 0 it decodes plainly and tries a draft now and then, ever more rarely, within the pair's credit.
    """

    def __init__(
        self,
        pair: PairState,
        draft_tokens: int,
        max_draft_tokens: int,
        num_candidates: int,
        worker_chooses: bool = False,
    ) -> None:
        """`worker_chooses`: the drafter and γ round by round; this only decides when to ask at all."""
        self._chooses = worker_chooses
        self._pace = Pace(0.9, pair.pace)
        self._pair = pair
        self._max = max(max_draft_tokens, 1)
        self._current = max(1, min(draft_tokens, self._max))
        self._candidates = pair.candidates.setdefault(num_candidates, CandidateCount(num_candidates))
        self._acceptance = Acceptance(fading=0.95, strength=6.0, prior=pair.acceptance)
        self._interval = _FIRST_ASKING_INTERVAL
        self._until_try = min(pair.interval, 2 * FIRST_INTERVAL)
        self._trying = False
        self._promising = False
        self._longest = _LONGEST_INTERVAL
        self._seconds_a_token = 0.0
        self._worth_sending = 1
        self._empty = 0
        self._had_nothing = False
        self._depth = self._depth_before = 1
        self._choice = pair.lookahead.choice

    def plan(self, times: Times) -> RoundPlan:
        """The next round, or stretch of plain decoding, by what is known now."""
        plan = self._planned(times)
        self._depth_before, self._depth = self._depth, plan.depth
        self._choice = self._pair.lookahead.choice
        return plan

    def _planned(self, times: Times) -> RoundPlan:
        ahead = times.ahead is not None and self._pair.lookahead.choice.next()
        plan = self._plan_with(times.of(ahead), ahead)
        if plan.worker_chooses:
            depth = self._depth_of_chosen(times)
            return replace(plan, lookahead=ahead, depth=depth, least_ahead=plan.draft_tokens if depth > 1 else None)
        if not (ahead and plan.draft_tokens and plan.num_candidates == 1):
            unpaid = plan.plain_tokens > _PLAIN_SAMPLE and not self._chooses
            if times.ahead is not None and not ahead and unpaid:
                self._pair.lookahead.choice.observe_plain(times.plain())
            return plan
        most = self._worth_sending if times.extends else 0
        depth = self._pair.depth.under_way(times, plan.draft_tokens)
        # To prepare for what is only assumed costs drafts for what comes: only times tell whether it pays.
        depth = depth if self._pair.several.current else min(depth, 2)
        least = self._least_ahead(plan, times) if depth > 1 else None
        return replace(plan, lookahead=True, prepared_tokens=most, depth=depth, least_ahead=least)

    def _plan_with(self, times: Times, ahead: bool) -> RoundPlan:
        pair = self._pair
        new = pair.acceptance.rounds < _UNMEASURED_ROUNDS
        since_plain = times.steps.rounds_since_plain
        if not new and (since_plain is None or since_plain > _ROUNDS_UNTIL_SAMPLE):
            return RoundPlan(0, plain_tokens=_PLAIN_SAMPLE)
        plain = times.plain()
        if self._chooses:
            return self._plan_to_ask(new)
        expected = self._acceptance.expected_tokens(self._max)
        num_candidates = self._candidates.next()
        draft_tokens, seconds_a_token = self._best(times, expected, num_candidates, ahead)
        if seconds_a_token >= plain and num_candidates > 1:  # a single one may pay all the same
            num_candidates = 1
            draft_tokens, seconds_a_token = self._best(times, expected, num_candidates, ahead)
        # A token of plain decoding takes no longer than a verification. If it seems to, it was measured beside fewer
        # rows of others than there are now, and the worker's curve says too much of these.
        plain = min(plain, times.verify(1 + draft_tokens))
        pays = seconds_a_token < plain
        could_pay = self._could_pay(times, plain)
        self._trying = not pays
        self._longest = _LONGEST_INTERVAL if could_pay else _LONGEST_HOPELESS_INTERVAL
        trying = (self._promising or (ahead and pair.lookahead.choice.trying)) and could_pay
        if pair.credit > 0.0 and (pays or new or trying):
            return RoundPlan(draft_tokens, num_candidates)
        price = max(0.1, expected[draft_tokens] * (seconds_a_token / plain - 1.0))
        missing = price - pair.credit
        if self._until_try <= 0 and missing <= 0.0:
            self._trying = True
            return RoundPlan(draft_tokens, num_candidates)
        wait = max(self._until_try, int(missing / _CREDIT_A_TOKEN) + 1, 1)
        return RoundPlan(0, plain_tokens=min(wait, _LONGEST_HOPELESS_INTERVAL))

    def observe(self, outcome: RoundOutcome, times: Times) -> None:
        """Learn from a round with a draft, or one whose draft failed."""
        times = times.of(outcome.lookahead)
        pair, plain = self._pair, times.plain()
        seconds = outcome.draft_seconds + outcome.verify_seconds
        if outcome.lookahead == outcome.looked_ahead and outcome.asked and outcome.num_candidates == 1:
            ahead, asked, accepted = outcome.lookahead, outcome.asked, outcome.accepted
            # One that began beside many and ended beside few, or the other way round, tells of neither.
            if self._choice is pair.lookahead.choice:
                self._choice.observe(ahead, asked, accepted, seconds, outcome.drawn)
            several = self._depth > 2
            if min(self._depth, self._depth_before) > 1 and several == (self._depth_before > 2):
                pair.several.observe(several, asked, accepted, seconds, outcome.drawn)
        if pair.failed_with_another(outcome):
            return
        pair.losses.add(outcome.draft_seconds if outcome.draft_failed else 0.0)
        # No verification is quicker than a token of plain decoding: if it seems so, that was measured on a busier
        # machine, and drafts that are wrong would look worth their time.
        took = max(seconds / plain, 1.0 + outcome.draft_seconds / plain)
        pair.earn(outcome.emitted - took)
        if self._chooses:
            self._observe_chosen(outcome, took)
            return
        if not outcome.draft_failed:
            pair.acceptance.observe(outcome.asked, outcome.drafted, outcome.accepted)
            self._acceptance.observe(outcome.asked, outcome.drafted, outcome.accepted)
            self._observe_candidates(outcome, times)
            if outcome.looked_ahead and outcome.asked:
                self._observe_foreseen(outcome, times)
        self._promising = outcome.accepted >= outcome.asked
        if not self._trying:
            pair.interval = FIRST_INTERVAL
            self._until_try = 0
        elif not self._promising:
            pair.interval = min(2 * pair.interval, self._longest)
            self._until_try = pair.interval

    def observe_plain(self, tokens: int) -> None:
        """Tokens that came without a draft."""
        self._until_try -= tokens
        self._pair.earn(_CREDIT_A_TOKEN * tokens)

    def observe_nothing(self, seconds: float, times: Times) -> None:
        """A worker that chooses was asked, which took so long, and had nothing worth its rows: no round came of it.

        Each time ever more tokens are decoded plainly before it is asked again, and the more, the longer asking takes.
        To ask, a stream of plain decoding is ended, and to go on another is begun, which takes as long again.
        """
        plain = times.plain()
        lost = _WITH_ANOTHER_STREAM * seconds / plain
        trying = self._pace.a_token() >= 1.0
        self._pair.earn(-lost)
        self._pair.acceptance.rounds += 1
        self._pace.observe(1, 1.0 + lost)
        self._promising = False
        self._had_nothing = True
        wait = lost / _SPENT_ON_ASKING * 2.0 ** min(self._empty, 8)
        wait = max(1.0, min(wait, lost / _SPENT_IN_VAIN, _LONGEST_INTERVAL))
        self._empty += 1
        if trying:
            self._interval = min(2 * self._interval, FIRST_INTERVAL)
            wait = max(wait, self._interval)
        self._until_try = int(wait)

    def observe_ahead(self, used: bool, others: int) -> None:
        self._pair.depth.observe(used, others)

    @property
    def alike(self) -> int:
        return max(1, self._pair.lookahead.streams)

    def serving(self) -> AbstractContextManager[None]:
        return self._pair.lookahead.serving()

    def _plan_to_ask(self, new: bool) -> RoundPlan:
        if self._had_nothing:
            self._had_nothing = False
            return RoundPlan(0, plain_tokens=self._until_try)
        ask = RoundPlan(self._max, worker_chooses=True)
        self._trying = self._pace.a_token() >= 1.0
        if self._pair.credit > 0.0 and (new or not self._trying or self._promising or self._until_try <= 0):
            return ask
        missing = int(max(0.0, -self._pair.credit) / _CREDIT_A_TOKEN) + 1
        return RoundPlan(0, plain_tokens=min(max(self._until_try, missing), _LONGEST_HOPELESS_INTERVAL))

    def _observe_chosen(self, outcome: RoundOutcome, took: float) -> None:
        """`took`: in tokens of plain decoding."""
        self._pair.acceptance.rounds += 1
        self._pair.chosen.add(outcome.asked)
        self._pace.observe(outcome.emitted, took)
        self._promising = outcome.emitted > took
        if self._promising:
            self._empty = 0
        if not self._trying or self._promising:
            self._interval = _FIRST_ASKING_INTERVAL
        else:
            longest = _LONGEST_WHERE_OTHERS_PAY if self._pair.pace.a_token() < 1.0 else _LONGEST_INTERVAL
            self._interval = min(2 * self._interval, longest if outcome.drafted else FIRST_INTERVAL)
        self._until_try = self._interval

    def _observe_candidates(self, outcome: RoundOutcome, times: Times) -> None:
        asked, number, drafted = outcome.asked, outcome.num_candidates, outcome.drafted
        if number > 1 and drafted:
            self._pair.branching.add((outcome.rows - 1 - drafted) / (drafted * (number - 1)))
        drafting = times.drafts.draft(asked, number) - times.drafts.draft(asked, 1)
        verifying = times.verify(outcome.rows) - times.verify(1 + drafted)
        cost = (drafting + verifying) / times.plain()
        self._candidates.observe(number, drafted, outcome.accepted, outcome.gain, cost)

    def _observe_foreseen(self, outcome: RoundOutcome, times: Times) -> None:
        tokens = outcome.prepared
        if outcome.asked < self._current:  # near the end, or sent ahead: there may have been more
            tokens = None
        elif tokens == outcome.asked and not times.extends:
            tokens += 1  # that many at least: find out
        self._pair.foreseen.observe(outcome.prepared != 0, tokens)

    def _least_ahead(self, plan: RoundPlan, times: Times) -> int:
        """What is there in time for that has to be worth what will be there when the verdict is back, less its way."""
        expected = self._acceptance.expected_tokens(self._max)
        usual = self._length_if_there(plan.draft_tokens, times)
        least = self._worth(usual, expected, times) - times.steps.network
        return next(count for count in range(1, usual + 1) if self._worth(count, expected, times) >= least)

    def _depth_of_chosen(self, times: Times) -> int:
        """Where what the worker would choose then is sent ahead. Copies need no lookahead, but that it is not off."""
        pair = self._pair
        return pair.depth.under_way(times, max(1, round(pair.chosen.value))) if pair.lookahead.mode != "off" else 1

    def _worth(self, draft_tokens: int, expected: list[float], times: Times) -> float:
        """Seconds that verifying so many tokens which are there saves, at the pace that rounds have."""
        return expected[draft_tokens] * self._seconds_a_token - times.verify(1 + draft_tokens)

    def _length_if_there(self, draft_tokens: int, times: Times) -> int:
        """The length of a draft of which some is prepared; one of which nothing is has `draft_tokens`."""
        if not times.extends:
            return draft_tokens
        return max(draft_tokens, min(round(self._pair.foreseen.tokens), self._worth_sending))

    def _best(self, times: Times, expected: list[float], num_candidates: int, ahead: bool = False) -> tuple[int, float]:
        """The best γ of at least 1, and the seconds a token it is expected to take. `ahead`: after lookahead."""
        fill = self._acceptance.fill()
        if ahead and num_candidates == 1:
            self._seconds_a_token = self._seconds_a_token or times.plain()
            self._worth_sending = max(range(1, self._max + 1), key=lambda count: self._worth(count, expected, times))
            costs = [self._cost_ahead(count, fill, expected, times) for count in range(1, self._max + 1)]
        else:
            costs = [
                self._seconds(count, num_candidates, fill, times) / expected[count] for count in range(1, self._max + 1)
            ]
        best = self._chosen(costs)
        self._seconds_a_token = costs[best - 1]
        return best, costs[best - 1]

    def _chosen(self, costs: list[float]) -> int:
        """The best γ; the last one as long as it is nearly as good."""
        if self._pair.acceptance.rounds >= _UNMEASURED_ROUNDS:
            best = costs.index(min(costs)) + 1
            if costs[self._current - 1] > _HYSTERESIS * costs[best - 1]:
                self._current = best
        return self._current

    def _cost_ahead(self, draft_tokens: int, fill: float, expected: list[float], times: Times) -> float:
        """Seconds a token where drafts are prepared: some are there, up to a length; the others have to be drawn."""
        foreseen = self._pair.foreseen
        length = self._length_if_there(draft_tokens, times)
        drawn = self._seconds(draft_tokens, 1, fill, times)
        there = self._seconds(length, 1, fill, times, max(0.0, length - foreseen.tokens))
        seconds = (1.0 - foreseen.chance) * drawn + foreseen.chance * there
        return seconds / ((1.0 - foreseen.chance) * expected[draft_tokens] + foreseen.chance * expected[length])

    def _seconds(
        self, draft_tokens: int, num_candidates: int, fill: float, times: Times, drawn: float | None = None
    ) -> float:
        """What a round is expected to take. If the drafter had no token, verification is that of one row.

        `drawn`: tokens that are not there, if some are.
        """
        rows = 1 + draft_tokens * (1.0 + (num_candidates - 1) * self._pair.branching.value)
        verify = (1.0 - fill) * times.verify(1) + fill * times.verify(rows)
        drafting = times.drafts.draft(draft_tokens if drawn is None else drawn, num_candidates)
        return drafting + verify + self._pair.losses.value

    def _could_pay(self, times: Times, plain: float) -> bool:
        """Whether speculation would pay if all were accepted; if not, the drafter is too slow."""
        return any(
            times.drafts.draft(count) + times.verify(1 + count) + self._pair.losses.value < plain * (1 + count)
            for count in range(1, self._max + 1)
        )
