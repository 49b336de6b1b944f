"""Sequences kept in one file, and gathered into batches of what was said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from training.corpus import Corpus, grouped, make_batch, plan_batches
from training.errors import TrainingError
from training.sampler import Answer, Prompt

SEQUENCES = [([5, 6, 7, 8], 2, 0.7, "chat"), ([9, 9], 0, -1.0, "code"), ([1, 2, 3], 1, 0.0, "chat")]


def listed(corpus: Corpus) -> list[tuple[list[int], int, float, str]]:
    columns = zip(corpus.starts.tolist(), corpus.temperatures.tolist(), corpus.kinds, strict=True)
    return [
        (corpus.sequence(i).tolist(), start, pytest.approx(heat), kind) for i, (start, heat, kind) in enumerate(columns)
    ]


def test_a_file_brings_back_what_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "answers" / "000.safetensors"
    Corpus.of(SEQUENCES).save(path)
    assert listed(Corpus.load(path)) == SEQUENCES
    assert [file.name for file in path.parent.iterdir()] == [path.name], "nothing half written is left"


def test_parts_are_joined_in_their_order() -> None:
    joined = Corpus.joined([Corpus.of(SEQUENCES[:1]), Corpus.of(SEQUENCES[1:])])
    assert listed(joined) == SEQUENCES
    with pytest.raises(TrainingError, match="nothing to train on"):
        Corpus.joined([])


def test_only_what_was_said_counts() -> None:
    corpus = Corpus.of(SEQUENCES)
    assert corpus.said == 2 + 2 + 2
    assert np.flatnonzero(corpus.token_counts(12)).tolist() == [2, 3, 7, 8, 9]
    assert corpus.token_counts(12)[9] == 2


def test_an_answer_begins_after_its_prompt() -> None:
    corpus = Corpus.of_answers([Answer(Prompt((4, 5), 0.5, 9, "chat"), (6, 7, 8))])
    assert listed(corpus) == [([4, 5, 6, 7, 8], 2, 0.5, "chat")]
    assert corpus.said == 3


def test_a_batchs_places_come_just_before_what_was_said() -> None:
    corpus = Corpus.of(SEQUENCES)
    batch = make_batch(corpus, [0, 1, 2], longest=100)
    assert batch.ids.shape == (3, 64)
    assert batch.said.tolist() == [7, 8, 9, 2, 3], "the first token of a text comes after nothing"
    assert batch.counts == [2, 1, 2]
    cut = make_batch(corpus, [0, 2], longest=3)
    assert cut.said.tolist() == [7, 2, 3]


@pytest.mark.parametrize("seed", [0, 1])
def test_one_pass_takes_each_usable_sequence_once(seed: int) -> None:
    lengths = [(7 * i) % 190 + 1 for i in range(300)]
    corpus = Corpus.of([([1] * length, min(i % 3 * 40, length), 0.0, "") for i, length in enumerate(lengths)])
    plans = plan_batches(corpus, tokens=512, longest=100, seed=seed)
    usable = [i for i, length in enumerate(lengths) if min(length, 100) > max(1, corpus.starts[i])]
    assert sorted(index for plan in plans for index in plan) == usable
    assert all(make_batch(corpus, plan, 100).ids.numel() <= 512 for plan in plans)
    assert plans == plan_batches(corpus, tokens=512, longest=100, seed=seed)
    assert plans != plan_batches(corpus, tokens=512, longest=100, seed=seed + 1)


def test_a_group_is_as_wide_as_its_longest() -> None:
    lengths = np.array([10, 60, 70, 300, 10])
    assert list(grouped([0, 1, 2, 3, 4], lengths, tokens=256)) == [[0, 1], [2], [3], [4]]
    assert list(grouped([0, 4, 1], lengths, tokens=256)) == [[0, 4, 1]]
