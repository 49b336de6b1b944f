"""The runner against transformers itself, and against itself when the same tokens come in other rows."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from engines.runtime.engine import measure_step_seconds
from engines.torch.runner import Row, Runner
from testing.tiny_models import Architecture, make_tiny_model, make_toy_model

ARCHITECTURES: tuple[Architecture, ...] = get_args(Architecture)
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture(scope="module", params=ARCHITECTURES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def runner(folder: Path) -> Runner:
    return Runner(AutoModelForCausalLM.from_pretrained(folder), num_slots=4, slot_length=160)


def tokens(count: int, seed: int = 0) -> list[int]:
    return torch.randint(3, 380, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def test_logits_and_greedy_text_equal_those_of_transformers(folder: Path, runner: Runner) -> None:
    plain = AutoModelForCausalLM.from_pretrained(folder).eval()
    prompt = tokens(9)
    with torch.inference_mode():
        reference = plain(torch.tensor([prompt])).logits[0]
    torch.testing.assert_close(runner.forward([Row(0, 0, prompt)])[0], reference, **CLOSE)
    expected = plain.generate(torch.tensor([prompt]), max_new_tokens=40, do_sample=False, eos_token_id=None)[0].tolist()
    text = list(prompt)
    start = 0
    while len(text) < len(expected):
        logits = runner.forward([Row(0, start, text[start:], logits_from=len(text) - start - 1)])[0]
        assert logits.shape == (1, runner.vocab_size)
        assert logits.dtype == torch.float32
        start = len(text)
        text.append(int(logits.argmax()))
    assert text == expected


def test_ragged_batch_equals_single_rows(runner: Runner) -> None:
    contexts = [tokens(count, seed=count) for count in (5, 70, 1, 33)]
    tails = [tokens(count, seed=50 + count) for count in (1, 6, 3, 12)]
    for slot, context in enumerate(contexts):
        runner.forward([Row(slot, 0, context, logits_from=len(context))])
    rows = [Row(slot, len(contexts[slot]), tails[slot], logits_from=slot // 2) for slot in range(4)]
    together = runner.forward(rows)
    for slot, row in enumerate(rows):
        alone = runner.forward([Row(0, 0, [*contexts[slot], *tails[slot]], logits_from=row.start + row.logits_from)])[0]
        assert together[slot].shape == alone.shape
        torch.testing.assert_close(together[slot], alone, **CLOSE)


def test_attention_over_several_sequences_at_once(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on CUDA, by the operator's code for the CPU."""
    contexts = [tokens(count, seed=count) for count in (5, 70, 1, 33)]
    tails = [tokens(count, seed=50 + count) for count in (1, 6, 3, 12)]
    expected = []
    for at_once in (False, runner.takes_chains):
        monkeypatch.setattr(runner, "attends_at_once", at_once)
        runner.forward([Row(slot, 0, context, logits_from=len(context)) for slot, context in enumerate(contexts)])
        rows = [Row(slot, len(contexts[slot]), tails[slot]) for slot in range(4)]
        expected.append([*runner.forward(rows), *runner.forward([Row(2, 4, [7]), Row(0, 3, [9, 11])])])
    for separately, together in zip(*expected, strict=True):
        torch.testing.assert_close(together, separately, **CLOSE)


def test_chunks_and_truncation(runner: Runner) -> None:
    ids = tokens(90)
    whole = runner.forward([Row(0, 0, ids)])[0]
    pieces = [runner.forward([Row(1, at, ids[at : at + 17])])[0] for at in range(0, 90, 17)]
    torch.testing.assert_close(torch.cat(pieces), whole, **CLOSE)
    # Go back: what slot 1 held from 40 on is forgotten, whatever comes after.
    runner.forward([Row(1, 40, tokens(30, seed=9))])
    torch.testing.assert_close(runner.forward([Row(1, 40, ids[40:])])[0], whole[40:], **CLOSE)


def test_copy(runner: Runner) -> None:
    ids = tokens(30)
    whole = runner.forward([Row(0, 0, ids)])[0]
    runner.forward([Row(2, 0, tokens(40, seed=3))])
    runner.copy(0, 2, 20)
    runner.copy(2, 2, 20)
    torch.testing.assert_close(runner.forward([Row(2, 20, ids[20:])])[0], whole[20:], **CLOSE)


def branches(runner: Runner, context: list[int], paths: list[list[int]]) -> list[Tensor]:
    runner.forward([Row(3, 0, context, logits_from=len(context))])
    return [runner.forward([Row(3, len(context), path)])[0] for path in paths]


