"""Passes of a few tokens as on a GPU: logits equal those of ordinary passes, whoever shares them. Not captured here."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from engines.torch import graph_passes
from engines.torch.graph_passes import MOST_KEYS, SIZES, GraphPasses, capture_passes
from engines.torch.graphs import GraphPool
from engines.torch.runner import Row, Runner
from engines.torch.slot_attention import StaticPass
from testing.tiny_models import Architecture, make_tiny_model

CLOSE = {"rtol": 1e-4, "atol": 1e-4}
LENGTH = 96


@pytest.fixture(scope="module", params=["qwen2", "gpt_neox"])
def runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    architecture: Architecture = request.param
    folder = make_tiny_model(tmp_path_factory.mktemp(architecture), architecture)
    return Runner(AutoModelForCausalLM.from_pretrained(folder), num_slots=5, slot_length=LENGTH)


@pytest.fixture(scope="module")
def passes(runner: Runner) -> GraphPasses:
    return GraphPasses(runner)


@pytest.fixture
def used(runner: Runner, passes: GraphPasses) -> Iterator[GraphPasses]:
    """The runner has them."""
    runner.graph_passes = passes
    yield passes
    runner.graph_passes = None


def tokens(count: int, seed: int = 0) -> list[int]:
    return torch.randint(3, 380, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def read(runner: Runner, contexts: list[list[int]]) -> None:
    for slot, context in enumerate(contexts):
        runner.forward([Row(slot, 0, context, logits_from=len(context))])


def test_rows_of_several_sequences_equal_ordinary_passes(runner: Runner, passes: GraphPasses) -> None:
    contexts = [tokens(count, seed=count) for count in (5, 60, 1, 33)]
    for turn, lengths in enumerate([(1, 1, 1, 1), (2, 9, 1, 4), (9, 9, 9, 9), (20, 1, 30, 17)]):
        rows = [
            Row(slot, len(contexts[slot]), tokens(length, seed=10 * turn + slot), logits_from=min(slot, length) // 2)
            for slot, length in enumerate(lengths)
        ]
        read(runner, contexts)
        expected = runner.forward(rows)
        read(runner, contexts)
        found = passes.forward(rows)
        for own, captured in zip(expected, found, strict=True):
            assert captured.dtype == torch.float32
            torch.testing.assert_close(captured, own, **CLOSE)


def test_what_they_read_is_there_for_ordinary_passes_and_the_other_way_round(
    runner: Runner, passes: GraphPasses
) -> None:
    ids, others = tokens(60, seed=1), tokens(30, seed=2)
    whole = runner.forward([Row(0, 0, ids)])[0]
    passes.forward([Row(2, 0, others), Row(1, 0, ids[:20], logits_from=20)])
    runner.forward([Row(1, 20, ids[20:31], logits_from=11)])
    torch.testing.assert_close(passes.forward([Row(1, 31, ids[31:40])])[0], whole[31:40], **CLOSE)
    passes.forward([Row(1, 12, others)])  # goes back
    torch.testing.assert_close(runner.forward([Row(1, 12, ids[12:])])[0], whole[12:], **CLOSE)


def test_logits_outlast_the_next_pass(runner: Runner, passes: GraphPasses) -> None:
    first = passes.forward([Row(0, 0, tokens(7))])[0]
    kept = first.clone()
    passes.forward([Row(0, 0, tokens(7, seed=9))])
    assert torch.equal(first, kept)


def test_the_runner_has_them_make_what_they_take(
    runner: Runner, used: GraphPasses, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    forward = used.forward

    def counted(rows: list[Row]) -> list[Tensor]:
        asked.append(sum(len(row.token_ids) for row in rows))
        return forward(rows)

    monkeypatch.setattr(used, "forward", counted)
    runner.forward([Row(0, 0, tokens(9))])
    runner.forward([Row(0, 9, tokens(3), parents=[-1, 0, 0])])
    runner.forward([Row(0, 9, tokens(2)), Row(1, 0, tokens(6))])
    with pytest.raises(ValueError, match="exceed"):
        runner.forward([Row(0, LENGTH, tokens(1))])
    assert asked == [9, 8]


def test_what_they_take(passes: GraphPasses) -> None:
    most = max(size for size in SIZES if size <= 5 * LENGTH)
    assert passes.takes([Row(0, 50, [1] * 9), Row(1, 0, [1])])
    assert passes.takes([Row(0, 0, [1] * most)])
    assert not passes.takes([Row(0, 0, [1] * most), Row(1, 0, [1])])
    assert not passes.takes([Row(0, 0, [])])
    assert not passes.takes([Row(0, 0, [1, 2], parents=[-1, -1])])
    assert passes.takes([Row(0, MOST_KEYS - 1, [1])])
    assert not passes.takes([Row(0, MOST_KEYS // 8, [1] * 8)])  # keys that an ordinary pass reads once


def test_passes_that_do_not_read_where_they_should_are_not_used(
    runner: Runner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As if the host had read a position while its kernels were captured, and it stayed in the graph."""
    assert capture_passes(runner, "it") is not None

    def frozen(keys: Tensor, values: Tensor, slots: Tensor, positions: Tensor, slot_length: int) -> StaticPass:
        return StaticPass(keys, values, slots, torch.arange(len(positions)), slot_length)

    monkeypatch.setattr(graph_passes, "StaticPass", frozen)
    assert capture_passes(runner, "it") is None
    assert "differ" in caplog.text


def test_what_cannot_be_captured_is_launched_kernel_by_kernel(
    runner: Runner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(pool: GraphPool, function: Callable[[], None]) -> Callable[[], None]:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(GraphPool, "capture", refused)
    assert capture_passes(runner, "it") is None
    assert "not permitted" in caplog.text
