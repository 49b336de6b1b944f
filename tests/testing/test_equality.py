"""What testing/equality.py asks, and what it accepts as shown."""

from __future__ import annotations

import itertools
from dataclasses import asdict
from typing import Any

import pytest

from testing.client import Answer
from testing.equality import (
    AHEAD,
    FACTORS,
    LOOKS_AHEAD,
    TRIES,
    Cell,
    Reference,
    compare,
    covering_array,
    drawn,
    unproven,
)

CELLS = covering_array()
IDLE = ("draft_tokens", "candidates", "adaptive")


def test_every_two_settings_meet_in_a_cell() -> None:
    assert len(CELLS) <= 60
    for one, other in itertools.combinations(FACTORS, 2):
        for values in itertools.product(FACTORS[one], FACTORS[other]):
            wanted = dict(zip((one, other), values, strict=True))
            if wanted.get("drafter") == "none" and {one, other} & set(IDLE):
                continue
            assert any(wanted.items() <= asdict(cell).items() for cell in CELLS), wanted


def test_drafts_that_may_be_accepted_meet_every_shape_of_a_round() -> None:
    shapes = {(c.draft_tokens, c.candidates, c.adaptive) for c in CELLS if c.drafter == "partly_right"}
    assert shapes == set(itertools.product(*(FACTORS[name] for name in IDLE)))


@pytest.mark.parametrize("drafter", LOOKS_AHEAD)
def test_drafts_that_may_be_prepared_meet_every_length(drafter: str) -> None:
    shapes = {(c.draft_tokens, c.adaptive) for c in CELLS if c.drafter == drafter and c.candidates == 1}
    assert shapes == set(itertools.product(FACTORS["draft_tokens"], FACTORS["adaptive"]))


def test_the_drawn_cells_have_all_drafters_by_turns() -> None:
    chosen = drawn(CELLS, 14)
    assert len(set(chosen)) == 14
    assert {cell.drafter for cell in chosen} == set(FACTORS["drafter"])
    partly_right = [cell for cell in chosen if cell.drafter == "partly_right"]
    assert {cell.draft_tokens for cell in partly_right} == {1, 3, 8}
    assert {cell.candidates for cell in partly_right} == {1, 3}
    prepared = [cell for cell in chosen if cell.drafter in LOOKS_AHEAD and cell.candidates == 1]
    assert {(cell.drafter, cell.adaptive) for cell in prepared} == set(itertools.product(LOOKS_AHEAD, (False, True)))


def result(drafted: int, accepted: int, prepared: int = 0) -> dict[str, Any]:
    return {"differences": [], "drafted": drafted, "accepted": accepted, "prepared": prepared, "ahead": 0}


def cell(drafter: str, adaptive: bool = False, candidates: int = 1) -> Cell:
    return Cell(0.0, 1.0, False, drafter, 3, candidates, adaptive)


def test_a_drafter_that_never_answers_proves_nothing() -> None:
    silent = {cell: result(0, 0) for cell in CELLS}
    missing = "\n".join(unproven(silent))
    assert all(drafter in missing for drafter in FACTORS["drafter"] if drafter != "none")
    assert missing.count("partly_right") >= 12


@pytest.mark.parametrize(
    ("counts", "missing"),
    [
        ({cell("partly_right"): (40, 12), cell("partly_right", adaptive=True): (9, 0)}, "no token accepted"),
        ({cell("model"): (0, 0)}, "no token drafted"),
        ({cell("model", True): (0, 0), cell("model", True, 3): (0, 0)}, "no token drafted: any cell of model"),
        ({cell("model", True): (0, 0), cell("model", True, 3): (5, 0)}, None),
        ({cell("model", True): (0, 0), cell("model"): (5, 0, 1)}, None),
        ({cell("model"): (5, 2, 0)}, "no prepared token used"),
        ({cell("model", True): (5, 2, 0), cell("model", candidates=3): (5, 2, 0)}, None),
        ({cell("lookup"): (0, 0), cell("lookup", candidates=3): (4, 0)}, "no token accepted: any cell of lookup"),
        ({cell("lookup"): (0, 0), cell("lookup", candidates=3): (4, 1)}, None),
        ({cell("none"): (0, 0), cell("scripted"): (8, 0), cell("partly_right"): (40, 12)}, None),
    ],
)
def test_what_cells_must_show(counts: dict[Cell, tuple[int, ...]], missing: str | None) -> None:
    found = unproven({one: result(*numbers) for one, numbers in counts.items()})
    assert found == [] if missing is None else missing in found[0]


class Gateway:
    """Answers every prompt with the same text, or at the `differs`-th request with another; drafts after `silent`, one
    token of which was prepared."""

    def __init__(self, silent: int = 0, differs: int | None = None) -> None:
        self.asked: list[dict[str, Any]] = []
        self._silent = silent
        self._differs = differs
        self._prepared = 0

    def chat(self, prompt: str, **options: Any) -> Answer:
        self.asked.append(options)
        drafted = 0 if len(self.asked) <= self._silent else 6
        text = "another" if len(self.asked) == self._differs else "one"
        counts = {"num_draft_tokens": drafted, "num_accepted_draft_tokens": drafted // 2}
        self._prepared += drafted > 0
        return Answer(text, (), "length", 4, 4, 0.1, counts if options["speculative"].get("draft_model") else None)

    def metrics(self) -> dict[str, float]:
        return dict.fromkeys(AHEAD.values(), float(self._prepared))


def run(gateway: Gateway, one: Cell, prompts: int = 2) -> dict[str, Any]:
    client: Any = gateway
    return compare(client, Reference(client), one, [f"prompt {i}" for i in range(prompts)], max_tokens=8)


def test_a_cell_is_compared_with_plain_decoding() -> None:
    gateway = Gateway()
    expected = {"differences": [], "drafted": 12, "accepted": 6, "prepared": 4, "ahead": 4}
    assert run(gateway, cell("scripted")) == expected
    assert [bool(options["speculative"].get("draft_model")) for options in gateway.asked] == [False, True] * 2
    assert len(run(Gateway(differs=4), cell("scripted"))["differences"]) == 1


def test_drafts_that_are_to_be_right_are_taught_first() -> None:
    gateway = Gateway()
    run(gateway, cell("partly_right", candidates=3), prompts=1)
    plain, taught, compared = gateway.asked
    assert (taught["speculative"]["draft_tokens"], taught["speculative"]["num_candidates"]) == (1, 1)
    assert taught["max_tokens"] == compared["max_tokens"] + 2
    assert (plain["seed"], plain["temperature"]) == (taught["seed"], taught["temperature"])


def test_prompts_are_asked_again_while_nothing_was_drafted() -> None:
    assert run(Gateway(silent=5), cell("model"))["drafted"] == 6
    gateway = Gateway(silent=99)
    assert run(gateway, cell("model"))["drafted"] == 0
    assert len(gateway.asked) == 2 * (1 + TRIES), "each once without drafts"
