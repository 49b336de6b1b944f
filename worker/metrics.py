"""A worker's Prometheus metrics. Names are vLLM's if vLLM has the metric, with `tandem_` for `vllm:`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from basics.metrics import Watched
from protocol.messages import DraftTimings, VerifyTimings
from worker.sessions import SessionTable

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
_SESSIONS = (1, 2, 4, 8, 16, 32, 64)
_PHASES = ("queue", "forward", "sample", "total")


class WorkerMetrics:
    """Metrics of one app, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"tandem_{name}", text, labels, registry=self.registry)

        def histogram(name: str, text: str, buckets: Iterable[float], *labels: str) -> Histogram:
            return Histogram(f"tandem_{name}", text, labels, registry=self.registry, buckets=tuple(buckets))

        self.requests = counter("http_requests", "HTTP requests answered", "endpoint", "status")
        self.request_seconds = histogram("http_request_duration_seconds", "HTTP requests", _SECONDS, "endpoint")
        self.errors = counter("errors", "Errors answered, by their code", "code")
        phases = histogram("round_time_seconds", "A call's time by phase", _SECONDS, "phase")
        # Looked up once: it costs as much as counting does, for each item of a batch.
        self._queue, self._forward, self._sample, self._total = map(phases.labels, _PHASES)
        self.iteration_tokens = histogram("iteration_tokens", "Tokens in a forward pass", _TOKENS)
        self.iteration_sessions = histogram("iteration_sessions", "Sessions in a forward pass", _SESSIONS)
        self.forward_seconds = histogram("forward_seconds", "A forward pass", _SECONDS)
        self.cache_queries = counter("prefix_cache_queries", "Context tokens of calls")
        self.cache_hits = counter("prefix_cache_hits", "Context tokens that were not computed again")

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

    def watch(self, gauges: Iterable[Watched] = (), counters: Iterable[Watched] = ()) -> None:
        """Values that live elsewhere and are read when Prometheus asks."""
        self.registry.register(_Readings(list(gauges), list(counters)))

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


class _Readings(Collector):
    def __init__(self, gauges: list[Watched], counters: list[Watched]) -> None:
        self._gauges = gauges
        self._counters = counters

    def collect(self) -> Iterable[Metric]:
        for name, text, read in self._gauges:
            yield GaugeMetricFamily(f"tandem_{name}", text, value=read())
        for name, text, read in self._counters:
            yield CounterMetricFamily(f"tandem_{name}", text, value=read())
