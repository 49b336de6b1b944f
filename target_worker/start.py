"""From a target worker's settings to its service, for the HTTP app and for whoever serves it without one."""

from __future__ import annotations

from collections.abc import Callable

from config.workers import TargetWorkerConfig
from engines.table import adapter
from target_worker.engine import TargetEngine
from target_worker.metrics import TargetMetrics
from target_worker.service import TargetService
from worker.metrics import session_counters, session_gauges

LoadTarget = Callable[[Callable[[str], None]], TargetEngine]


def load_service(
    config: TargetWorkerConfig,
    metrics: TargetMetrics,
    progress: Callable[[str], None],
    on_death: Callable[[str], None],
    load: LoadTarget | None = None,
) -> TargetService:
    """Load the configured model, or what `load(progress)` returns, and show its state in `metrics`.

    `on_death(reason)` is called, from any thread, if the engine failed later. Raises engines.errors.ModelError.
    """
    engine = load(progress) if load is not None else _load(config, metrics, progress, on_death)
    service = TargetService(engine, config, metrics)
    metrics.loaded(
        service.info,
        [*engine.model.gauges(), *session_gauges(service.sessions)],
        [*engine.model.counters(), *session_counters(service.sessions)],
    )
    return service


def _load(
    config: TargetWorkerConfig,
    metrics: TargetMetrics,
    progress: Callable[[str], None],
    on_death: Callable[[str], None],
) -> TargetEngine:
    engine: TargetEngine = adapter("target_worker", config).load_target(config, metrics, progress, on_death)
    return engine
