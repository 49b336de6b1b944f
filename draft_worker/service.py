"""The draft service: sessions, and for each call the drafter that serves it."""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any, get_args

from basics.names import AUTO, LOOKUP
from config.workers import DraftWorkerConfig
from draft_worker import memory_file
from draft_worker.auto import Auto, Chosen
from draft_worker.checks import check_draft
from draft_worker.drafter import Asked, Copier, Means, Memory, certain
from draft_worker.drafters import DRAFTERS
from draft_worker.drafters.model import ModelDrafter, model_parts
from draft_worker.engine import Drafted, DraftEngine, LooksAhead, capabilities
from draft_worker.foresight import Foresight
from draft_worker.grammars import SessionGrammars
from draft_worker.lookahead import Lookahead
from draft_worker.memory import AnswerMemory
from draft_worker.metrics import DraftMetrics
from draft_worker.segment import LONGEST_MATCH
from draft_worker.vocabularies.learned import Learned
from protocol.errors import EngineFailure
from protocol.messages import (
    MAX_ALTERNATIVES,
    MAX_TOKENS_PER_MESSAGE,
    DraftRequest,
    DraftResponse,
    GrammarType,
    RememberRequest,
    RememberResponse,
)
from protocol.prepared import Prepared, PreparedRequest, PreparedResponse
from protocol.worker_info import LearnRequest, ModelInfo, Translation
from worker.call_span import record_call
from worker.session import Session
from worker.sessions import SessionTable

_PIECE = 4_096
"""Tokens that are remembered at once; an answer's pieces overlap, so that a match goes on from one to the next."""


