"""From a draft worker's settings to its service, for the HTTP app and for whoever serves it without one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tokenizers import Tokenizer

from basics.names import LOOKUP
from config.workers import DraftWorkerConfig
from draft_worker.engine import DraftEngine
from draft_worker.grammars import SessionGrammars, load_vocabulary
from draft_worker.metrics import DraftMetrics, memory_counters, memory_gauges
from draft_worker.service import DraftService
from engines.table import adapter
from worker.metrics import session_counters, session_gauges

LoadDrafter = Callable[[Callable[[str], None]], DraftEngine]


def load_service(
    config: DraftWorkerConfig,
    metrics: DraftMetrics,
    progress: Callable[[str], None],
    on_death: Callable[[str], None],
    load: LoadDrafter | None = None,
) -> DraftService:
    """Load the configured model, if it drafts with one, or what `load(progress)` returns; show its state in `metrics`.

    `on_death(reason)` is called, from any thread, if the engine failed later. Raises engines.errors.ModelError.
    """
    engine: DraftEngine | None = None
    if load is not None:
        engine = load(progress)
    elif config.model != LOOKUP:
        engine = _load(config, metrics, progress, on_death)
    service = DraftService(engine, config, metrics, _grammars(config, engine))
    gauges, counters = session_gauges(service.sessions), session_counters(service.sessions)
    if engine is not None:
        gauges += engine.model.gauges()
        counters += engine.model.counters()
    if (memory := service.memory) is not None:
        gauges = [*gauges, *memory_gauges(memory)]
        counters = [*counters, *memory_counters(memory)]
    if (lookahead := service.lookahead) is not None:
        gauges = [
            *gauges,
            ("lookahead_running", "Sessions that drafts are being prepared for", lambda: lookahead.running),
        ]
    metrics.loaded(service.info, gauges, counters)
    return service


def _grammars(config: DraftWorkerConfig, engine: DraftEngine | None) -> SessionGrammars | None:
    """The engine's own, if there is an engine: its vocabulary is the target's."""
    if engine is not None:
        model = engine.model
        if not model.grammars.types:
            return None
        return SessionGrammars(lambda: (model.grammars, Tokenizer.from_str(model.tokenizer.tokenizer_json)))
    return SessionGrammars(partial(load_vocabulary, config.grammar_model)) if config.grammar_model is not None else None


def _load(
    config: DraftWorkerConfig,
    metrics: DraftMetrics,
    progress: Callable[[str], None],
    on_death: Callable[[str], None],
) -> DraftEngine:
    engine: DraftEngine = adapter("draft_worker", config).load_drafter(config, metrics, progress, on_death)
    return engine
