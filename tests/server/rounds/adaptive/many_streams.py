"""Many streams over one target and one draft worker on a virtual clock: what planners do to each other.

A pass takes all that wait when it begins, a batch of drafts likewise; `shared`: while both are busy each takes so many
times as long, as on the same cores. Each stream asks for one answer after another.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from draft_worker.plans import Costs, DrawSeconds, best_plan
from protocol.worker_info import StepTime
from server.fleet.times import DraftTimes, StepTimes
from server.rounds.adaptive.pair import PairState
from server.rounds.adaptive.planner import AdaptivePlanner, FixedPlanner
from server.rounds.adaptive.round import RoundOutcome, Times

Then = Callable[[], None]
_PATIENCE = 12
"""Asks until a worker that chooses draws though it is not worth it (draft_worker/auto.py)."""


@dataclass(frozen=True)
class Machine:
    """Seconds. `claimed_row`: what the target says that a row takes; `draft_row`: what a further stream's draft adds to
    a token's time, as a share of it."""

    step: float = 0.030
    per_row: float = 0.015
    claimed_row: float | None = None
    draft_fixed: float = 0.004
    draft_token: float = 0.012
    draft_row: float = 0.4
    way: float = 0.0015
    shared: float = 1.0
    acceptance: float = 0.7
    hit: float | None = None
    """How often a draft was prepared beside the target's passes; None: none is."""
    noise: float = 0.05

    def passes(self, rows: Sequence[int]) -> float:
        return self.step + self.per_row * (sum(rows) - 1)

    def drafts(self, tokens: Sequence[int]) -> float:
        return self.draft_fixed + self.draft_token * max(tokens) * (1.0 + self.draft_row * (len(tokens) - 1))

    def curve(self) -> list[StepTime]:
        row = self.per_row if self.claimed_row is None else self.claimed_row
        return [StepTime(rows=rows, seconds=self.step + row * (rows - 1)) for rows in (1, 2, 4, 8, 16, 32, 64)]


@dataclass
class Model:
    """Serves what waits in batches. A call is its rows and what it calls with those of its batch."""

    seconds: Callable[[Sequence[int]], float]
    waiting: list[tuple[int, Callable[[int], None]]] = field(default_factory=list)
    batch: list[tuple[int, Callable[[int], None]]] = field(default_factory=list)
    left: float = 0.0


