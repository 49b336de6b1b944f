"""A worker's Prometheus metrics: `tandem_target_…` or `tandem_draft_…`, so that no two services share a name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from basics.metrics import Watched, tandem_version
from protocol.errors import WireError
from protocol.messages import DraftTimings, VerifyTimings
from protocol.worker_info import ModelInfo
from worker.gpu import visible_gpus
from worker.sessions import SessionTable

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
_SESSIONS = (1, 2, 4, 8, 16, 32, 64)
_PHASES = ("queue", "forward", "sample", "total")
CLIENT_GONE = "client_gone"
"""The code of calls whose caller left before the answer."""

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each, of no use to Prometheus


class WorkerMetrics:
    """Metrics of one app, in a registry of its own."""

    def __init__(self, role: Literal["target", "draft"]) -> None:
        self.registry = CollectorRegistry()
        self._prefix = f"tandem_{role}_"
        ProcessCollector(registry=self.registry)
        self.requests = self.counter("http_requests", "HTTP requests answered", "endpoint", "status")
        self.request_seconds = self._histogram("http_request_duration_seconds", "HTTP requests", _SECONDS, "endpoint")
        self.errors = self.counter("errors", "Errors answered, by their code", "code")
        for code in (*_codes(), CLIENT_GONE):
            self.errors.labels(code)  # starts at 0: `rate` misses a first value of 1
        phases = self._histogram("call_seconds", "A call's time by phase", _SECONDS, "phase")
        # Looked up once: it costs as much as counting does, for each item of a batch.
        self._queue, self._forward, self._sample, self._total = map(phases.labels, _PHASES)
        self.iteration_tokens = self._histogram("iteration_tokens", "Tokens in a forward pass", _TOKENS)
        self.iteration_sessions = self._histogram("iteration_sessions", "Sessions in a forward pass", _SESSIONS)
        self.forward_seconds = self._histogram("forward_seconds", "A forward pass", _SECONDS)
        self.cache_queries = self.counter("prefix_cache_queries", "Context tokens of calls")
        self.cache_hits = self.counter("prefix_cache_hits", "Context tokens that were not computed again")

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        """One more counter, under this worker's prefix."""
        return Counter(f"{self._prefix}{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Iterable[float], *labels: str) -> Histogram:
        return Histogram(f"{self._prefix}{name}", text, labels, registry=self.registry, buckets=tuple(buckets))

    def pass_done(self, sessions: int, tokens: int, seconds: float) -> None:
        """One forward pass. From any thread."""
        self.iteration_sessions.observe(sessions)
        self.iteration_tokens.observe(tokens)
        self.forward_seconds.observe(seconds)

    def call_done(self, context_tokens: int, cached_tokens: int, timings: DraftTimings | VerifyTimings) -> None:
        """One call that was answered."""
        self.cache_queries.inc(context_tokens)
        self.cache_hits.inc(cached_tokens)
        self._queue.observe(timings.queue_ms / 1e3)
        self._forward.observe(timings.forward_ms / 1e3)
        self._sample.observe(timings.sample_ms / 1e3)
        self._total.observe(timings.total_ms / 1e3)

    def loaded(self, info: ModelInfo, gauges: Iterable[Watched] = (), counters: Iterable[Watched] = ()) -> None:
        """Once the model is loaded: show what it is, the GPUs it may run on, and values that live elsewhere."""
        labels = {"version": tandem_version(), "model": info.id, "engine": info.engine, "device": info.device}
        labels |= {"dtype": info.dtype or "", "fingerprint": info.fingerprint}
        build = Gauge(f"{self._prefix}build_info", "Always 1", labels, registry=self.registry)
        build.labels(**labels).set(1)
        self.registry.register(_Readings(self._prefix, list(gauges), list(counters)))
        if info.device.startswith("cuda"):
            self.registry.register(_Gpus(self._prefix))

    def page(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self.registry)


def session_gauges(sessions: SessionTable[Any]) -> list[Watched]:
    return [
        ("sessions", "Sessions whose token ids are held", lambda: len(sessions)),
        ("session_tokens", "Token ids held for all sessions", lambda: sessions.tokens),
    ]


def session_counters(sessions: SessionTable[Any]) -> list[Watched]:
    return [("num_session_evictions", "Sessions forgotten to make room", lambda: sessions.evictions)]


def _codes(kind: type[WireError] = WireError) -> set[str]:
    """The codes of every error that a worker can answer."""
    return {kind.code}.union(*(_codes(special) for special in kind.__subclasses__()))


class _Readings(Collector):
    def __init__(self, prefix: str, gauges: list[Watched], counters: list[Watched]) -> None:
        self._prefix = prefix
        self._gauges = gauges
        self._counters = counters

    def collect(self) -> Iterable[Metric]:
        for name, text, read in self._gauges:
            yield GaugeMetricFamily(f"{self._prefix}{name}", text, value=read())
        for name, text, read in self._counters:
            yield CounterMetricFamily(f"{self._prefix}{name}", text, value=read())


class _Gpus(Collector):
    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def collect(self) -> Iterable[Metric]:
        def gauge(name: str, text: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"{self._prefix}gpu_{name}", text, labels=["gpu"])

        busy = gauge("utilization_ratio", "Share of the last moment in which the GPU computed, by whomever")
        used = gauge("memory_used_bytes", "GPU memory in use, by whomever")
        total = gauge("memory_total_bytes", "GPU memory")
        for gpu in visible_gpus():
            busy.add_metric([gpu.name], gpu.utilization)
            used.add_metric([gpu.name], gpu.memory_used)
            total.add_metric([gpu.name], gpu.memory_total)
        return [busy, used, total]
