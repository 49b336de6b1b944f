"""What the gateway counts about its workers and rounds (unregistered collectors: the gateway's /metrics shows them)."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram, Info
from prometheus_client.registry import Collector

from basics.breaker import Breaker, State
from basics.names import MAX_UNDER_WAY
from server.fleet.failures import REASONS, RESEND_REASONS

_BREAKER_VALUES: dict[State, int] = {"closed": 0, "half_open": 1, "open": 2}
_ROUND_TRIP_BUCKETS = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024)
_SIZE_BUCKETS = (0, 1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)


class FleetMetrics:
    def __init__(self) -> None:
        worker = ["role", "worker"]
        self.up = Gauge("tandem_worker_up", "Whether the worker can be given work", worker, registry=None)
        self.streams = Gauge("tandem_worker_streams", "Streams that use the worker now", worker, registry=None)
        self.breaker = Gauge(
            "tandem_breaker_state", "Breaker of a worker: 0 closed, 1 half open, 2 open", worker, registry=None
        )
        self.failures = Counter(
            "tandem_worker_failures",
            "Calls that failed, by reason; a failed draft costs a round without drafts",
            [*worker, "reason"],
            registry=None,
        )
        self.mismatch = Gauge(
            "tandem_vocabulary_mismatch", "1: the worker is switched off for its vocabulary", worker, registry=None
        )
        self.way = Gauge(
            "tandem_draft_vocabulary",
            "1 at the way in which the drafter's ids become the target's: same, shared_ids, shared_text",
            ["worker", "way"],
            registry=None,
        )
        self.resends = Counter(
            "tandem_context_resends",
            "Contexts sent whole because the worker did not hold them (session-cache misses)",
            ["role", "reason"],
            registry=None,
        )
        self.retries = Counter("tandem_worker_retries", "Calls that were repeated", ["role"], registry=None)
        self.round_trip = Histogram(
            "tandem_worker_round_trip_seconds",
            "What a call cost beyond the worker's own time: network, HTTP, JSON",
            ["role"],
            buckets=_ROUND_TRIP_BUCKETS,
            registry=None,
        )
        self.draft_tokens = Histogram(
            "tandem_spec_decode_draft_tokens_asked",
            "Draft tokens asked for in a round (γ)",
            buckets=_SIZE_BUCKETS,
            registry=None,
        )
        self.candidates = Histogram(
            "tandem_spec_decode_candidates_asked",
            "Candidates asked for in a round (N)",
            buckets=_SIZE_BUCKETS,
            registry=None,
        )

        self.lookahead = Info("tandem_lookahead", "The settings of lookahead", registry=None)
        self.lookahead_rounds = Counter(
            "tandem_lookahead_rounds",
            "Drafts after lookahead: a hit was there already, a part of it was, or nothing; a copy needs no preparing",
            ["outcome"],
            registry=None,
        )
        for outcome in ("hit", "part", "miss", "copy"):
            self.lookahead_rounds.labels(outcome)
        self.lookahead_tokens = Counter(
            "tandem_lookahead_tokens", "Prepared draft tokens that were used", registry=None
        )
        self.lookahead_hidden = Counter(
            "tandem_lookahead_hidden_seconds", "Drafting that lookahead has hidden", registry=None
        )

        self.verifications_ahead = Counter(
            "tandem_verifications_ahead",
            "Verifications sent before the last verdict was back: used, or discarded",
            ["outcome"],
            registry=None,
        )
        for outcome in ("used", "discarded"):
            self.verifications_ahead.labels(outcome)
        self.verifications_beyond = Counter(
            "tandem_verifications_beyond",
            "Verifications sent before the last verdict was back that were used, by how many others were under way",
            ["others"],
            registry=None,
        )
        for others in range(1, MAX_UNDER_WAY):
            self.verifications_beyond.labels(str(others))

    def watch_worker(self, role: str, worker: str, breaker: Breaker) -> None:
        """Show a worker from the start: `rate` misses a first value of 1.

        A breaker's state is computed when the metrics are read, since it changes with time alone.
        """
        for gauge in (self.up, self.streams, self.mismatch):
            gauge.labels(role, worker)
        for reason in REASONS:
            self.failures.labels(role, worker, reason)
        for reason in RESEND_REASONS:
            self.resends.labels(role, reason)
        self.retries.labels("target")
        self.breaker.labels(role, worker).set_function(lambda: _BREAKER_VALUES[breaker.state])

    def collectors(self) -> list[Collector]:
        return list(vars(self).values())
