"""The gateway's Prometheus metrics (docs/metrics.md explains each). Names and meanings follow vLLM's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from basics.names import MAX_CANDIDATES
from server.backend import Round
from server.errors import ApiError
from server.speedup import SpeedUps
from server.text.choice import Choice

_FIRST_TOKEN = (0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
_TOKEN = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
)
_REQUEST = (0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 60, 120, 240, 480, 960, 1920)
_PHASE = (0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1, 2.5, 10)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
_DRAFT_LENGTH = (0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32)
_MOST_NAMES = 16
_SOURCES = ("model", "lookup", "prediction", "grammar", "history")
_FINISHED_REASONS = ("stop", "length", "abort", "error")
_PHASES = ("draft", "verify_forward", "sample", "queue", "network", "total")

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each, of no use to Prometheus


class GatewayMetrics:
    """One registry for one gateway, so that several may live in one process."""

    def __init__(self, collectors: Iterable[Collector] = ()) -> None:
        """`collectors` are shown beside its own."""
        self._sources = _Names()
        self._pairs = _Names()
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        for collector in collectors:
            registry.register(collector)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"tandem_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: Iterable[float], *labels: str) -> Histogram:
            return Histogram(f"tandem_{name}", text, labels, buckets=tuple(buckets), registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"tandem_{name}", text, labels, registry=registry)

        self.running = gauge("num_requests_running", "Choices that are being generated")
        self.waiting = gauge("num_requests_waiting", "Choices that wait for their first token")
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens processed")
        self.generation_tokens = counter("generation_tokens", "Tokens generated and counted in usage")
        self.success = counter("request_success", "Choices that ended, by how", "finished_reason")
        for reason in _FINISHED_REASONS:
            self.success.labels(reason)  # at 0: `rate` does not see a series that is born at 1
        self.request_prompt_tokens = histogram("request_prompt_tokens", "Prompt tokens of a choice", _TOKENS)
        self.request_generation_tokens = histogram("request_generation_tokens", "Tokens of a finished choice", _TOKENS)
        self.ttft = histogram(
            "time_to_first_token_seconds", "From the request's arrival to its first token", _FIRST_TOKEN
        )
        self.itl = histogram("inter_token_latency_seconds", "Between one round's tokens and the next's", _TOKEN)
        self.tpot = histogram(
            "request_time_per_output_token_seconds",
            "From first to last token, divided by the tokens after the first",
            _TOKEN,
        )
        self.e2e = histogram("e2e_request_latency_seconds", "From the request's arrival to its last token", _REQUEST)

        self.queue_time = histogram(
            "request_queue_time_seconds", "How long a choice waited for room in its target's batch", _FIRST_TOKEN
        )

        by = ("pair", "source")
        self.drafts = counter("spec_decode_num_drafts", "Rounds that carried draft tokens", *by)
        self.draft_tokens = counter("spec_decode_num_draft_tokens", "Draft tokens verified", *by)
        self.accepted = counter("spec_decode_num_accepted_tokens", "Draft tokens accepted", *by)
        self.accepted_per_pos = counter(
            "spec_decode_num_accepted_tokens_per_pos",
            "Draft tokens accepted, by their place in the draft",
            "pair",
            "position",
        )
        self.speedups = SpeedUps()
        registry.register(self.speedups)
        self.draft_length = histogram("spec_decode_draft_length", "Draft tokens in use in a round (γ)", _DRAFT_LENGTH)
        self.candidates = histogram(
            "spec_decode_num_candidates", "Candidates in use in a round (N)", range(MAX_CANDIDATES + 1)
        )
        self.round_seconds = histogram("round_seconds", "A round's time, by phase", _PHASE, "phase")
        self._phases = {phase: self.round_seconds.labels(phase) for phase in _PHASES}

        self.http_requests = counter("http_requests", "HTTP requests answered", "method", "path", "status")
        self.errors = counter("request_errors", "Errors sent to clients, in a stream too", "status", "code")
        for status, code in _errors():
            self.errors.labels(status, code)

    def source_label(self, source: str | None) -> str:
        """Who drafted, as a label's value."""
        return self._sources.label(source)

    def pair_label(self, pair: str) -> str:
        """A pair of models as a label's value."""
        return self._pairs.label(pair or None)

    def text(self, pairs: Iterable[str] = (), draft_tokens: int = 0) -> bytes:
        """In Prometheus' text format. The counters of these pairs are there even if nothing was drafted yet, with
        `draft_tokens` positions."""
        for pair in map(self.pair_label, pairs):
            for position in range(draft_tokens):
                self.accepted_per_pos.labels(pair, position)
            for source in _SOURCES:
                for counter in (self.drafts, self.draft_tokens, self.accepted):
                    counter.labels(pair, source)
        return generate_latest(self.registry)

    @contextmanager
    def sequence(self, prompt_tokens: int, arrived: float) -> Iterator[SequenceMetrics]:
        """Watches over one choice; `arrived` is time.monotonic() when its request came."""
        sequence = SequenceMetrics(self, arrived)
        self.waiting.inc()
        self.prompt_tokens.inc(prompt_tokens)
        self.request_prompt_tokens.observe(prompt_tokens)
        try:
            yield sequence
        except asyncio.CancelledError:
            sequence.ended("abort")
            raise
        except BaseException:
            sequence.ended("error")
            raise
        finally:
            (self.waiting if sequence.first is None else self.running).dec()

    def observe_round(self, round: Round) -> None:
        for phase, child in self._phases.items():
            child.observe(getattr(round.timings, phase) / 1000.0)
        self.draft_length.observe(round.num_drafted)
        self.candidates.observe(round.num_candidates)