class Streams:
    """`streams` at a time, answers of `tokens` each, until `until` tokens came of all; `make` makes each answer's
    planner, None: they are decoded plainly."""

    def __init__(
        self,
        machine: Machine,
        streams: int,
        tokens: int,
        until: int,
        make: Callable[[PairState], AdaptivePlanner | FixedPlanner] | None,
        seed: int = 1,
    ) -> None:
        self._machine, self._tokens, self._make = machine, tokens, make
        self._random = Random(seed)
        self._target, self._drafter = Model(machine.passes), Model(machine.drafts)
        drafts = DraftTimes([StepTime(rows=1, seconds=machine.draft_token)])
        ahead = DraftTimes([StepTime(rows=1, seconds=machine.draft_token)], drafts) if machine.hit is not None else None
        self._times = Times(StepTimes(machine.curve()), drafts, ahead)
        self._pair = PairState()
        self._later: list[tuple[float, int, Then]] = []
        self._now = 0.0
        self._draws = DrawSeconds(machine.draft_token)
        self._came = self._events = self._undrawn = self._preparing = 0
        for number in range(streams):
            self._after(0.001 * number, self._answer)
        while self._came < until:
            self._go_on()
        self.speed = self._came / self._now

    def _after(self, seconds: float, then: Then) -> None:
        self._events += 1
        heapq.heappush(self._later, (self._now + seconds, self._events, then))

    def _go_on(self) -> None:
        while self._later and self._later[0][0] <= self._now + 1e-12:
            heapq.heappop(self._later)[2]()
        busy = []
        for model in (self._target, self._drafter):
            if model.waiting and not model.batch:
                model.batch, model.waiting = model.waiting, []
                noise = self._machine.noise
                model.left = model.seconds([rows for rows, _ in model.batch]) * self._random.uniform(
                    1 - noise, 1 + noise
                )
            if model.batch:
                busy.append(model)
        slower = self._machine.shared if len(busy) > 1 or (busy == [self._target] and self._preparing) else 1.0
        waits = [model.left * slower for model in busy] + [event[0] - self._now for event in self._later[:1]]
        passed = max(0.0, min(waits))
        self._now += passed
        for model in busy:
            model.left -= passed / slower
        for model in busy:
            if model.left <= 1e-12:
                ended, model.batch = model.batch, []
                for _, then in ended:
                    then(sum(rows for rows, _ in ended))

    def _answer(self) -> None:
        if self._make is None:
            self._plain(self._tokens, None, self._answer)
            return
        planner = self._make(self._pair)
        serving = planner.serving()
        serving.__enter__()

        def ended() -> None:
            serving.__exit__(None, None, None)
            self._answer()

        self._round(planner, self._tokens, ended)

    def _round(
        self, planner: AdaptivePlanner | FixedPlanner, left: int, ended: Then, looked_ahead: bool = False
    ) -> None:
        if left <= 0:
            ended()
            return
        machine, steps = self._machine, self._times.steps
        plan = planner.plan(self._times_of(planner))
        asked, tokens = self._now, min(plan.draft_tokens, left - 1)
        if tokens < 1:
            stretch = min(plan.plain_tokens or left, left)
            then = partial(self._round, planner, left - stretch, ended)
            self._after(machine.way, lambda: self._plain(stretch, planner, then))
            return
        if plan.worker_chooses and not (tokens := self._chosen(tokens, planner)):
            planner.observe_nothing(machine.way, self._times_of(planner))
            self._after(machine.way, lambda: self._round(planner, left, ended))
            return

        there = looked_ahead and machine.hit is not None and self._random.random() < machine.hit

        def drafted(_: int) -> None:
            self._after(machine.way, verify)

        def verify() -> None:
            sent, draft = self._now, self._now - asked
            self._preparing += plan.lookahead
            self._times.of(looked_ahead).drafts.observe(0 if there else tokens, draft)
            self._draws.observe(tokens, draft)

            def verified(rows: int) -> None:
                accepted = 0
                while accepted < tokens and self._random.random() < machine.acceptance:
                    accepted += 1
                own, took, way = 1 + tokens, self._now - sent, machine.way
                steps.observe_verify(own, rows, took, took + way)
                outcome = RoundOutcome(
                    tokens,
                    1,
                    tokens,
                    accepted,
                    accepted + 1,
                    0,
                    draft,
                    False,
                    took + way,
                    own,
                    plan.lookahead,
                    looked_ahead,
                    tokens if there else 0,
                )
                self._preparing -= plan.lookahead
                planner.observe(outcome, self._times_of(planner))
                self._came += accepted + 1
                self._after(way, lambda: self._round(planner, left - accepted - 1, ended, plan.lookahead))

            self._target.waiting.append((1 + tokens, verified))

        if there:
            drafted(tokens)
        else:
            self._drafter.waiting.append((tokens, drafted))

    def _times_of(self, planner: AdaptivePlanner | FixedPlanner) -> Times:
        return replace(self._times, alike=planner.alike)

    def _chosen(self, most: int, planner: AdaptivePlanner | FixedPlanner) -> int:
        """What a worker that chooses and knows how often its model is right would draw."""
        chances = [self._machine.acceptance ** (1 + place) for place in range(most)]
        costs = Costs(self._times_of(planner).prices(most), self._draws)
        self._undrawn += 1
        tokens = best_plan([], chances, costs, must_draw=self._undrawn >= _PATIENCE).drawn
        if tokens:
            self._undrawn = 0
        return tokens

    def _plain(self, left: int, planner: AdaptivePlanner | FixedPlanner | None, ended: Then) -> None:
        if left <= 0:
            ended()
            return
        began = self._now

        def came(rows: int) -> None:
            if planner is not None:
                self._times.steps.observe_plain(rows, self._now - began)
                planner.observe_plain(1)
            self._came += 1
            self._plain(left - 1, planner, ended)

        self._target.waiting.append((1, came))
