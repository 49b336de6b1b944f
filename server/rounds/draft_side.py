"""The draft worker's side of one request. Whatever happens here costs drafts, never text."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack, suppress
from typing import Any, Literal

from basics.names import AUTO, CACHE, LOOKUP, MODEL
from protocol.errors import WireError
from protocol.messages import Candidate, DraftRequest, DraftResponse, Prediction
from protocol.prepared import Prepared, PreparedRequest
from protocol.worker_info import Capabilities
from server.fleet.failures import BadAnswer, Busy, Refused, SessionLost, WorkerFailure
from server.fleet.pool import Pool
from server.fleet.times import DraftTimes
from server.fleet.worker import Worker
from server.rounds.context import RequestContext, WorkerSession
from server.rounds.draft import Ahead, Draft, as_drawn
from server.rounds.history import remember
from server.rounds.padded_rows import rows_of_either, within
from server.rounds.sequence import Assumed

State = Literal["ready", "reading", "absent"]

# Contexts up to this many tokens are read by the draft call itself; longer ones in the background first.
READ_AHEAD = 256
_PREPARED_SLACK = 1.0


class DraftSide:
    """A session on one of the pool's draft workers, which reads the context in the background.

    `ready`: a draft may be asked for; `reading`: the worker reads, nothing waits for it; `absent`: `read` may find a
    worker.
    """

    def __init__(
        self,
        context: RequestContext,
        pool: Pool,
        vocabulary_size: int,
        read_seconds: float,
        draft_model: str | None = None,
        needs_q: bool = False,
        history: str | None = None,
    ) -> None:
        """`vocabulary_size` counts the target's logits; `draft_model` is the worker's drafter to use, if not its own
        default; `needs_q`: the strategy judges by the distribution that each token was drawn from; `history`: whose
        answers to draft from, and to add this one to (server/rounds/history.py)."""
        self._context = context
        self._pool = pool
        self._vocabulary_size = vocabulary_size
        self._read_seconds = read_seconds
        self._draft_model = draft_model
        self._needs_q = needs_q
        self._session: WorkerSession | None = None
        self._stack = ExitStack()
        self._reading: asyncio.Task[None] | None = None
        self._waited = False
        self._not_before = 0.0
        self._useless = False
        self._prediction_sent = False
        self._history = history
        self._verify_seconds: list[float] | None = None
        self._ahead = Ahead()
        self._verifying: list[int] | None = None
        self._assumed: Assumed | None = None
        self._one_at_a_time = asyncio.Lock()
        self._told_at = 0
        self._told: list[Prepared] = []

    @property
    def worker(self) -> Worker | None:
        """Where the session lives; None if there is none."""
        return self._session.worker if self._session is not None else None

    @property
    def times(self) -> DraftTimes:
        """The times of the worker in use, or of the one that would be used."""
        worker = self.worker or self._pick()
        return worker.draft_times if worker is not None else DraftTimes(())

    @property
    def ahead_times(self) -> DraftTimes | None:
        """The times of calls after lookahead; None if the worker does not look ahead."""
        worker = self.worker or self._pick()
        return worker.ahead_times if worker is not None and self._looks_ahead(worker) else None

    @property
    def tells(self) -> bool:
        """Whether the worker says what it has prepared, or would choose then."""
        able = self.worker.info.capabilities if self.worker is not None and self.worker.info is not None else None
        return able is not None and (able.chooses_ahead if self._chooses(able) else able.prepared)

    @property
    def assumes(self) -> bool:
        """Whether the worker drafts after what is only assumed."""
        able = self.worker.info.capabilities if self.worker is not None and self.worker.info is not None else None
        return able is not None and able.assumes and not self._chooses(able)

    @property
    def extends(self) -> bool:
        """Whether a draft that is prepared may be longer than asked. Not where q is wanted (docs/exactness.md)."""
        info = self.worker.info if self.worker is not None else None
        return info is not None and info.capabilities.prepared_tokens and not self._needs_q

    @property
    def state(self) -> State:
        if self._reading is not None and not self._reading.done():
            return "reading"
        return "ready" if self._session is not None else "absent"

    @property
    def unread(self) -> int:
        """Tokens of the context that the worker has yet to read."""
        held = self._session.acknowledged if self._session is not None else 0
        return len(self._context.sequence) - held

    def read(self, verify_seconds: list[float] | None = None) -> None:
        """Have the worker read the context so far, in the background; does nothing if there is no worker to ask.

        `verify_seconds`: by these a worker that chooses knows whether its model is worth reading it.
        """
        if self.state == "reading" or not self._open():
            return
        self._verify_seconds = verify_seconds
        self._waited = False
        self._reading = self._context.background.start(self._read())

    async def until_read(self, seconds: float) -> None:
        """Wait for the background reading, for at most this long, and only once per reading."""
        if self._reading is not None and not self._waited:
            self._waited = True
            await asyncio.wait({self._reading}, timeout=seconds)

    async def draft(
        self,
        draft_tokens: int,
        num_candidates: int,
        max_tokens: int,
        seconds: float,
        verify_seconds: list[float] | None = None,
        ahead: Ahead | None = None,
        verifying: list[int] | None = None,
        assumed: Assumed | None = None,
    ) -> Draft:
        """γ tokens after the context. Never raises; a worker that does not answer within `seconds` has failed.

        With `verify_seconds` (DraftRequest's) a worker that can chooses the drafter, and a length of at most γ. `ahead`
        only for workers that look ahead. `verifying`: of what was `told`, the draft whose verification is under way.
        `assumed`: the context goes on like that, only for workers that take it.
        """
        async with self._one_at_a_time:
            self._verify_seconds = verify_seconds
            self._ahead = ahead or Ahead()
            self._verifying, self._assumed = verifying, assumed
            return await self._drafted(draft_tokens, num_candidates, max_tokens, seconds)

    async def _drafted(self, draft_tokens: int, num_candidates: int, max_tokens: int, seconds: float) -> Draft:
        began = time.perf_counter()
        if self.state != "ready":
            return Draft.none()
        if not self._fits():
            if self._assumed is None:
                self._useless = True  # and will be for the rest of this request
                self._drop()
            return Draft.none()
        try:
            answer = await self._call(draft_tokens, num_candidates, max_tokens, seconds)
        except WorkerFailure:
            return Draft.none(time.perf_counter() - began, failed=True)
        took = time.perf_counter() - began
        timings = answer.timings
        self._context.metrics.round_trip.labels("draft").observe(max(0.0, took - timings.total_ms / 1000))
        candidates = [candidate for candidate in answer.candidates if candidate.token_ids]
        parts, prepared = as_drawn([(part.source, part.tokens) for part in answer.parts])
        return Draft(
            candidates,
            MODEL if answer.source == CACHE else answer.source,
            timings.total_ms,
            timings.sample_ms,
            took,
            failed=False,
            planned=answer.planned,
            parts=parts,
            prepared=prepared,
        )

    async def prepared(self, seconds: float) -> list[Prepared]:
        """What the worker has prepared for the outcomes of the last draft's verification, after so long at most.

        Never raises; nothing from a worker that can't tell, or that drafts in ids which the target has no row for.
        """
        session, length = self._session, len(self._context.sequence)
        info = session.worker.info if session is not None else None
        if session is None or info is None or not self.tells:
            return []
        if not self._ahead.tokens and not self._chooses(info.capabilities):
            return []
        if rows_of_either(self._vocabulary_size, info) > self._vocabulary_size:
            return []
        wait_ms = min(10_000, max(0, int(1000 * seconds)))
        request = PreparedRequest(session_id=session.id, round=session.round, wait_ms=wait_ms)
        try:
            found = await session.worker.client.prepared(
                request, wait_ms / 1000 + _PREPARED_SLACK, self._vocabulary_size
            )
        except WorkerFailure as failure:
            session.worker.count(failure)
            return []
        if len(self._context.sequence) == length:
            self._told_at, self._told = length, found
        return found

    def told(self, candidate: Candidate) -> Prepared | None:
        """What the worker said last of this draft, which is for what has come since; None if nothing of the kind."""
        came = self._context.sequence.since(self._told_at)
        found = next((one for one in self._told if one.alternative.token_ids == came), None)
        same = found is not None and found.alternative.candidate.token_ids == candidate.token_ids
        return found if same and found is not None and found.planned is not None else None

    def disown(self, error: WireError) -> None:
        """The target refused what was drafted: the worker's failure, and the last draft of this request."""
        if self._session is not None:
            self._session.worker.failed(BadAnswer(f"the target refused its draft: {error.field}: {error.message}"))
        self._useless = True
        self._drop()

    def close(self) -> None:
        """Stop reading, free the session and have the answer remembered; does not wait."""
        if self._reading is not None:
            self._reading.cancel()
        worker = self.worker or self._pick()
        if self._history is not None and worker is not None:
            remember(self._context, worker, self._history)
        self._drop()

    async def _read(self) -> None:
        with suppress(WorkerFailure):
            await self._call(0, 1, 1, self._read_seconds)

    async def _call(self, draft_tokens: int, num_candidates: int, max_tokens: int, seconds: float) -> DraftResponse:
        """One draft call, repeated with all the context if the worker lost the session. Any other failure drops it."""
        session = self._session
        if session is None or session.worker.state != "ready" or not session.worker.breaker.allow():
            self._drop()
            raise WorkerFailure("left_alone", "the worker is down or its breaker open")
        session.round += 1
        try:
            with session.worker.judged(proves=draft_tokens > 0):
                return await self._exchange(session, draft_tokens, num_candidates, max_tokens, seconds)
        except SessionLost:
            self.read(self._verify_seconds)  # the context is too long to read again while the target waits
            raise
        except WorkerFailure as failure:
            self._learn_from(failure, session.worker)
            self._drop()
            raise

    async def _exchange(
        self, session: WorkerSession, draft_tokens: int, num_candidates: int, max_tokens: int, seconds: float
    ) -> DraftResponse:
        give_up = time.monotonic() + seconds
        try:
            return await self._ask(session, draft_tokens, num_candidates, max_tokens, seconds)
        except SessionLost as failure:
            self._lost(session, failure)
            if draft_tokens and len(self._context.sequence) > READ_AHEAD:
                raise
        left = max(0.001, give_up - time.monotonic())
        try:
            return await self._ask(session, draft_tokens, num_candidates, max_tokens, left)
        except SessionLost as failure:
            session.worker.look_again.set()  # it may have restarted, and have to learn the target's ids again
            raise WorkerFailure("session_lost", failure.message) from failure

    async def _ask(
        self, session: WorkerSession, draft_tokens: int, num_candidates: int, max_tokens: int, seconds: float
    ) -> DraftResponse:
        sequence = self._context.sequence
        length = len(sequence)
        fields = session.fields(max_tokens, seconds) | self._asked(session, draft_tokens, num_candidates)
        if self._assumed is not None and draft_tokens:
            beyond = self._assumed.beyond(sequence)
            fields |= {"context": sequence.context(session.acknowledged, beyond), "assumed_tokens": len(beyond)}
        request = DraftRequest(**fields)
        rows = rows_of_either(self._vocabulary_size, session.worker.info)
        answer = await session.worker.client.draft(request, seconds, rows)
        session.acknowledge(length)
        self._prediction_sent = True
        return within(answer, self._vocabulary_size) if rows > self._vocabulary_size else answer

    def _lost(self, session: WorkerSession, failure: SessionLost) -> None:
        self._context.metrics.resends.labels("draft", failure.reason).inc()
        session.forget()
        self._prediction_sent = False
        if failure.reason != "context_mismatch":
            session.round += 1

    def _asked(self, session: WorkerSession, draft_tokens: int, num_candidates: int) -> dict[str, Any]:
        request = self._context.request
        speculation = request.speculation
        info = session.worker.info
        prediction = request.prediction
        if self._prediction_sent or info is None or not info.capabilities.prediction or not prediction:
            prediction = None
        translation, own = session.worker.translation, request.own_prompt
        if (
            self._prediction_sent
            or own is None
            or session.worker.tokenizer is None
            or translation is None
            or session.worker.tokenizer.model_id != own.draft
        ):
            own = None
        auto = num_candidates == 1 and info is not None and self._chooses(info.capabilities)
        chooses = auto and draft_tokens > 0
        tells = chooses and self.tells
        ahead = self._ahead if draft_tokens and self._looks_ahead(session.worker) else Ahead()
        extends = self.extends and not chooses
        return {
            "draft_model": None if self._draft_model == AUTO and not chooses else self._draft_model,
            "verify_seconds": self._verify_seconds if auto else None,
            "draft_tokens": draft_tokens,
            "lookahead_tokens": ahead.tokens,
            "prepared_tokens": ahead.most if extends else 0,
            "lookahead_seconds": ahead.seconds if self.assumes else None,
            "flight_seconds": ahead.flight_seconds if extends or tells else 0.0,
            "verifying": self._verifying if tells else None,
            "num_candidates": num_candidates,
            "candidate_temperature": speculation.candidate_temperature,
            "candidate_top_p": speculation.candidate_top_p,
            "want_q": self._needs_q and draft_tokens > 0,
            "prediction": Prediction(token_ids=prediction) if prediction is not None else None,
            "vocabulary": translation.vocabulary if translation is not None else None,
            "own_prompt": own.text if own is not None else None,
            "history": self._history if chooses and info is not None and info.capabilities.history else None,
        }

    def _chooses(self, able: Capabilities) -> bool:
        return self._draft_model == AUTO and able.auto

    def _looks_ahead(self, worker: Worker) -> bool:
        info = worker.info
        return info is not None and info.capabilities.lookahead and self._draft_model != LOOKUP

    def _fits(self) -> bool:
        """Whether the draft model's own context has room for a token; the worker cuts γ to what there is."""
        info = self._session.worker.info if self._session is not None else None
        length = len(self._context.sequence) if self._assumed is None else self._assumed.length
        return info is not None and length < info.context_length

    def _pick(self) -> Worker | None:
        if self._useless or time.monotonic() < self._not_before:
            return None
        return self._pool.pick(self._can_serve, self._context.sequence.prefixes())

    def _can_serve(self, worker: Worker) -> bool:
        if worker.info is None or worker.info.context_length <= len(self._context.sequence):
            return False
        return worker.info.capabilities.q or not self._needs_q

    def _open(self) -> bool:
        if self._session is None:
            worker = self._pick()
            if worker is None:
                return False
            self._stack.enter_context(worker.in_use())
            self._session = WorkerSession(worker, self._context.request, self._context.sequence)
            self._prediction_sent = False
        return True

    def _drop(self) -> None:
        session, self._session = self._session, None
        self._stack.close()
        if session is not None:
            self._context.delete(session)

    def _learn_from(self, failure: WorkerFailure, worker: Worker) -> None:
        if isinstance(failure, Refused):
            self._useless = True  # what this request asks of a drafter will not change
            worker.count(failure)
        if isinstance(failure, Busy):
            self._not_before = time.monotonic() + failure.retry_after
            worker.count(failure)
