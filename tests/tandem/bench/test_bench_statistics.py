"""The numbers of `tandem bench`, against scipy and against sums done by hand."""

from __future__ import annotations

import math
import random

import numpy
import pytest
from scipy import stats

from tandem.bench.statistics import Acceptance, Pair, acceptance, median, quantile, speed_up, spread


@pytest.mark.parametrize("count", [1, 2, 3, 10, 99, 100, 101])
@pytest.mark.parametrize("q", [0.5, 0.9, 0.99])
def test_quantiles_are_those_of_the_inverse_distribution(count: int, q: float) -> None:
    values = random.Random(count).sample(range(10_000), count)
    assert quantile(values, q) == numpy.quantile(values, q, method="inverted_cdf")


def test_nothing_has_no_quantile() -> None:
    assert math.isnan(quantile([], 0.5))
    assert math.isnan(median([]))


def test_a_speed_up_is_of_seconds_a_token() -> None:
    # 2 s for 10 tokens against 1 s for 20: a fifth of a second a token against a twentieth.
    assert speed_up({"a": [Pair(2.0, 10, 1.0, 20)]}).value == pytest.approx(4.0)
    # Together, not the mean of 4 and 1: (2 + 8) / 20 tokens against (1 + 8) / 30.
    both = {"a": [Pair(2.0, 10, 1.0, 20)], "b": [Pair(8.0, 10, 8.0, 10)]}
    assert speed_up(both).value == pytest.approx((10 / 20) / (9 / 30))
    assert spread(both) == (pytest.approx(1.0), pytest.approx(4.0))


def test_one_prompt_has_no_interval() -> None:
    found = speed_up({"a": [Pair(2.0, 10, 1.0, 10)] * 5})
    assert found.value == pytest.approx(2.0)
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    assert math.isnan(speed_up({}).value)


def test_the_interval_is_scipys() -> None:
    draw = random.Random(3)
    pairs = [Pair(draw.uniform(1, 3), 10, draw.uniform(0.5, 2), 10) for _ in range(25)]
    found = speed_up(dict(enumerate([pair] for pair in pairs)), resamples=20_000)

    def ratio(base: numpy.ndarray, seconds: numpy.ndarray, axis: int) -> numpy.ndarray:
        return base.sum(axis) / seconds.sum(axis)

    base, seconds = ([getattr(pair, name) for pair in pairs] for name in ("base_seconds", "seconds"))
    theirs = stats.bootstrap(
        (base, seconds), ratio, paired=True, method="percentile", n_resamples=20_000, rng=numpy.random.default_rng(5)
    ).confidence_interval
    assert found.low == pytest.approx(theirs.low, rel=0.01)
    assert found.high == pytest.approx(theirs.high, rel=0.01)
    assert found.low < found.value < found.high


def test_repetitions_of_a_prompt_are_no_prompts_of_their_own() -> None:
    once = {number: [Pair(1.0 + number, 10, 1.0, 10)] for number in range(8)}
    often = {number: found * 50 for number, found in once.items()}
    assert speed_up(often).low == pytest.approx(speed_up(once).low), "no narrower, however often each is asked"
    assert speed_up(once).high - speed_up(once).low > 1


def test_acceptance_adds_up_over_answers() -> None:
    first = {
        "num_spec_steps": 3,
        "num_draft_tokens": 9,
        "num_accepted_draft_tokens": 4,
        "acceptance_histogram": [1, 1, 0, 1],
    }
    second = {
        "num_spec_steps": 1,
        "num_draft_tokens": 5,
        "num_accepted_draft_tokens": 5,
        "acceptance_histogram": [0, 0, 0, 0, 0, 1],
    }
    found = acceptance([first, None, second, {}])
    assert found == Acceptance(4, 14, 9, (1, 1, 0, 1, 0, 1))
    assert found.rate == pytest.approx(9 / 14)
    assert found.length == pytest.approx(1 + 9 / 4)
    # Of four drafts three had their first token accepted, two their second and third, one its fourth and fifth.
    assert found.by_position == pytest.approx([3 / 4, 2 / 4, 2 / 4, 1 / 4, 1 / 4])
    assert sum(found.by_position) * found.rounds == pytest.approx(found.accepted)


def test_nothing_drafted_has_no_rate() -> None:
    found = acceptance([{"num_spec_steps": 0, "acceptance_histogram": [0, 0, 0]}])
    assert math.isnan(found.rate)
    assert math.isnan(found.length)
    assert found.by_position == []
