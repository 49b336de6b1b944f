"""A minute of mixed traffic while workers are killed (benchmarks/soak.py runs ten)."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.soak import soak


@pytest.mark.slow
def test_a_minute(tiny_model: Path, tiny_draft: Path) -> None:
    tally = soak(tiny_model, tiny_draft, 60, streams=4, every=15, tokens=48)
    assert tally.wrong == []
    assert tally.kills > 0
    assert set(tally.outcomes) == {"right"}
    assert tally.growth < 1.3
