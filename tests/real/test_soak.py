"""Mixed traffic while workers are killed (benchmarks/soak.py runs ten minutes of it, on the bundled model)."""

from __future__ import annotations

from pathlib import Path

import pytest

from testing.soak import soak


@pytest.mark.parametrize("seconds", [12, pytest.param(60, marks=pytest.mark.slow)])
def test_mixed_traffic(tiny_model: Path, tiny_draft: Path, seconds: float) -> None:
    tally = soak(tiny_model, tiny_draft, seconds, streams=4, every=4, tokens=48)
    assert tally.wrong == []
    assert tally.kills > 0
    assert set(tally.outcomes) == {"right"}
    assert tally.growth < 1.3
