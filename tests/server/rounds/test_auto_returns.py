"""How soon `auto` drafts with a new pair, and how soon again after drafts that did not pay, on a virtual clock.

The machine is the bundled pair's on two cores; requests have 64 tokens. 1.0 is plain decoding's speed, 1.39 the best
fixed γ's on `warm chat`, 1.90 on `chat`.
"""

from __future__ import annotations

import asyncio
from random import Random
from statistics import mean

from basics.names import AUTO
from tests.server.rounds.auto_simulator import Day, Machine

STEP = 0.0302


async def _speeds(kinds: list[str], seed: int, busy_until: float) -> list[float]:
    machine = Machine(
        step=STEP,
        per_row=0.0007,
        network=0.002,
        call=0.0024,
        fixed=0.0006,
        per_token=0.0016,
        per_read=0.0002,
        rng=Random(seed),
        busy_until=busy_until,
    )
    day = Day(AUTO, 32, machine, seed)
    return [64 * STEP / await day.answer([kind]) for kind in kinds]


def speed(kinds: list[str], first: int = 0, busy_until: float = 0.0) -> float:
    """Of all requests from `first` on."""
    runs = [asyncio.run(_speeds(kinds, seed, busy_until)) for seed in range(1, 13)]
    return mean(1.0 / mean(1.0 / one for one in run[first:]) for run in runs)


def test_a_new_pair_drafts_from_its_first_request_on() -> None:
    assert speed(["chat"] * 4) >= 0.9 * 1.90
    assert speed(["warm chat"] * 4) >= 0.9 * 1.39


def test_what_a_machine_took_that_was_busy_at_first_does_not_stop_drafts() -> None:
    """8 s: two requests. Rounds that were tried then, and how long they took, are no measure of what they take now."""
    assert speed(["warm chat"] * 8, first=2, busy_until=8.0) >= 1.22
    assert speed(["mild chat"] * 8, first=2, busy_until=8.0) >= 1.11


def test_plain_decoding_measured_on_a_busy_machine_does_not_make_wrong_drafts_look_worth_it() -> None:
    assert speed(["other"] * 8, first=2, busy_until=8.0) >= 0.98


def test_a_model_that_was_always_wrong_is_found_to_be_right() -> None:
    assert speed(["other"] * 6 + ["chat"] * 6, first=6) >= 1.2
    assert speed(["other"] * 20 + ["chat"] * 8, first=20) >= 1.2


def test_finding_out_costs_little_where_the_model_stays_wrong() -> None:
    assert speed(["other"] * 4) >= 0.97
    assert speed(["other"] * 20) >= 0.98


def test_a_model_that_could_not_pay_if_it_were_always_right_costs_next_to_nothing_from_the_first_request_on() -> None:
    """The 0.5B for the 1.5B on two cores (docs/benchmarks.md): a row more takes the target nearly as long as its first,
    and while the model reads a prompt the target's tokens take half as long again."""

    async def speeds(seed: int) -> list[float]:
        machine = Machine(
            step=0.030, per_row=0.024, call=0.002, network=0.002, per_token=0.012, read_delay=0.002, rng=Random(seed)
        )
        day = Day(AUTO, 32, machine, seed, draw_seconds=machine.per_token)
        return [64 * machine.step / await day.answer(["chat"]) for _ in range(24)]

    runs = [asyncio.run(speeds(seed)) for seed in range(1, 7)]
    assert mean(run[0] for run in runs) >= 0.97
    assert mean(1.0 / mean(1.0 / one for one in run[:4]) for run in runs) >= 0.97
    assert mean(1.0 / mean(1.0 / one for one in run) for run in runs) >= 0.97
