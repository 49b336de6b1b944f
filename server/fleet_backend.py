"""The workers as one backend: connects to them, watches them, and runs requests over them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing, nullcontext

from prometheus_client.registry import Collector

from basics.breaker import Breaker
from basics.names import AUTO, LOOKUP
from config.gateway import GatewayConfig
from config.pairs import pair_for
from protocol.messages import Grammar
from protocol.worker_info import Capabilities, ModelInfo, TokenizerInfo
from server.backend import DrafterState, GenerationRequest, GrammarFault, Round, ServedModel, Speculation, pair_name
from server.errors import InvalidRequest, NoModelYet
from server.fleet.admission import Admission
from server.fleet.calls import WorkerCalls
from server.fleet.client import WorkerClient
from server.fleet.compatibility import common, of_any
from server.fleet.grammars import GrammarChecks
from server.fleet.metrics import FleetMetrics
from server.fleet.pool import Pool
from server.fleet.transport import Transport
from server.fleet.worker import Role, Worker
from server.rounds.adaptive.lookahead import SharedLookahead
from server.rounds.adaptive.pair import PairState
from server.rounds.adaptive.planner import AdaptivePlanner, FixedPlanner
from server.rounds.adaptive.round import Planner
from server.rounds.context import RequestContext
from server.rounds.draft_side import DraftSide
from server.rounds.history import scope_of
from server.rounds.loop import OWN_DRAFTER, RoundLoop
from server.rounds.recovery import Patience, RetryBudget
from server.rounds.sequence import TokenSequence
from server.rounds.speculating import Speculating
from server.rounds.target_rounds import fault, target_drives
from server.rounds.target_side import TargetSide
from serving.tasks import TaskOwner

_CLOSE_SECONDS = 2.0


class Fleet:
    """Implements server.backend.Backend over the workers that the settings name."""

    def __init__(self, config: GatewayConfig, here: Mapping[str, WorkerCalls] | None = None) -> None:
        """`here`: workers of this process, by the addresses that the settings name them with; others are HTTP's."""
        self._config = config
        self._here = here or {}
        self._metrics = FleetMetrics()
        in_flight = str(config.verifications_in_flight)
        self._metrics.lookahead.info({"lookahead": config.lookahead, "verifications_in_flight": in_flight})
        self._targets = Pool([self._worker("target", url) for url in config.target_urls])
        default = [self._worker("draft", url) for url in config.draft_urls]
        named = {name: [self._worker("draft", url) for url in urls] for name, urls in config.draft_pools.items()}
        self._pools: dict[str | None, Pool] = {None: Pool(default)}
        self._pools |= {name: Pool(workers) for name, workers in named.items()}
        self._drafters = Pool([*default, *(worker for workers in named.values() for worker in workers)])
        self._admission = Admission(self._targets, self._drafters, self._metrics, config.probe_interval_seconds)
        self._patience = Patience(
            call=config.verify_timeout_seconds,
            before_first_token=config.start_timeout_seconds,
            mid_stream=config.recovery_timeout_seconds,
        )
        self._budget = RetryBudget()
        self._grammars = GrammarChecks()
        self._requests = TaskOwner()
        self._watches: list[asyncio.Task[None]] = []
        self._pairs: dict[tuple[str, str, tuple[bool, bool]], PairState] = {}
        self._created = int(time.time())
        self._served: ServedModel | None = None

    async def start(self) -> None:
        for worker in self.workers:
            worker.client.open()
            self._watches.append(asyncio.get_running_loop().create_task(self._admission.watch(worker)))

    async def close(self) -> None:
        for task in self._watches:
            task.cancel()
        if self._watches:
            await asyncio.wait(self._watches, timeout=_CLOSE_SECONDS)
        self._watches.clear()
        await self._requests.close(_CLOSE_SECONDS)
        for worker in self.workers:
            await worker.client.close()

    def collectors(self) -> Iterable[Collector]:
        return self._metrics.collectors()

    @property
    def workers(self) -> list[Worker]:
        """All of them, targets first."""
        return [*self._targets, *self._drafters]

    def pairs(self) -> Iterable[str]:
        target = self._admission.reference()
        if target is None or target.info is None:
            return []
        drafts = {worker.info.id for worker in self._drafters if worker.info is not None}
        if "target" in target.info.capabilities.rounds:
            drafts.add(OWN_DRAFTER)
        return [pair_name(target.info.id, draft) for draft in sorted(drafts)]

    def ready(self) -> tuple[bool, str]:
        details = [f"{w.role} {w.url}: {w.state} ({w.detail})" for w in self.workers]
        return self._admission.reference() is not None, "; ".join(details)

    def model(self) -> ServedModel:
        reference = self._admission.reference()
        if reference is not None and reference.info is not None and reference.tokenizer is not None:
            served = ServedModel(
                names=tuple(self._config.served_model_name) or (reference.info.id,),
                tokenizer=reference.tokenizer,
                target=self._together(reference.info),
                drafter=self._drafter_state(reference.info.id),
                created=self._created,
            )
            if served != self._served:
                self._served = served
        if self._served is None:
            raise NoModelYet("no target worker has been reached yet")
        return self._served

    def _together(self, reference: ModelInfo) -> ModelInfo:
        """The reference, with what any of the targets that are ready can do for speculation: `_fitting` picks those."""
        able = [worker.info.capabilities for worker in self._targets if worker.state == "ready" and worker.info]
        return reference.model_copy(update={"capabilities": of_any(reference.capabilities, able)})

    async def grammar_fault(self, grammar: Grammar) -> GrammarFault | None:
        worker = self._admission.reference()
        return await self._grammars.fault(grammar, worker) if worker is not None else None

    async def rounds(self, request: GenerationRequest) -> AsyncIterator[Round]:
        drafters = self._drafters_for(request.speculation)
        sequence = TokenSequence(request.prompt, request.cache_salt)
        context = RequestContext(request, sequence, self._metrics, self._requests)
        target = TargetSide(context, self._targets, self._budget, self._patience, self._fitting(request))
        drafts: DraftSide | None = None
        try:
            info = await target.info()
            driven = target_drives(request, info)
            speculating: Speculating | None = None
            gateway_drives = not driven and "gateway" in info.capabilities.rounds
            if drafters is not None and gateway_drives and info.vocabulary is not None:
                target.require(lambda info: "gateway" in info.capabilities.rounds)
                asked = self._draft_model(request.speculation.draft_model)
                named = {None: AUTO, LOOKUP: LOOKUP}.get(asked)
                facts = info.capabilities.facts(request.speculation.strategy)
                needs_q = facts is not None and facts.needs_q
                drafts = DraftSide(
                    context,
                    drafters,
                    info.vocabulary.logits_size,
                    self._patience.call,
                    named,
                    needs_q,
                    scope_of(request, info.vocabulary, needs_q),
                )
                speculating = Speculating(
                    drafts=drafts,
                    planner=self._planner(request, drafters, info),
                    longest_draft=self._config.draft_timeout_seconds,
                    patient=not request.speculation.adaptive,
                    depth=self._config.verifications_in_flight,
                )
            loop = RoundLoop(context, target, info, speculating, driven)
            with speculating.planner.serving() if speculating is not None else nullcontext():
                async with aclosing(loop.rounds()) as rounds:  # type: ignore[type-var]
                    async for round_ in rounds:
                        yield round_
        finally:
            target.close()
            if drafts is not None:
                drafts.close()

    def _fitting(self, request: GenerationRequest) -> Callable[[ModelInfo], bool]:
        """Which targets can serve it. Raises ApiError if none of those that are known can."""
        known = [worker.info for worker in self._targets if worker.info is not None]
        faults = [found for info in known if (found := fault(request, info)) is not None]
        if known and len(faults) == len(known):
            raise faults[0]
        return lambda info: fault(request, info) is None

    def _worker(self, role: Role, url: str) -> Worker:
        if (calls := self._here.get(url)) is not None:
            return Worker(role, calls, Breaker(), self._metrics)
        token = self._config.worker_token
        transport = Transport(
            url,
            token=token.get_secret_value() if token is not None else None,
            ca_file=self._config.worker_ca_file,
            connect_seconds=self._config.connect_timeout_seconds,
        )
        return Worker(role, WorkerClient(transport), Breaker(), self._metrics)

    def _drafters_for(self, speculation: Speculation) -> Pool | None:
        """The pool that `draft_model` names; None if nothing is to be drafted. Raises InvalidRequest."""
        if not speculation.enabled:
            return None
        pool = self._pool(speculation.draft_model)
        if pool is None:
            known = ", ".join(self._drafter_names()) or "none"
            raise InvalidRequest(
                f"no draft model {speculation.draft_model!r}; known are: {known}", param="speculative.draft_model"
            )
        return pool if any(pool) else None

    def _pool(self, draft_model: str | None) -> Pool | None:
        """The drafters behind the name that a request gives (None: it gives none); None if no drafter has it."""
        name = self._draft_model(draft_model)
        pool = self._pools.get(name)
        if pool is not None:
            return pool
        if name == self._config.draft_model:
            return self._pools[None]
        workers = [worker for worker in self._drafters if worker.info is not None and worker.info.id == name]
        if workers:
            return Pool(workers)
        return self._pools[None] if name == LOOKUP else None

    def _draft_model(self, asked: str | None) -> str | None:
        """The name of one drafter, or of a pool; None: the default pool's workers choose, round by round."""
        name = asked or self._config.draft_model
        return None if name == AUTO else name

    def _planner(self, request: GenerationRequest, drafters: Pool, target: ModelInfo) -> Planner:
        speculation = request.speculation
        if not speculation.adaptive:
            ahead = self._config.lookahead == "on" and speculation.num_candidates == 1
            return FixedPlanner(speculation.draft_tokens, speculation.num_candidates, ahead)
        name = self._draft_model(speculation.draft_model)
        chooses = name is None and speculation.num_candidates == 1 and _all_choose(drafters)
        if name is None:
            name = next((worker.info.id for worker in drafters if worker.info is not None), "")
        # A predicted output is another drafter than the one that fills in for it, and of a text under a grammar much is
        # known beforehand.
        kind = (request.prediction is not None, request.grammar is not None)
        pair = (target.fingerprint, AUTO if chooses else name, kind)
        return AdaptivePlanner(
            self._pairs.setdefault(pair, PairState(lookahead=SharedLookahead(self._config.lookahead))),
            draft_tokens=speculation.draft_tokens,
            max_draft_tokens=speculation.max_speculation_depth,
            num_candidates=speculation.num_candidates,
            worker_chooses=chooses,
        )

    def _drafter_names(self) -> list[str]:
        names = {name for name in self._pools if name is not None}
        names |= {worker.info.id for worker in self._drafters if worker.info is not None}
        if self._config.draft_model is not None:
            names.add(self._config.draft_model)
        if names:
            names |= {AUTO, LOOKUP}
        return sorted(names)

    def _drafter_state(self, target: str) -> DrafterState:
        default = self._draft_model(None)
        if default is None:
            default = next((worker.info.id for worker in self._pools[None] if worker.info is not None), None)
        names = self._drafter_names()
        capabilities: dict[str | None, Capabilities] = {}
        templates: dict[str | None, TokenizerInfo] = {}
        for name in (None, *names):
            ready = [worker for worker in self._pool(name) or () if worker.state == "ready"]
            able = [worker.info.capabilities for worker in ready if worker.info is not None]
            if able:
                capabilities[name] = common(able)
            for worker in ready:
                if worker.translation is not None and worker.tokenizer is not None and worker.tokenizer.chat_template:
                    templates[name] = worker.tokenizer
        return DrafterState(
            default=default,
            names=tuple(names),
            draft_tokens=self._config.draft_tokens or pair_for(target).draft_tokens,
            capabilities=capabilities,
            templates=templates,
        )


def _all_choose(drafters: Pool) -> bool:
    """Whether every worker that could be asked chooses its drafter itself; one not reached yet is taken to.

    So what is learnt while draft workers still load is kept for when they are there.
    """
    return all(worker.info.capabilities.auto for worker in drafters if worker.info is not None)