class SequenceMetrics:
    """The clock of one choice."""

    def __init__(self, metrics: GatewayMetrics, arrived: float) -> None:
        self._metrics = metrics
        self._arrived = arrived
        self._last = 0.0
        self._ended = False
        self.first: float | None = None

    def round(self, round: Round, choice: Choice, kept: int) -> None:
        """After `choice` has taken the round's first `kept` tokens."""
        metrics, now = self._metrics, time.monotonic()
        if self.first is None:
            self.first = now
            metrics.waiting.dec()
            metrics.running.inc()
            metrics.ttft.observe(now - self._arrived)
            metrics.queue_time.observe(round.timings.queue / 1000)
        else:
            metrics.itl.observe(now - self._last)
            metrics.speedups.observe(round, metrics.pair_label(round.pair), kept)
        self._last = now
        metrics.generation_tokens.inc(kept)
        metrics.observe_round(round)
        if round.num_drafted:
            labels = pair, _ = metrics.pair_label(round.pair), metrics.source_label(round.source)
            accepted = choice.counts.step_accepted[-1]
            metrics.drafts.labels(*labels).inc()
            for part, drafted, kept_of_it in round.by_source(accepted):
                by_drafter = pair, metrics.source_label(part)
                metrics.draft_tokens.labels(*by_drafter).inc(drafted)
                metrics.accepted.labels(*by_drafter).inc(kept_of_it)
            for position in range(round.num_drafted):  # one that was not accepted too, so that it starts at 0
                metrics.accepted_per_pos.labels(pair, position).inc(position < accepted)
        if choice.finish_reason is not None:
            tokens = choice.counts.completion_tokens
            self.ended(choice.finish_reason)
            metrics.request_generation_tokens.observe(tokens)
            metrics.e2e.observe(now - self._arrived)
            if tokens > 1:
                metrics.tpot.observe((now - self.first) / (tokens - 1))

    def ended(self, reason: str) -> None:
        """Only how it ended first counts: a complete text may still be on its way to a client who leaves."""
        if not self._ended:
            self._ended = True
            self._metrics.success.labels(reason).inc()


class _Names:
    """Values of a label that workers give, so that there is no end to them: past a few, all others are `other`."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def label(self, name: str | None) -> str:
        if name is None:
            return "unknown"
        if len(self._known) < _MOST_NAMES:
            self._known.add(name)
        return name if name in self._known else "other"


def _errors(kind: type[ApiError] = ApiError) -> set[tuple[int, str]]:
    """Status and code of every kind of error that has a code of its own."""
    own = {(kind.status, kind.code)} if kind.code is not None else set()
    return own.union(*(_errors(special) for special in kind.__subclasses__()))
