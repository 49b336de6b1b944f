"""What benchmarks/adaptive.py counts as a failure."""

from __future__ import annotations

import math
from typing import Any

import pytest

from benchmarks.adaptive import missed


def row(ratio: float, lowest: float = 0.5, drafted: float = 0.3, draft: str = "always wrong") -> dict[str, Any]:
    return {"draft": draft, "streams": 8, "ratio": ratio, "lowest": lowest, "drafted a token": drafted}


@pytest.mark.parametrize("ratio", [0.9499, 0.0, math.nan])
def test_a_median_below_the_aim_fails(ratio: float) -> None:
    (line,) = missed([row(1.2), row(ratio), row(0.95)])
    assert line.startswith("always wrong, streams: 8: ")


def test_a_single_low_run_does_not() -> None:
    assert missed([row(0.95, lowest=0.7), row(3.0)]) == []


def test_right_drafts_must_have_been_drafted() -> None:
    assert missed([row(1.0, drafted=0.0)]) == []
    assert "nothing was drafted" in missed([row(1.0, drafted=0.0, draft="always right")])[0]


def test_lookahead_must_not_be_slower_than_none() -> None:
    assert missed([row(1.0) | {"of off": 0.97, "lowest of off": 0.5}]) == []
    (line,) = missed([row(1.0) | {"of off": 0.969, "lowest of off": 0.9}])
    assert line == "always wrong, streams: 8: 0.969 of no lookahead, below 0.97"
