"""A trained draft's passes as they are written out: the same as transformers' modules give, keys and values too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from engines.runtime.runner import ChainRow
from engines.sampling.draw import draw
from engines.sampling.process import process
from engines.sampling.rows import SamplingRow
from engines.torch.draft_weights import UNSAID, CutHead, quantised
from engines.torch.int8_linear import MOST_ROWS, Int8Linear
from engines.torch.runner import Row, Runner
from engines.torch.short_chains import ShortChains
from engines.torch.short_passes import ShortPasses, runs_short
from protocol.messages import Sampling
from testing.tiny_models import Architecture, make_tiny_model

SLOT_LENGTH = 96
KEPT = torch.arange(3, 384, 2)
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "rope_theta": 10_000.0}
FAMILIES: dict[str, tuple[Architecture, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama with biases and yarn": ("llama", {"attention_bias": True, "mlp_bias": True, "rope_parameters": YARN}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
}
SAMPLINGS = [
    Sampling(temperature=0.0, seed=5),
    Sampling(temperature=1.0, seed=5),
    Sampling(temperature=0.8, top_p=0.9, seed=-3),
    Sampling(temperature=1.2, top_k=20, min_p=0.01, seed=9),
]


def int8(layer: nn.Linear) -> Int8Linear:
    return Int8Linear(*quantised(layer.weight.detach()), layer.bias)


def make_runner(folder: Path, architecture: Architecture, changes: dict[str, Any], *, cut: bool = True) -> Runner:
    """A runner of a random model with int8 products, whose short passes are the modules'."""
    make_tiny_model(folder, architecture, hidden=64)
    config = AutoConfig.from_pretrained(folder)
    config.update(changes)
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_pretrained(folder, config=config)
    for name, layer in list(model.named_modules()):
        if isinstance(layer, nn.Linear) and layer is not model.lm_head:
            if layer.bias is not None:
                nn.init.normal_(layer.bias)
            model.set_submodule(name, int8(layer))
        elif name.endswith("norm"):
            nn.init.uniform_(layer.weight, 0.5, 1.5)
    head = int8(model.lm_head)
    if cut:
        head = CutHead(Int8Linear(*quantised(model.lm_head.weight.detach()[KEPT])), KEPT, 384)  # type: ignore[assignment]
    model.set_output_embeddings(head)
    return Runner(model, num_slots=4, slot_length=SLOT_LENGTH)


@pytest.fixture(scope="module", params=FAMILIES.values(), ids=list(FAMILIES))
def runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    made = make_runner(tmp_path_factory.mktemp("model"), *request.param)
    assert runs_short(made.model)
    return made


@pytest.fixture(scope="module")
def passes(runner: Runner) -> ShortPasses:
    return ShortPasses(runner.model, runner.cache)


