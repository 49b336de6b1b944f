"""Decoding on a virtual clock: what a planner achieves against drafters of every kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from basics.names import MAX_UNDER_WAY, OnOffAuto
from protocol.worker_info import StepTime
from server.fleet.times import DraftTimes, StepTimes
from server.rounds.adaptive.lookahead import SharedLookahead
from server.rounds.adaptive.pair import PairState
from server.rounds.adaptive.planner import AdaptivePlanner, FixedPlanner
from server.rounds.adaptive.round import RoundOutcome, RoundPlan, Times


@dataclass
class World:
    """A target and a drafter. Times are seconds; `stalls` says whether the draft of this call never comes.

    Where more than one candidate is drafted each draft token takes `branching` longer, and each further candidate has
    `rescue` of a chance to go on where candidate 0 went wrong.
    """

    acceptance: Callable[[int], float] = lambda token: 0.8
    fixed: float = 0.002
    per_token: float = 0.002
    step: float = 0.030
    per_row: float = 0.002
    round_trip: float = 0.002
    deadline: float = 0.3
    stalls: Callable[[int], bool] = lambda call: False
    noise: float = 0.1
    branching: float = 0.0
    rescue: float = 0.0
    claimed_row: float | None = None
    claimed_token: float | None = None
    """What the draft worker says that a token takes."""
    others: int = 0
    beside: int | None = None
    """Rows of others in a verification's pass, if not as many as beside plain decoding: others draft too."""
    hit: float | None = None
    """How often a prepared draft fits what was emitted; None: the worker can't prepare drafts."""
    misses_beyond: float = 0.0
    """How often one that fits is missing where the worker has prepared for what is assumed, too."""
    extends: bool = True
    """A draft that is prepared may be longer than asked."""
    flies: bool = False
    """The target takes verifications that follow another."""
    most: int = MAX_UNDER_WAY
    """Verifications under way at a time."""
    shared: float = 1.0
    """How many times as long a verification takes beside lookahead."""
    rng: Random = field(default_factory=lambda: Random(1))

    def noisy(self, seconds: float) -> float:
        return seconds * self.rng.uniform(1 - self.noise, 1 + self.noise)

    def verify(self, rows: int) -> float:
        return self.step + self.per_row * (rows + self.rows_beside - 1)

    @property
    def rows_beside(self) -> int:
        return self.others if self.beside is None else self.beside

    def draft(self, plan: RoundPlan) -> float:
        per_token = self.per_token + (self.branching if plan.num_candidates > 1 else 0.0)
        return self.fixed + per_token * plan.draft_tokens

    def prepares(self, seconds: float) -> int:
        """How many tokens, all outcomes together: a pass over the draft, then one for each."""
        return max(0, int((seconds - self.fixed) / self.per_token) - 1)

    def whole(self, tokens: int) -> float:
        """Seconds that preparing so many takes."""
        return self.fixed + self.per_token * (1 + tokens)

    def accepted(self, plan: RoundPlan, done: int) -> tuple[int, int]:
        """Accepted tokens of a draft, and how many of them further candidates won."""
        alone = self._chain(0, plan.draft_tokens, done)
        others = plan.num_candidates - 1
        if others and alone < plan.draft_tokens and self.rng.random() > (1.0 - self.rescue) ** others:
            accepted = self._chain(alone + 1, plan.draft_tokens, done)
            return accepted, accepted - alone
        return alone, 0

    def _chain(self, accepted: int, drafted: int, done: int) -> int:
        while accepted < drafted and self.rng.random() < self.acceptance(done):
            accepted += 1
        return accepted

    def curve(self) -> list[StepTime]:
        per_row = self.per_row if self.claimed_row is None else self.claimed_row
        return [StepTime(rows=rows, seconds=self.step + per_row * (rows - 1)) for rows in (1, 2, 4, 8, 16, 32, 64)]

    def times(self) -> Times:
        curve = [StepTime(rows=1, seconds=self.per_token if self.claimed_token is None else self.claimed_token)]
        drafts = DraftTimes(curve)
        ahead = DraftTimes(curve, like=drafts) if self.hit is not None else None
        return Times(StepTimes(self.curve()), drafts, ahead, self.extends)

    @property
    def plain(self) -> float:
        return self.step + self.per_row * self.others


@dataclass
class Flights:
    """What is sent ahead: of the next verification when it is sent, and how many others are under way then."""

    world: World
    planner: AdaptivePlanner | FixedPlanner
    next: float | None = None
    others: int = 1
    soon: int = 0
    """How many of its tokens are there."""
    tried: bool = False
    verdicts: list[float] = field(default_factory=list)
    """When those of the last rounds were back; the target has ended them half a way before."""

    def came(self, foreseen: bool) -> bool:
        """Whether the verdict now back is one for which the next verification was sent."""
        if self.tried:
            self.planner.observe_ahead(foreseen and self.next is not None, self.others)
        return foreseen and self.next is not None

    def send(self, plan: RoundPlan, told: float, late: bool, step: float, back: float) -> None:
        """The draft worker is `told` what is being verified, whose verdict will be `back`; it takes `step`.

        `late`: it is under way since half a round trip.
        """
        world = self.world
        depth, self.next, self.others = min(plan.depth, world.most), None, 1
        self.tried = world.flies and plan.lookahead and plan.least_ahead is not None and depth > 1
        if not self.tried or plan.least_ahead is None:
            return
        most = max(plan.draft_tokens, plan.prepared_tokens)
        left = step + world.round_trip / 2
        if late:
            left = step - min(step, world.round_trip) / 2
        self.soon = min(most, world.prepares(left))
        if self.soon < plan.least_ahead:
            return
        sent = told + min(left, world.whole(most))
        if len(self.verdicts) >= depth - 1:
            sent = max(sent, self.verdicts[1 - depth])  # that many are under way until then
        if sent < back:
            self.next, self.others = sent, self.under_way(sent, back)

    def under_way(self, when: float, back: float) -> int:
        return 1 + sum(verdict > when for verdict in [*self.verdicts[1:], back][:-1])

    def drop(self, plan: RoundPlan, back: float) -> None:
        """The verdict is not what those behind the next one assume."""
        sent, depth = self.next, min(plan.depth, self.world.most)
        for others in range(self.others + 1, depth):
            if sent is None or (sent := sent + self.world.whole(plan.draft_tokens)) >= back:
                return
            self.planner.observe_ahead(False, others)


