"""Which cells benchmarks/acceptance.py measures, and what it makes of the counts."""

from __future__ import annotations

import argparse
import math
import random
import statistics
from typing import Any

import pytest

from basics.names import STRATEGIES
from benchmarks.acceptance import cells, chosen_cells, name_of, ratio, summaries


def options(**chosen: Any) -> argparse.Namespace:
    return argparse.Namespace(
        **{"strategies": None, "temperatures": None, "draft_tokens": None, "candidates": None, **chosen}
    )


def test_every_strategy_is_measured_where_it_differs_from_the_others() -> None:
    for strategy in STRATEGIES:
        temperatures = {cell["temperature"] for cell in cells() if cell["strategy"] == strategy}
        assert temperatures == ({0.0, 0.7, 1.0} if strategy == "deterministic" else {0.7, 1.0})
    assert {cell["strategy"] for cell in cells() if cell["num_candidates"] > 1} == {"deterministic"}


def test_some_of_the_cells_can_be_chosen() -> None:
    assert chosen_cells(options()) == cells()
    some = chosen_cells(options(strategies=["threshold", "greedy"], temperatures=[0.7], draft_tokens=[5]))
    assert [(cell["strategy"], cell["temperature"], cell["draft_tokens"]) for cell in some] == [
        ("threshold", 0.7, 5),
        ("greedy", 0.7, 5),
    ]
    assert {cell["num_candidates"] for cell in chosen_cells(options(candidates=[3]))} == {3}
    assert chosen_cells(options(strategies=["greedy"], temperatures=[0.0])) == []


def test_a_ratios_standard_error_is_that_of_repeated_samples() -> None:
    rng = random.Random(3)

    def sample() -> tuple[list[float], list[float]]:
        wholes = [float(rng.randrange(20, 80)) for _ in range(12)]
        shares = [rng.betavariate(6, 3) for _ in wholes]
        return [share * whole for share, whole in zip(shares, wholes, strict=True)], wholes

    found = [ratio(*sample()) for _ in range(2000)]
    assert statistics.mean(error for _, error in found) == pytest.approx(statistics.stdev(r for r, _ in found), rel=0.1)


def test_a_ratio_of_too_little_is_nan() -> None:
    assert ratio([1.0], [4.0])[0] == 0.25
    assert math.isnan(ratio([1.0], [4.0])[1])
    assert math.isnan(ratio([], [])[0])
    assert ratio([2.0, 3.0], [4.0, 6.0]) == (0.5, 0.0)


def test_the_table_has_the_cells_that_were_measured_so_far() -> None:
    first, second, *_ = cells()
    runs = {
        f"HumanEval/0 {name_of(first)}": {"steps": 10, "drafted": 30, "accepted": 20, "seconds": 2.0, "tokens": 30},
        f"HumanEval/9 {name_of(first)}": {"steps": 20, "drafted": 60, "accepted": 30, "seconds": 4.0, "tokens": 50},
    }
    (row,) = summaries([first, second], runs)
    assert (row["prompts"], row["acceptance rate"], row["tokens/s"]) == (2, 50 / 90, 80 / 6)
    assert row["acceptance length"] == 1 + 50 / 30
    assert 0 < row["± rate"] < 0.1
    assert 0 < row["± length"] < 0.5