def context(count: int, seed: int) -> list[int]:
    return torch.randint(3, 380, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def fed(runner: Runner, passes: ShortPasses | None, rows: list[Row]) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Logits of a pass behind contexts, and all the keys and values that are held then."""
    runner.short_passes = None
    runner.cache.keys.zero_()
    runner.cache.values.zero_()
    runner.forward([Row(row.slot, 0, context(row.start, row.slot), logits_from=row.start) for row in rows])
    runner.short_passes = passes
    logits = runner.forward(rows)
    runner.short_passes = None
    return logits, torch.stack([runner.cache.keys.clone(), runner.cache.values.clone()])


@pytest.mark.parametrize(
    "rows",
    [
        [Row(0, 40, context(1, 9))],
        [Row(2, 40, context(5, 9), logits_from=3)],
        [Row(1, 20, context(3, 8), logits_from=3), Row(0, 50, context(4, 9)), Row(3, 33, context(1, 7))],
        [Row(1, 0, context(MOST_ROWS, 8))],
    ],
    ids=["one token", "several", "several sequences", "without a context"],
)
def test_a_pass_gives_what_the_modules_give(runner: Runner, passes: ShortPasses, rows: list[Row]) -> None:
    assert passes.takes(rows)
    expected, held = fed(runner, None, rows)
    found, also_held = fed(runner, passes, rows)
    assert [one.shape for one in found] == [one.shape for one in expected]
    for one, other in zip(found, expected, strict=True):
        # Roundings differ, and now and then a value that is quantised falls on the other side of a half.
        assert torch.allclose(one, other, rtol=0, atol=0.05)
        assert torch.equal(one == UNSAID, other == UNSAID)
    assert torch.allclose(held, also_held, rtol=0, atol=0.05)
    assert not torch.allclose(held, torch.zeros(()), atol=0.05)


def test_long_passes_and_trees_are_left_to_the_modules(passes: ShortPasses) -> None:
    assert not passes.takes([Row(0, 0, context(MOST_ROWS + 1, 1))])
    assert not passes.takes([Row(0, 0, context(3, 1)), Row(1, 0, context(2, 1), parents=[-1, 0])])


def row_after(ids: list[int], sampling: Sampling) -> SamplingRow:
    return SamplingRow(sampling, sampling.seed, len(ids), ids, 0)


def read(runner: Runner, slot: int, ids: list[int], tail: int) -> None:
    runner.forward([Row(slot, 0, ids[:-tail], logits_from=len(ids) - tail)])


def token_by_token(runner: Runner, slot: int, ids: list[int], sampling: Sampling, count: int, tail: int) -> list[int]:
    text, start = list(ids), len(ids) - tail
    for _ in range(count):
        (logits,) = runner.forward([Row(slot, start, text[start:], logits_from=len(text) - start - 1)])
        start, row = len(text), row_after(text, sampling)
        text.append(int(draw(process(logits, [row]), [row])))
    return text[len(ids) :]


def chain(slot: int, ids: list[int], sampling: Sampling, count: int, tail: int) -> ChainRow:
    return ChainRow(Row(slot, len(ids) - tail, ids[-tail:], logits_from=tail - 1), row_after(ids, sampling), count)


@pytest.mark.parametrize("tail", [1, 3])
@pytest.mark.parametrize("cut", [True, False], ids=["cut head", "whole head"])
def test_chains_draw_what_single_tokens_draw(tmp_path: Path, cut: bool, tail: int) -> None:
    runner = make_runner(tmp_path, "llama", {}, cut=cut)
    passes = runner.short_passes = ShortPasses(runner.model, runner.cache)
    chains = ShortChains(runner, passes)
    contexts = [context(20 + 9 * slot, slot) for slot in range(4)]
    asked = [(slot, ids, SAMPLINGS[slot], 7 - slot, tail) for slot, ids in enumerate(contexts)]
    for slot, ids in enumerate(contexts):
        read(runner, slot, ids, tail)
    expected = [token_by_token(runner, *one) for one in asked]
    assert len({token for tokens in expected for token in tokens}) > 8
    runner.cache.keys.zero_()
    for slot, ids in enumerate(contexts):
        chains.read([Row(slot, 0, ids[:-tail], logits_from=len(ids) - tail)])
    # One by one, since the scale by which int8 products quantise their input is that of all rows of a pass.
    assert [chains.run([chain(*one)])[0] for one in asked] == expected
    # They go on from what the slots hold then, in which the last token of each answer is missing.
    ids = [*contexts[0], *expected[0]]
    on = chains.run([chain(0, ids, SAMPLINGS[0], 3, 1)])
    assert on == [token_by_token(runner, 0, ids, SAMPLINGS[0], 3, 1)]
    assert [len(tokens) for tokens in chains.run([chain(*one) for one in asked])] == [7, 6, 5, 4]


def test_a_chain_keeps_the_logits_that_its_tokens_were_drawn_from(tmp_path: Path) -> None:
    runner = make_runner(tmp_path, "llama", {}, cut=True)
    passes = runner.short_passes = ShortPasses(runner.model, runner.cache)
    ids, kept = context(20, 3), list[torch.Tensor]()
    read(runner, 0, ids, 1)
    asked = chain(0, ids, SAMPLINGS[0], 4, 1)
    (tokens,) = ShortChains(runner, passes).run([replace(asked, kept=kept)])
    whole = torch.stack(kept)
    assert whole.argmax(-1).tolist() == tokens
    fed = enumerate([ids[-1], *tokens[:-1]], start=19)
    expected = torch.cat([runner.forward([Row(0, place, [token])])[0] for place, token in fed])
    assert torch.equal(whole, expected)


def test_a_chain_ends_with_its_slot_and_with_what_can_not_be_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = make_runner(tmp_path, "llama", {})
    passes = ShortPasses(runner.model, runner.cache)
    chains = ShortChains(runner, passes)
    ids = context(SLOT_LENGTH - 2, 1)
    read(runner, 0, ids, 1)
    assert [len(one) for one in chains.run([chain(0, ids, SAMPLINGS[0], 8, 1)])] == [3]
    assert chains.run([chain(0, ids, SAMPLINGS[0], 0, 1)]) == [[]]
    monkeypatch.setattr(passes, "logits", lambda rows: torch.full((len(rows), 8), torch.nan))
    assert chains.run([chain(0, ids, SAMPLINGS[0], 2, 1)]) == [[]]


def test_which_rows_chains_take(tmp_path: Path) -> None:
    runner = make_runner(tmp_path, "llama", {})
    chains = ShortChains(runner, ShortPasses(runner.model, runner.cache))
    ids = context(20, 7)
    row = Row(0, 19, ids[-1:])
    assert chains.takes(row, row_after(ids, SAMPLINGS[0]))
    penalised = SAMPLINGS[0].model_copy(update={"presence_penalty": 0.5})
    assert not chains.takes(row, row_after(ids, penalised))
    assert not chains.takes(Row(0, 0, ids[: MOST_ROWS + 1]), row_after(ids, SAMPLINGS[0]))
    with pytest.raises(ValueError, match="outside the model's"):
        chains.run([ChainRow(Row(0, 0, [100_000]), row_after([100_000], SAMPLINGS[0]), 2)])


def test_models_with_other_layers_or_products_are_left_alone(tmp_path: Path) -> None:
    plain = AutoModelForCausalLM.from_pretrained(make_tiny_model(tmp_path / "plain"))
    assert not runs_short(plain), "its products are float32"
    other = AutoModelForCausalLM.from_pretrained(make_tiny_model(tmp_path / "other", "gpt_neox"))
    assert not runs_short(other)
