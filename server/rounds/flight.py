"""Verifications that are sent while the one before them is under way (docs/lookahead.md)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from protocol.messages import Alternative, Candidate, VerifyRequest, VerifyResponse
from server.fleet.checks import check_verify
from server.fleet.failures import BadAnswer, WorkerFailure
from server.rounds.context import RequestContext, WorkerSession
from server.rounds.draft import Ahead, Draft
from server.rounds.draft_side import DraftSide
from server.rounds.padded_rows import cut
from server.rounds.sequence import Assumed

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Preparing:
    """How the draft worker is asked for what is sent ahead: drafts of `least` to `most` tokens.

    `drafted` is being verified; `until` is how long the first may take, on time.perf_counter's clock, and `drafting`
    the call, if one is under way, by which the worker is told. `depth` verifications may be under way at a time: what
    follows one that is in flight is asked for with `ahead`, within `seconds`, and may take `each` to be prepared.
    `observe` learns of each whether it was of use, and how many others were under way when it was sent.
    """

    drafts: DraftSide
    drafted: list[int]
    until: float
    least: int
    most: int
    observe: Callable[[bool, int], None]
    depth: int
    ahead: Ahead
    seconds: float
    each: float
    drafting: asyncio.Task[Draft] | None = None

    async def first(self) -> list[Alternative]:
        """What the verdict under way may be, each with its draft; none if there is nothing to send. Never raises."""
        if self.drafting is not None:
            await asyncio.wait({self.drafting})
        return await self.alternatives(self.until)

    async def alternatives(self, until: float) -> list[Alternative]:
        """What the verdict on the last draft may be, as far as that is prepared by then."""
        found = await self.drafts.prepared(until - time.perf_counter())
        return [
            Alternative(token_ids=one.token_ids, candidate=cut(one.candidate, self.most))
            for one in (prepared.alternative for prepared in found if prepared.at_least(self.least))
        ]

    async def goes_on(self, candidate: Candidate, assumed: Assumed, room: int) -> bool:
        """Have what follows `candidate`, a draft after a text that is only assumed, prepared; whether that is so."""
        tokens = len(candidate.token_ids)
        draft = await self.drafts.draft(tokens, 1, room, self.seconds, ahead=self.ahead, assumed=assumed)
        return bool(draft.candidates) and draft.candidates[0].token_ids == candidate.token_ids


class Flight:
    """One that was sent: the target holds it until the verdict before. Whatever fails here costs what was to be gained:
    an ordinary round does the same."""

    def __init__(
        self,
        context: RequestContext,
        session: WorkerSession,
        follows: int,
        assumed: Assumed,
        alternatives: list[Alternative],
        max_tokens: int,
        seconds: float,
        vocabulary_size: int,
    ) -> None:
        """`assumed`: the text, up to where the verification that it follows goes on. `max_tokens`: from there on."""
        self._context = context
        self._session = session
        self._length = assumed.length
        self._seconds = seconds
        self._vocabulary_size = vocabulary_size
        request = context.request
        session.round += 1
        fields = session.fields(max_tokens, seconds)
        self._message = VerifyRequest(
            **{**fields, "context": context.sequence.held(assumed)},
            follows=follows,
            alternatives=alternatives,
            strategy=request.speculation.strategy,
            acceptance_threshold=request.speculation.acceptance_threshold,
            logprobs=request.logprobs,
            log_decisions=request.log_decisions,
        )
        self._task = context.background.start(self._send())

    @property
    def round(self) -> int:
        return self._message.round

    def alternative(self) -> Alternative | None:
        """The one that came true: to be asked when the verdict has been appended to the sequence, and nothing else."""
        came = self._context.sequence.since(self._length)
        return next((one for one in self._message.alternatives if one.token_ids == came), None)

    async def answer(self, alternative: Alternative) -> VerifyResponse | None:
        """The verdict on the alternative that came true; None if the target has none to give."""
        await asyncio.wait({self._task})
        failed = self._task.cancelled() or self._task.exception() is not None  # the task's owner logs the reason
        answer = self._task.result() if not failed else None
        asked = self._message.following(alternative)
        if answer is None or asked is None:
            return None
        try:
            if answer.candidate != self._message.alternatives.index(alternative):
                raise BadAnswer("follows an alternative that did not come true")
            answer = answer.model_copy(update={"candidate": 0})
            check_verify(asked, answer, self._vocabulary_size)
        except BadAnswer as failure:
            self._session.worker.failed(failure)
            return None
        return answer

    def cancel(self) -> None:
        """End it: the request is over, or the call that it follows has failed."""
        self._task.cancel()

    async def _send(self) -> VerifyResponse | None:
        try:
            return await self._session.worker.client.verify(self._message, self._seconds, self._vocabulary_size)
        except WorkerFailure as failure:
            log.debug("round %d was not verified ahead: %s", self._message.round, failure.message)
            return None


class Flights:
    """What is in flight on a session: the first follows the round under way, each other one the one before it.

    Each is sent once it is prepared, and the next is prepared for what the likeliest of its alternatives, that all is
    accepted, leads to. If that fails, what was sent behind is `over`: the target never begins it.
    """

    def __init__(
        self,
        context: RequestContext,
        session: WorkerSession,
        follows: int,
        preparing: Preparing,
        max_tokens: int,
        seconds: float,
        vocabulary_size: int,
    ) -> None:
        """`follows`: the round under way."""
        info = session.worker.info
        holds = info.capabilities.holds if info is not None else 1
        self._context = context
        self.session = session
        self._preparing = preparing
        self._depth = min(preparing.depth, 1 + holds) if preparing.drafts.assumes else 2
        self._end = len(context.sequence) + max_tokens
        self._seconds = seconds
        self._vocabulary_size = vocabulary_size
        self._held: deque[tuple[int, Flight]] = deque()
        """Those whose verdict is not used yet, and how many others were under way when they were sent."""
        self._assumed = Assumed(len(context.sequence), [])
        self._over = False
        self._room = asyncio.Event()
        self._round = session.round
        self._sending = context.background.start(self._send(follows))

    @property
    def sent(self) -> bool:
        """Whether any round has been used."""
        return self.session.round != self._round

    @property
    def next_round(self) -> int:
        """That of what was `foreseen`."""
        return self._held[0][1].round

    def go_on(self, wanted: bool) -> bool:
        """Whether there are more beyond the next, or may be. Unless that is `wanted` they end."""
        if not wanted and not self._over:
            for _, flight in list(self._held)[1:]:
                flight.cancel()
            self._give_up_behind(1)
        return not self._over and (len(self._held) > 1 or not self._sending.done())

    def foreseen(self) -> tuple[Candidate, int] | None:
        """The draft of the next one, if it was for what the verdict turned out to be, and how long it was to be; what
        assumed another verdict is over."""
        alternative = self._held[0][1].alternative() if self._held else None
        if alternative is None:
            if not self._held:
                self._preparing.observe(False, 1)
            self.give_up()
            return None
        if not self._assumed.holds(self._context.sequence):
            self._give_up_behind(1)
        return alternative.candidate, self._preparing.most

    async def answer(self) -> VerifyResponse | None:
        """The verdict of the next one, on what was `foreseen`; None if the target has none to give."""
        others, flight = self._held.popleft()
        self._room.set()
        alternative = flight.alternative()
        answer: VerifyResponse | None = None
        try:
            answer = await flight.answer(alternative) if alternative is not None else None
        finally:
            if answer is None:
                flight.cancel()
            self._count(others, answer is not None)
        return answer

    def give_up(self) -> None:
        """They are of no use any more. Each ends with its answer, so that its connection stays."""
        self._give_up_behind(0)

    def cancel(self) -> None:
        """End all: the request is over, or a call that they follow has failed. That says nothing of their use."""
        self._sending.cancel()
        for _, flight in self._held:
            flight.cancel()
        self._held.clear()
        self._over = True

    def _give_up_behind(self, count: int) -> None:
        self._over = True
        self._room.set()
        while len(self._held) > count:
            self._count(self._held.pop()[0], False)

    def _count(self, others: int, used: bool) -> None:
        self._preparing.observe(used, others)
        metrics = self._context.metrics
        metrics.verifications_ahead.labels("used" if used else "discarded").inc()
        if used:
            metrics.verifications_beyond.labels(str(others)).inc()

    async def _send(self, follows: int) -> None:
        """Send one after the other, as long as there is something to send."""
        sequence, preparing = self._context.sequence, self._preparing
        drafted, last = preparing.drafted, self._round
        alternatives = await preparing.first()
        while alternatives and not self._over and self.session.round == last:
            assumed = self._assumed
            room = self._end - assumed.length
            if not (len(sequence) <= assumed.length and assumed.holds(sequence)) or room < 2:
                return  # the verdict that it would follow is there already
            flight = Flight(
                self._context, self.session, follows, assumed, alternatives, room, self._seconds, self._vocabulary_size
            )
            self._held.append((len(self._held) + 1, flight))
            follows = last = flight.round
            likeliest = next((one for one in alternatives if one.token_ids[:-1] == drafted), None)
            if self._depth <= 2 or likeliest is None or room - len(likeliest.token_ids) < 2:
                return
            self._assumed = assumed.then(likeliest.token_ids)
            drafted = likeliest.candidate.token_ids
            if not await preparing.goes_on(likeliest.candidate, self._assumed, self._end - self._assumed.length):
                return
            until = time.perf_counter() + preparing.each
            while len(self._held) >= self._depth - 1 and not self._over:
                self._room.clear()
                await self._room.wait()
            if self._over:
                return
            alternatives = await preparing.alternatives(until)
