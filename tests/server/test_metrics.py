"""The gateway's own metrics."""

from __future__ import annotations

from server.metrics import GatewayMetrics


def test_drafters_names_cannot_grow_without_end() -> None:
    metrics = GatewayMetrics()
    assert metrics.source_label(None) == "unknown"
    labels = {metrics.source_label(f"drafter_{number}") for number in range(1_000)}
    assert len(labels) == 17
    assert "other" in labels
    assert metrics.source_label("drafter_0") == "drafter_0"
