"""The gateway's own metrics."""

from __future__ import annotations

import pytest

from server.backend import Round, RoundTimings
from server.metrics import GatewayMetrics
from server.speedup import SpeedUps


def test_drafters_names_cannot_grow_without_end() -> None:
    metrics = GatewayMetrics()
    assert metrics.source_label(None) == "unknown"
    labels = {metrics.source_label(f"drafter_{number}") for number in range(1_000)}
    assert len(labels) == 17
    assert "other" in labels
    assert metrics.source_label("drafter_0") == "drafter_0"


def test_the_speedup_is_plain_over_speculative_seconds_a_token() -> None:
    def value(metrics: SpeedUps) -> list[float]:
        return [sample.value for family in metrics.collect() for sample in family.samples]

    def decoded(milliseconds: float, speculative: bool) -> Round:
        timings = RoundTimings(total=milliseconds)
        return Round([1, 2], 0, 0, None, None, None, True, timings=timings, target="T", speculative=speculative)

    speedups = SpeedUps()
    for _ in range(20):
        speedups.observe(decoded(30.0, speculative=False), "T", 1)
    assert value(speedups) == []  # not before both are known
    for _ in range(20):
        speedups.observe(decoded(40.0, speculative=True), "T+d", 2)  # 20 ms a token
    assert value(speedups) == [pytest.approx(1.5)]
    for _ in range(40):  # it slows down: what was measured long ago counts ever less
        speedups.observe(decoded(60_000.0, speculative=True), "T+d", 1000)
    assert value(speedups) == [pytest.approx(30.0 / 60.0, rel=1e-2)]
