"""The target's side of one request: verification and plain generation that survive the loss of a worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, aclosing, asynccontextmanager

from protocol.messages import Candidate, GenerateRequest, TargetSpeculation, VerifyRequest, VerifyResponse
from protocol.worker_info import ModelInfo
from server.errors import NoTarget
from server.fleet.failures import Busy, Refused, SessionLost, TooLate, WorkerFailure
from server.fleet.pool import Pool
from server.fleet.times import StepTimes
from server.fleet.worker import Worker
from server.rounds.context import RequestContext, WorkerSession
from server.rounds.flight import Flights, Preparing
from server.rounds.recovery import Patience, Recovery, RetryBudget

_MODEL_SECONDS = 2.0
_MAX_RESENDS = 2


class TargetSide:
    """Sessions on the pool's targets, one of them in use.

    After the first token only targets of the same fingerprint may go on. Raises server.errors.NoTarget or Overloaded
    when patience ends, and the worker's own WireError if it refuses what is asked.
    """

    def __init__(
        self,
        context: RequestContext,
        pool: Pool,
        budget: RetryBudget,
        patience: Patience,
        fits: Callable[[ModelInfo], bool] = lambda info: True,
    ) -> None:
        """`fits`: whether a target can do what the request needs."""
        self._context = context
        self._pool = pool
        self._fits = fits
        self._call_seconds = patience.call
        self._recovery = Recovery(patience, budget)
        self._sessions: dict[Worker, WorkerSession] = {}
        self._current: WorkerSession | None = None
        self._stack = ExitStack()
        self._fingerprint: str | None = None
        self._avoid: set[Worker] = set()
        self._flights: Flights | None = None

    @property
    def step_times(self) -> StepTimes:
        """Those of the worker in use."""
        return self._current.worker.step_times if self._current is not None else StepTimes(())

    def require(self, fits: Callable[[ModelInfo], bool]) -> None:
        """From now on only targets that fit this too may serve the request."""
        before = self._fits
        self._fits = lambda info: before(info) and fits(info)

    async def info(self) -> ModelInfo:
        """What the target in use reports of itself; opens a session on one if there is none yet."""
        session = await self._session()
        session.worker.breaker.release()
        assert session.worker.info is not None
        return session.worker.info

    async def verify(
        self, candidates: list[Candidate], max_tokens: int, preparing: Preparing | None = None
    ) -> tuple[VerifyResponse, float]:
        """One round, and the seconds that its successful call took.

        With `preparing` the next ones are sent before the verdict is back, to a target that can hold them.
        """
        if self._flights is not None:
            self._flights.give_up()
        self._flights = None
        request = self._context.request
        repeat: WorkerSession | None = None
        while True:
            session = await self._session()
            if session is not repeat:
                session.round += 1
            repeat = session
            length = len(self._context.sequence)
            seconds = self._call_seconds
            message = VerifyRequest(
                **session.fields(max_tokens, seconds),
                candidates=candidates,
                strategy=request.speculation.strategy,
                acceptance_threshold=request.speculation.acceptance_threshold,
                logprobs=request.logprobs,
                log_decisions=request.log_decisions,
            )
            began = time.perf_counter()
            self._send_ahead(session, session.round, max_tokens, preparing)
            try:
                with session.worker.judged():
                    async with self._unless_down(session.worker):
                        answer = await session.worker.client.verify(message, seconds, self._vocabulary_size(session))
            except WorkerFailure as failure:
                self._drop_flights()
                await self._recover(session, failure)
                if isinstance(failure, SessionLost) and failure.reason != "context_mismatch":
                    repeat = None
                continue
            took = time.perf_counter() - began
            overhead = max(0.0, took - answer.timings.total_ms / 1000)
            self._context.metrics.round_trip.labels("target").observe(overhead)
            self._succeeded(session, length)
            return answer, took

    def foreseen(self) -> tuple[Candidate, int] | None:
        """The draft whose verification was sent before the last verdict, if it was for what that turned out to be; and
        how long it was to be."""
        found = self._flights.foreseen() if self._flights is not None else None
        if found is None:
            self._flights = None
        return found

    def flies_on(self, wanted: bool) -> bool:
        """Whether more is in flight beyond what was `foreseen`, or about to be; unless that is `wanted` it ends."""
        return self._flights is not None and self._flights.go_on(wanted)

    async def follow(self, max_tokens: int, preparing: Preparing | None = None) -> tuple[VerifyResponse, float] | None:
        """The verdict on the draft that was `foreseen`, and the seconds it was waited for; None: ask as ever.

        `preparing`: as nothing `flies_on`.
        """
        flights = self._flights
        if flights is None:
            return None
        session, length = flights.session, len(self._context.sequence)
        began = time.perf_counter()
        if preparing is not None:
            self._flights = None
            self._send_ahead(session, flights.next_round, max_tokens, preparing)
        answer: VerifyResponse | None = None
        try:
            async with self._unless_down(session.worker):
                answer = await flights.answer()
        except TooLate:
            pass
        finally:
            if answer is None:
                flights.cancel()
                self._drop_flights()
        if answer is None:
            return None
        session.worker.breaker.success()
        self._succeeded(session, length)
        return answer, time.perf_counter() - began

    async def generate(
        self, max_tokens: int, speculation: TargetSpeculation | None = None
    ) -> AsyncIterator[tuple[VerifyResponse, float]]:
        """`max_tokens` tokens or fewer, round by round, each with the seconds it was waited for.

        The caller must append each round's tokens to the sequence before it asks for the next.
        """
        remaining = max_tokens
        while remaining > 0:
            session = await self._session()
            session.round += 1
            length = len(self._context.sequence)
            # A target that takes over may be unable to draft for itself: it decodes plainly, with the same text.
            info = session.worker.info
            drafts = info is not None and "target" in info.capabilities.rounds
            message = GenerateRequest(
                **session.fields(remaining, self._call_seconds),
                logprobs=self._context.request.logprobs,
                speculation=speculation if drafts else None,
            )
            stream = session.worker.client.generate(message, self._call_seconds, self._vocabulary_size(session))
            began = time.perf_counter()
            try:
                with session.worker.judged():
                    async with aclosing(stream):  # type: ignore[type-var]
                        while True:
                            async with self._unless_down(session.worker):
                                answer = await anext(stream, None)
                            if answer is None:
                                break
                            took = time.perf_counter() - began
                            session.worker.breaker.success()  # at each round: streams end late, or are cut
                            remaining -= len(answer.token_ids)
                            self._succeeded(session, length)
                            yield answer, took
                            if answer.stop_reason == "stop_token":
                                remaining = 0
                            began = time.perf_counter()
            except WorkerFailure as failure:
                await self._recover(session, failure)

    def close(self) -> None:
        """Free all sessions; does not wait."""
        self._drop_flights()
        self._stack.close()
        for session in self._sessions.values():
            self._context.delete(session)
        self._sessions.clear()
        self._current = None

    def _send_ahead(self, session: WorkerSession, follows: int, max_tokens: int, preparing: Preparing | None) -> None:
        info = session.worker.info
        if preparing is None or info is None or not info.capabilities.follows:
            return
        size = self._vocabulary_size(session)
        self._flights = Flights(self._context, session, follows, preparing, max_tokens, self._call_seconds, size)

    def _drop_flights(self) -> None:
        """End what was sent ahead; its rounds have been used."""
        flights, self._flights = self._flights, None
        if flights is not None:
            flights.cancel()
            flights.session.round += flights.sent

    async def _session(self) -> WorkerSession:
        """A session on a worker that may be called: its breaker has allowed one call, or there is no other worker."""
        current = self._current
        stay = current is not None and current.worker not in self._avoid and self._accepts(current.worker)
        if stay and current is not None and current.worker.breaker.allow():
            return current
        while True:
            prefixes = self._context.sequence.prefixes()
            worker = self._pool.pick(self._accepts, prefixes, self._avoid)
            if worker is None or not worker.breaker.allow():
                # An open breaker keeps work away while others can do it. If there is no other, it is asked anyway: the
                # pauses between tries bound what that costs.
                worker = self._pool.last_resort(self._accepts)
            if worker is not None:
                self._pool.remember(prefixes, worker)
                return self._open(worker)
            await self._wait_for_worker()

    @asynccontextmanager
    async def _unless_down(self, worker: Worker) -> AsyncIterator[None]:
        """Ends the wait for an answer, with TooLate, if the worker is found down and another one could go on.

        A frozen worker keeps its connections: before the deadline only unanswered probes reveal it.
        """
        events = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as limit:

                def give_up() -> None:
                    if any(other is not worker and other.usable and self._accepts(other) for other in self._pool):
                        limit.reschedule(events.time())

                with worker.when_missing(give_up):
                    yield
        except TimeoutError:
            raise TooLate(f"{worker.url} is down: {worker.detail}") from None

    def _open(self, worker: Worker) -> WorkerSession:
        if self._current is None or self._current.worker is not worker:
            self._stack.close()
            self._stack.enter_context(worker.in_use())
        session = self._sessions.get(worker)
        if session is None:
            session = self._sessions[worker] = WorkerSession(worker, self._context.request, self._context.sequence)
        self._current = session
        return session

    def _accepts(self, worker: Worker) -> bool:
        info = worker.info
        if worker.state != "ready" or info is None or not self._fits(info):
            return False
        return self._fingerprint in (None, info.fingerprint)

    def _vocabulary_size(self, session: WorkerSession) -> int:
        info = session.worker.info
        assert info is not None
        assert info.vocabulary is not None  # a target without one is not admitted
        return info.vocabulary.logits_size

    def _succeeded(self, session: WorkerSession, length: int) -> None:
        assert session.worker.info is not None
        self._fingerprint = session.worker.info.fingerprint
        session.acknowledge(length)
        self._recovery.succeeded()
        self._avoid.clear()

    async def _recover(self, session: WorkerSession, failure: WorkerFailure) -> None:
        """Prepare to repeat the call, or raise the error that the client gets."""
        if isinstance(failure, Refused):
            raise failure.refusal() from failure
        # Its traceback has frames of this request, which keeps it: a cycle.
        self._recovery.failures.append(failure.with_traceback(None))
        if isinstance(failure, SessionLost):
            self._context.metrics.resends.labels("target", failure.reason).inc()
            session.forget()
            if sum(isinstance(f, SessionLost) for f in self._recovery.failures) <= _MAX_RESENDS:
                await self._still_the_same(session.worker)
                return
            session.worker.breaker.failure()
        if isinstance(failure, SessionLost | Busy):
            session.worker.count(failure)
        self._avoid.add(session.worker)
        self._context.metrics.retries.labels("target").inc()
        others = any(w.usable and self._accepts(w) and w not in self._avoid for w in self._pool)
        await self._recovery.before_retry(failure, others)

    async def _still_the_same(self, worker: Worker) -> None:
        """A worker that has lost a session may have been restarted, with other weights: ask before it goes on."""
        if self._fingerprint is None:
            return
        try:
            info: ModelInfo | None = await worker.client.model(_MODEL_SECONDS)
        except WorkerFailure:
            info = None
        if info is None or info.fingerprint != self._fingerprint:
            worker.set_state("down", "was restarted")
            worker.look_again.set()

    async def _wait_for_worker(self) -> None:
        hope = any(worker.look_again.is_set() or worker.lately_ready for worker in self._pool)
        if not hope and not self._recovery.begun and not self._recovery.failures:
            raise NoTarget("no target worker is ready")
        self._recovery.check()
        await self._pool.changed(0.25)
