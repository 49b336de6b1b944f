"""Whatever speculates, the text is the target's own, token for token: real processes in bitwise mode."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from testing.client import Answer
from testing.equality import PROMPTS as CELL_PROMPTS
from testing.equality import Cell, Reference, compare, covering_array, drawn, unproven, unproven_alone
from testing.models import bundled
from testing.prompts import SHORT
from testing.stacks import Services, speculative
from tests.real.rig import until_drafted

SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 0.9, "top_p": 0.95, "seed": 11},
}
DRAFTED = [(drafter, draft_tokens) for drafter in ("lookup", "model", "scripted") for draft_tokens in (1, 3, 8)]
PROMPTS = SHORT[:3]
OPTIONS: dict[str, Any] = {"max_tokens": 32, "logprobs": True}
NEAR_TIE = 1e-3
DRAWN = drawn(covering_array(), 14)


@pytest.fixture(scope="module")
def plain(tiny: Services) -> dict[str, list[Answer]]:
    """Plain decoding's answers to PROMPTS, by the name of the sampling parameters."""
    return {
        name: [tiny.client.chat(prompt, speculative=speculative("none"), **OPTIONS, **sampling) for prompt in PROMPTS]
        for name, sampling in SAMPLINGS.items()
    }


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(("drafter", "draft_tokens"), DRAFTED)
def test_tiny_model(
    tiny: Services, plain: dict[str, list[Answer]], sampling: str, drafter: str, draft_tokens: int
) -> None:
    for prompt, expected in zip(PROMPTS, plain[sampling], strict=True):

        def ask(prompt: str = prompt) -> Answer:
            block = speculative(drafter, draft_tokens)
            return tiny.client.chat(prompt, speculative=block, **OPTIONS, **SAMPLINGS[sampling])

        # Prompt lookup may find nothing to draft from.
        found = [ask()] if drafter == "lookup" else until_drafted(ask)
        assert {answer.identity for answer in found} == {expected.identity}


@pytest.mark.real
def test_bundled_model_says_what_transformers_says(
    bundled_services: Services, capsys: pytest.CaptureFixture[str]
) -> None:
    """Greedy text equals transformers' generate up to the first token whose two best logits lie within NEAR_TIE."""
    covered = total = 0
    generate = _transformers(bundled())
    for prompt in SHORT[:3]:
        found = bundled_services.client.chat(
            prompt, max_tokens=24, temperature=0.0, speculative=speculative("model", 3)
        )
        text, count = generate(prompt, 24)
        assert found.text.startswith(text)
        covered, total = covered + count, total + found.completion_tokens
    with capsys.disabled():
        print(f"\nequal to transformers' generate: {covered} of {total} tokens lie before a near-tie")
    assert covered > 0


class Cells:
    """The results of cells, each asked for once."""

    def __init__(self, services: Services) -> None:
        self._client = services.client
        self._reference = Reference(services.client)
        self._known: dict[Cell, dict[str, Any]] = {}

    def result(self, cell: Cell) -> dict[str, Any]:
        if cell not in self._known:
            self._known[cell] = compare(self._client, self._reference, cell, CELL_PROMPTS[:1], max_tokens=24)
        return self._known[cell]


@pytest.fixture(scope="module")
def cells(bundled_services: Services) -> Cells:
    return Cells(bundled_services)


@pytest.mark.real
@pytest.mark.parametrize("cell", DRAWN, ids=lambda cell: cell.name)
def test_drawn_cells(cells: Cells, cell: Cell) -> None:
    result = cells.result(cell)
    assert result["differences"] == []
    assert unproven_alone(cell, result) is None


@pytest.mark.real
def test_the_drawn_cells_accepted_drafts(cells: Cells, capsys: pytest.CaptureFixture[str]) -> None:
    """Equal texts show little where nothing was drafted, and less than they should where nothing was accepted."""
    results = {cell: cells.result(cell) for cell in DRAWN}
    assert unproven(results) == []
    accepting = [cell for cell, result in results.items() if result["accepted"] > 0]
    assert sum(cell.drafter == "partly_right" for cell in accepting) >= 2
    with capsys.disabled():
        print(f"\naccepted {sum(r['accepted'] for r in results.values())} tokens in {len(accepting)} drawn cells")


def _transformers(folder: Path) -> Callable[[str, int], tuple[str, int]]:
    """transformers' greedy text before the first near-tie, and its number of tokens (an end-of-turn token included)."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")

    def generate(prompt: str, max_tokens: int) -> tuple[str, int]:
        messages = [{"role": "user", "content": prompt}]
        inputs = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        found = model.generate(
            **inputs, max_new_tokens=max_tokens, do_sample=False, output_logits=True, return_dict_in_generate=True
        )
        new = found.sequences[0, inputs["input_ids"].shape[1] :].tolist()
        best = [logits[0].topk(2).values.tolist() for logits in found.logits]
        count = next((index for index, (first, second) in enumerate(best) if first - second < NEAR_TIE), len(new))
        return tokenizer.decode(new[:count], skip_special_tokens=True), count

    return generate