class DraftService:
    """Serves calls on sessions. One for each app, once its engine, if it has one, is loaded."""

    def __init__(
        self,
        engine: DraftEngine | None,
        config: DraftWorkerConfig,
        metrics: DraftMetrics,
        grammars: SessionGrammars | None = None,
    ) -> None:
        """Drafters are made of the engine and of `grammars` where these are given (draft_worker/drafters)."""
        self.engine = engine
        info = engine.model.info if engine is not None else _lookup_info(config)
        translates = engine is not None and config.other_vocabulary != "refuse"
        able = info.capabilities.model_copy(
            update={
                "auto": True,
                "history": config.history_mb > 0,
                "translates": translates,
                "prepared": info.capabilities.lookahead,
                "prepared_tokens": info.capabilities.lookahead,
                "assumes": info.capabilities.lookahead,
                "chooses_ahead": True,
            }
        )
        self._learned = Learned(engine, info.model_copy(update={"capabilities": able}), config, metrics)
        self.memory = AnswerMemory(config.history_mb * 2**20) if config.history_mb > 0 else None
        self._history_file = config.history_file if self.memory is not None else None
        if self.memory is not None and self._history_file is not None:
            memory_file.load(self.memory, self._history_file)
        self._metrics = metrics
        self._grammars = grammars
        able_ahead = engine is not None and engine.model.info.capabilities.lookahead
        self.lookahead = Lookahead(engine, metrics) if able_ahead and engine is not None else None
        means = Means(config, engine, grammars, self.memory, self.lookahead)
        self._drafters = [drafter for kind in DRAFTERS if (drafter := kind.of(means)) is not None]
        copiers = [drafter for drafter in self._drafters if isinstance(drafter, Copier)]
        models = [drafter for drafter in self._drafters if isinstance(drafter, ModelDrafter)]
        steps = info.step_seconds
        draw_seconds = steps[0].seconds if steps and steps[0].rows == 1 else None
        singly = isinstance(engine, LooksAhead) and not engine.chains
        model = models[0] if models else None
        self._auto = Auto(copiers, model, grammars, draw_seconds=draw_seconds, singly=singly)
        self._foresight = Foresight(self._auto, self.lookahead, info.context_length)
        self.sessions: SessionTable[Memory] = SessionTable(
            dict, self._on_drop, config.max_sessions, config.max_session_tokens, config.session_idle_ms / 1000
        )

    @property
    def info(self) -> ModelInfo:
        return self._learned.info

    async def learn(self, request: LearnRequest) -> Translation:
        """Get ready to draft for a target with this tokenizer. Raises WireError."""
        return await self._learned.learn(request.tokenizer)

    async def draft(self, request: DraftRequest) -> DraftResponse:
        """One draft. Raises WireError."""
        deadline = time.monotonic() + request.deadline_ms / 1000
        translator = self._learned.get(request.vocabulary)
        info = translator.info if translator is not None else self.info
        check_draft(request, info)

        async def work(session: Session[Memory]) -> DraftResponse:
            context_tokens = len(session.ids)
            if request.own_prompt is not None:
                session.state["own_prompt"] = request.own_prompt
            room = min(request.max_tokens, info.context_length - context_tokens)
            within = {name: min(getattr(request, name), room) for name in ("draft_tokens", "prepared_tokens")}
            asked = Asked(request.model_copy(update=within), session, session.settle("all"), deadline, translator)
            if self.lookahead is not None:
                self.lookahead.settle(asked)
                asked = self.lookahead.lengthened(asked)
            chosen: Chosen | None = None
            if request.draft_model == AUTO and asked.tokens:
                chosen = await self._auto.draft(asked)
                source, drafted = chosen.source, chosen.drafted
            elif not asked.tokens and request.draft_model is None and not self._auto.to_be_read(asked):
                source, drafted = AUTO, certain(asked, [])
            else:
                source, drafted = await self._draft(asked)
            parts = chosen.parts if chosen is not None else []
            length = asked.tokens if request.prepared_tokens else None
            if drafted.prepared and chosen is None:
                parts = model_parts(drafted)
                source = parts[0].source
            first = drafted.candidates[0].token_ids if drafted.candidates else []
            if self.lookahead is not None:
                # An extension follows from tokens drawn before it, which may be discarded and drawn again.
                planned = chosen.planned - chosen.extended if chosen is not None else asked.tokens
                usual = planned if chosen is not None else min(request.draft_tokens, room)
                self.lookahead.begin(asked, first, planned, usual, drafted.places)
            session.emit(first)
            response = DraftResponse(
                session_id=request.session_id,
                round=request.round,
                candidates=drafted.candidates,
                source=source,
                parts=parts,
                planned=chosen.planned if chosen is not None else length,
                cached_tokens=drafted.cached_tokens,
                timings=drafted.timings,
            )
            self._metrics.draft_done(context_tokens, response)
            session.account.add(response.timings, drafted=len(first))
            record_call("draft", request, response.timings, drafted=len(first))
            return response

        with self.serving():
            response: DraftResponse = await self.sessions.result(await self.sessions.start(request, work))
            return response

    def serving(self) -> AbstractContextManager[None]:
        """While a call, or a batch of them, is served: what looks ahead waits for its end."""
        return self.lookahead.serving() if self.lookahead is not None else nullcontext()

    async def prepared(self, request: PreparedRequest) -> PreparedResponse:
        """The drafts for what may come of the verification under way; none for a session or round that is not held."""
        session = self.sessions.get(request.session_id)
        found: list[Prepared] = []
        if session is not None and self._foresight.chose(session, request.round):
            found = await self._foresight.alternatives(session, request.round, request.wait_ms / 1000)
        elif session is not None and self.lookahead is not None:
            found = await self.lookahead.alternatives(session, request.round, request.wait_ms / 1000)
        return PreparedResponse(session_id=request.session_id, round=request.round, prepared=found[:MAX_ALTERNATIVES])

    async def remember(self, request: RememberRequest) -> RememberResponse:
        """An answer as it ended, to be drafted from later."""
        if self.memory is not None:
            for start in range(0, len(request.token_ids), _PIECE):
                begin = max(0, start - LONGEST_MATCH)
                self.memory.add(request.history, request.token_ids[begin : start + _PIECE])
                await asyncio.sleep(0)  # others are served meanwhile
        return RememberResponse(remembered=self.memory is not None)

    async def delete(self, session_id: str) -> None:
        """Forget a session, if it is held; its call in flight ends."""
        await self.sessions.delete(session_id)

    async def close(self, patience: float) -> None:
        """Let running work end, then stop the engine."""
        began = time.monotonic()
        await self.sessions.close(patience)
        if self.lookahead is not None:
            await self.lookahead.close()
        if self.memory is not None and self._history_file is not None:
            await asyncio.to_thread(memory_file.save, self.memory.answers(), self._history_file)
        if self._grammars is not None:
            self._grammars.close()
        if self.engine is not None:
            await asyncio.to_thread(self.engine.model.close, max(0.0, patience - (time.monotonic() - began)))

    async def _draft(self, asked: Asked) -> tuple[str, Drafted]:
        """The first drafter that has something to answer, and its answer."""
        for drafter in self._drafters:
            drafted = await drafter.draft(asked)
            if drafted is not None:
                return drafter.source, drafted
        raise EngineFailure("no drafter answers this request")

    def _on_drop(self, session: Session[Any]) -> None:
        session.account.log("draft", session.key)
        if self.lookahead is not None:
            self.lookahead.drop(session)
        if self.engine is not None:
            self.engine.model.disown(session.serial)
        if self._grammars is not None:
            self._grammars.disown(session.serial)


def _lookup_info(config: DraftWorkerConfig) -> ModelInfo:
    return ModelInfo(
        role="draft",
        id=LOOKUP,
        engine=LOOKUP,
        dtype=None,
        device="cpu",
        vocabulary=None,
        special_token_ids=[],
        stop_token_ids=[],
        context_length=MAX_TOKENS_PER_MESSAGE,
        max_sessions=config.max_sessions,
        fingerprint=LOOKUP,
        capabilities=capabilities(get_args(GrammarType)),
        step_seconds=[],
    )
