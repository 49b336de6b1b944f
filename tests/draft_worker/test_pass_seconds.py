"""What passes are expected to take."""

from __future__ import annotations

import pytest

from draft_worker.pass_seconds import PassSeconds
from protocol.worker_info import StepTime

CURVE = [StepTime(rows=rows, seconds=seconds) for rows, seconds in ((1, 0.01), (2, 0.012), (4, 0.02), (8, 0.03))]


def test_the_curve_is_followed_between_and_beyond_its_points() -> None:
    seconds = PassSeconds(CURVE)
    assert [seconds.of(rows) for rows in (1, 2, 3, 4, 8)] == pytest.approx([0.01, 0.012, 0.016, 0.02, 0.03])
    assert seconds.of(16) == pytest.approx(0.05)


def test_what_passes_take_scales_it_each_size_apart() -> None:
    seconds = PassSeconds(CURVE)
    for _ in range(200):
        seconds.observe(1, 0.02)
    assert seconds.of(1) == pytest.approx(0.02, rel=0.01)
    assert seconds.of(4) == pytest.approx(0.04, rel=0.05), "not seen yet: as all"
    for _ in range(200):
        seconds.observe(4, 0.02)
    assert seconds.of(1) == pytest.approx(0.02, rel=0.01)
    assert seconds.of(5) == pytest.approx(seconds.of(4) * 0.0225 / 0.02, rel=0.01)


def test_a_hiccup_means_little() -> None:
    seconds = PassSeconds(CURVE)
    seconds.observe(1, 100.0)
    assert seconds.of(1) < 0.0125


def test_without_a_curve_it_is_learned() -> None:
    seconds = PassSeconds([])
    assert seconds.of(3) == 0.0
    for _ in range(20):
        seconds.observe(1, 0.01)
        seconds.observe(5, 0.03)
    assert seconds.of(3) == pytest.approx(0.02, rel=0.1)
