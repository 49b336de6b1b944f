"""The draft service: sessions, and for each call the drafter that serves it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import get_args

from basics.names import LOOKUP
from config.workers import DraftWorkerConfig
from draft_worker.checks import check_draft
from draft_worker.drafters.forced import ForcedDrafter
from draft_worker.drafters.lookup import LookupIndex
from draft_worker.drafters.prediction import PredictionDrafter
from draft_worker.engine import Draft, DraftEngine, capabilities
from draft_worker.metrics import DraftMetrics
from protocol.messages import (
    MAX_TOKENS_PER_MESSAGE,
    Candidate,
    DraftRequest,
    DraftResponse,
    DraftTimings,
    GrammarType,
    ModelInfo,
    Source,
    TopK,
)
from worker.session import Session
from worker.sessions import SessionTable


@dataclass(slots=True)
class DraftState:
    """What a session's drafters remember; the index is built once it is needed."""

    index: LookupIndex
    prediction: PredictionDrafter | None = None


class DraftService:
    """Serves calls on sessions. One for each app, once its engine, if it has one, is loaded."""

    def __init__(
        self,
        engine: DraftEngine | None,
        config: DraftWorkerConfig,
        metrics: DraftMetrics,
        forced: ForcedDrafter | None = None,
    ) -> None:
        """Without an engine only lookup and predictions draft, and `forced`, where it is given."""
        self.engine = engine
        self.info = engine.info if engine is not None else _lookup_info(config)
        self._config = config
        self._metrics = metrics
        self._forced = forced
        self.sessions: SessionTable[DraftState] = SessionTable(
            lambda: DraftState(LookupIndex(config.lookup_min_ngram, config.lookup_max_ngram)),
            self._on_drop,
            config.max_sessions,
            config.max_session_tokens,
            config.session_idle_ms / 1000,
        )

    async def draft(self, request: DraftRequest) -> DraftResponse:
        """One draft. Raises WireError."""
        deadline = time.monotonic() + request.deadline_ms / 1000
        check_draft(request, self.info)

        async def work(session: Session[DraftState]) -> DraftResponse:
            context_tokens = len(session.ids)
            source, draft = await self._draft(session, request, deadline)
            if draft.candidates:
                session.emit(draft.candidates[0].token_ids)
            response = DraftResponse(
                session_id=request.session_id,
                round=request.round,
                candidates=draft.candidates,
                source=source,
                cached_tokens=draft.cached_tokens,
                timings=draft.timings,
            )
            self._metrics.draft_done(context_tokens, response)
            return response

        call = await self.sessions.start(request, work)
        response: DraftResponse = await self.sessions.result(call)
        return response

    async def delete(self, session_id: str) -> None:
        """Forget a session, if it is held; its call in flight ends."""
        await self.sessions.delete(session_id)

    async def close(self, patience: float) -> None:
        """Let running work end, then stop the engine."""
        began = time.monotonic()
        await self.sessions.close(patience)
        if self._forced is not None:
            self._forced.close()
        if self.engine is not None:
            await asyncio.to_thread(self.engine.close, max(0.0, patience - (time.monotonic() - began)))

    async def _draft(
        self, session: Session[DraftState], request: DraftRequest, deadline: float
    ) -> tuple[Source, Draft]:
        """The prediction drafts where it matches, otherwise the drafter that was asked for."""
        began = time.perf_counter()
        ids, state = session.ids, session.state
        unchanged = session.settle()
        state.index.truncate(unchanged)
        if request.prediction is not None:
            state.prediction = PredictionDrafter(request.prediction.token_ids, self._config.prediction_window)
        tokens = min(request.draft_tokens, request.max_tokens, self.info.context_length - len(ids))
        owner = session.serial if session.key is not None else None
        if self._forced is not None and not tokens:
            await self._forced.read(request, owner, deadline)
        if state.prediction is not None and tokens:
            prompt = request.num_prompt_tokens
            predicted = state.prediction.draft(ids[prompt:], unchanged - prompt, tokens)
            if drafts := self._permitted(request, ids, owner, [predicted]):
                return "prediction", _copied(drafts, request, unchanged, began)
        if self._forced is not None and (forced := self._forced.draft(request, ids, owner, tokens)):
            return "grammar", _copied([forced], request, unchanged, began)
        if self.engine is None or request.draft_model == LOOKUP:
            state.index.extend(ids)
            found = state.index.continuations(ids, tokens, request.num_candidates)
            return "lookup", _copied(self._permitted(request, ids, owner, found), request, unchanged, began)
        return "model", await self.engine.draft(request, ids, owner, deadline)

    def _permitted(
        self, request: DraftRequest, ids: list[int], owner: int | None, drafts: list[list[int]]
    ) -> list[list[int]]:
        """The drafts up to what the grammar refuses, where that can be told; those of which something is left.

        Under `probabilistic` nothing is cut because of the token that stands there: it would bias the text.
        """
        if self._forced is not None and not request.want_q:
            drafts = [self._forced.permitted(request, ids, owner, draft) for draft in drafts]
        return [draft for draft in drafts if draft]

    def _on_drop(self, session: Session[DraftState]) -> None:
        if self.engine is not None:
            self.engine.disown(session.serial)
        if self._forced is not None:
            self._forced.disown(session.serial)


def _copied(drafts: list[list[int]], request: DraftRequest, unchanged: int, began: float) -> Draft:
    """Drafts that no model made: each token is certain, so its q is one-hot."""
    certain = request.want_q
    candidates = [
        Candidate(
            token_ids=draft,
            logprobs=[0.0] * len(draft) if certain else None,
            q=[TopK(token_ids=[token_id], logprobs=[0.0]) for token_id in draft] if certain else None,
        )
        for draft in drafts
    ]
    total = (time.perf_counter() - began) * 1e3
    return Draft(candidates, unchanged, DraftTimings(queue_ms=0.0, forward_ms=0.0, sample_ms=0.0, total_ms=total))


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