def test_tree_equals_its_branches_and_commit_keeps_one(runner: Runner) -> None:
    # a ─ b ─ c      and      f ─ g
    #   └ d ─ e
    a, b, c, d, e, f, g = tokens(7, seed=4)
    context, after = tokens(61), tokens(5, seed=8)
    parents = [-1, 0, 1, 0, 3, -1, 5]
    paths = {(0, 1, 2): [a, b, c], (0, 3, 4): [a, d, e], (5, 6): [f, g]}
    expected = branches(runner, context, list(paths.values()))
    for (nodes, ids), reference in zip(paths.items(), expected, strict=True):
        runner.forward([Row(0, 0, context, logits_from=61), Row(1, 0, tokens(20), logits_from=20)])
        # A chain beside it in the pass must neither change it nor be changed.
        tree, beside = runner.forward([Row(0, 61, [a, b, c, d, e, f, g], parents), Row(1, 20, after)])
        torch.testing.assert_close(tree[list(nodes)], reference, **CLOSE)
        runner.commit(0, 61, nodes)
        follow = runner.forward([Row(0, 61 + len(nodes), after)])[0]
        alone = runner.forward([Row(2, 0, [*context, *ids, *after], logits_from=61 + len(ids))])[0]
        torch.testing.assert_close(follow, alone, **CLOSE)
        torch.testing.assert_close(beside, runner.forward([Row(2, 0, [*tokens(20), *after])])[0][20:], **CLOSE)


def test_a_tree_may_have_more_nodes_than_the_slot_has_room(runner: Runner) -> None:
    context = tokens(158)
    runner.forward([Row(0, 0, context, logits_from=158)])
    wide = runner.forward([Row(0, 158, [5, 6, 7, 8], parents=[-1, -1, -1, 2])])[0]
    torch.testing.assert_close(wide[3], runner.forward([Row(0, 158, [7, 8])])[0][1], **CLOSE)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (Row(4, 0, [1]), "slot 4"),
        (Row(-1, 0, [1]), "slot -1"),
        (Row(0, -1, [1]), "negative"),
        (Row(0, 158, [1, 2, 3]), "exceed"),
        (Row(0, 159, [1, 2], parents=[-1, 0]), "exceed"),
        (Row(0, 0, [384]), "outside"),
        (Row(0, 0, [-1]), "outside"),
        (Row(0, 0, [1, 2], logits_from=3), "logits_from"),
        (Row(0, 0, [1, 2], parents=[-1]), "parents"),
        (Row(0, 0, [1, 2], parents=[1, -1]), "parent"),
        (Row(0, 0, [1, 2], parents=[-1, -2]), "parent"),
    ],
)
def test_wrong_rows_are_refused(toy: Runner, row: Row, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        toy.forward([row])


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    folder = make_tiny_model(tmp_path_factory.mktemp("refusing"), layers=1)
    return Runner(AutoModelForCausalLM.from_pretrained(folder), num_slots=4, slot_length=160)


def test_one_slot_twice_is_refused_and_commit_needs_a_tree(toy: Runner) -> None:
    with pytest.raises(ValueError, match="twice"):
        toy.forward([Row(0, 0, [1]), Row(0, 1, [1])])
    toy.forward([Row(0, 0, [1])])
    with pytest.raises(ValueError, match="no tree"):
        toy.commit(0, 1, [0])
    toy.commit(0, 1, [])
    toy.forward([Row(0, 1, [1, 2], parents=[-1, -1])])
    for path in ([2], [0, 1], [-1]):
        with pytest.raises(ValueError, match="path"):
            toy.commit(0, 1, path)
    with pytest.raises(ValueError, match="start"):
        toy.commit(0, 2, [0])


def test_rows_without_tokens(toy: Runner) -> None:
    empty, one = toy.forward([Row(0, 3, []), Row(1, 0, [5])])
    assert empty.shape == (0, toy.vocab_size)
    assert one.shape == (1, toy.vocab_size)
    assert [logits.shape[0] for logits in toy.forward([Row(0, 0, [])])] == [0]


def test_small_vocabulary_model(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(make_toy_model(tmp_path, vocabulary=6))
    logits = Runner(model, 1, 32).forward([Row(0, 0, [0, 1, 2, 3, 4, 5])])[0]
    probabilities = logits.softmax(-1)
    assert logits.shape == (6, 6)
    assert 0.2 < probabilities.max(-1).values.mean() < 0.9


def test_step_seconds_are_measured(toy: Runner) -> None:
    seconds = measure_step_seconds(toy, repeats=1)
    assert list(seconds) == [1, 2, 4, 8, 16, 32]
    assert all(value > 0 for value in seconds.values())