def decode(
    world: World, planner: AdaptivePlanner | FixedPlanner, times: Times, tokens: int, start: int = 0
) -> list[float]:
    """The virtual time at which each token was emitted."""
    now, done, calls = 0.0, 0, start
    arrivals: list[float] = []
    gap = 0.0
    """Seconds that were left to prepare; 0: nothing was prepared."""
    flights = Flights(world, planner)
    deeper = False
    """Whether more than one was to be in flight."""
    whole = False
    """Whether all of the last draft was accepted: only then what was sent behind the next verification is of use."""
    while done < tokens:
        plan = planner.plan(times)
        if plan.draft_tokens == 0:
            for _ in range(min(plan.plain_tokens, tokens - done)):
                took = world.noisy(world.plain)
                times.steps.observe_plain(1 + world.others, took)
                planner.observe_plain(1)
                now, done = now + took, done + 1
                arrivals.append(now)
            gap, flights = 0.0, Flights(world, planner)
            continue
        calls += 1
        failed = world.stalls(calls)
        draft = world.deadline if failed else world.noisy(world.draft(plan))
        fits = (world.hit or 0.0) * (1.0 - world.misses_beyond * deeper)
        foreseen = gap > 0.0 and not failed and world.rng.random() < fits
        followed = flights.came(foreseen)
        most = max(plan.draft_tokens, plan.prepared_tokens)
        prepared = 0
        if followed:
            prepared = flights.soon
            plan = replace(plan, draft_tokens=prepared)
            draft = 0.0
        elif foreseen and (prepared := min(world.prepares(gap), most)):
            plan = replace(plan, draft_tokens=max(plan.draft_tokens, prepared))
            draft = world.noisy(world.fixed + world.per_token * (plan.draft_tokens - prepared))
        drafted = 0 if failed else plan.draft_tokens
        accepted, gain = (0, 0) if failed else world.accepted(plan, done)
        # Further candidates branch off half-way.
        rows = 1 + drafted + (plan.num_candidates - 1) * ((drafted + 1) // 2)
        engine = world.noisy(world.verify(rows)) * (world.shared if plan.lookahead else 1.0)
        sent = now + draft
        way = world.round_trip / 2
        if followed and flights.next is not None:
            sent = flights.next
            wall = max(now - way, sent + way) + engine + way - now
            times.steps.observe_followed(rows, rows + world.rows_beside, engine)
        else:
            wall = engine + world.round_trip
            times.steps.observe_verify(rows, rows + world.rows_beside, engine, wall)
        late = followed and (plan.depth <= 2 or not whole)
        back = now + draft + wall
        flights.verdicts = [*flights.verdicts, now][1 - world.most :] if followed and whole else [now]
        flights.send(replace(plan, draft_tokens=max(1, most)), now if late else sent, late, engine, back)
        whole = accepted == drafted
        if not whole and plan.depth > 2:
            flights.drop(plan, back)
        if not failed and not followed:
            times.of(gap > 0.0).drafts.observe(plan.draft_tokens - prepared, draft, plan.num_candidates)
        planner.observe(
            RoundOutcome(
                asked=plan.draft_tokens,
                num_candidates=plan.num_candidates,
                drafted=drafted,
                accepted=accepted,
                emitted=accepted + 1,
                gain=gain,
                draft_seconds=draft,
                draft_failed=failed,
                verify_seconds=wall,
                rows=rows,
                lookahead=plan.lookahead,
                looked_ahead=gap > 0.0,
                prepared=prepared,
            ),
            times,
        )
        gap, deeper = (wall if plan.lookahead else 0.0), min(plan.depth, world.most) > 2
        now, done = back, done + accepted + 1
        arrivals += [now] * (accepted + 1)
    return arrivals


def adaptive(
    pair: PairState | None = None, draft_tokens: int = 5, most: int = 8, num_candidates: int = 1
) -> AdaptivePlanner:
    return AdaptivePlanner(pair or PairState(), draft_tokens, most, num_candidates)


def with_lookahead(mode: OnOffAuto) -> AdaptivePlanner:
    return adaptive(PairState(lookahead=SharedLookahead(mode)))


def speed_up(world: World, arrivals: list[float], first: int, last: int) -> float:
    """Against plain decoding, over tokens `first` to `last`."""
    return (last - first) * world.plain / (arrivals[last - 1] - arrivals[first - 1])
