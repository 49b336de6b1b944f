"""Chains drawn without the host: the same tokens as token by token, whoever shares the pass. On CPU: not captured."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM

from engines.runtime.runner import ChainRow
from engines.sampling.draw import draw
from engines.sampling.process import process
from engines.sampling.rows import SamplingRow
from engines.torch.chain_buffers import LONGEST_APART
from engines.torch.chains import APART_PLACES, MAX_SEQUENCES, MAX_TAIL, ChainRunner
from engines.torch.runner import Row, Runner
from protocol.messages import Sampling
from testing.tiny_models import Architecture, make_tiny_model

SLOT_LENGTH = 96
SAMPLINGS = [
    Sampling(temperature=0.0, seed=5),
    Sampling(temperature=1.0, seed=5),
    Sampling(temperature=0.8, top_p=0.9, seed=-3),
    Sampling(temperature=1.2, top_k=20, min_p=0.01, seed=9),
    Sampling(temperature=0.7, top_k=3, top_p=0.5, seed=2**62),
]


@pytest.fixture(scope="module", params=["qwen2", "gpt_neox"])
def runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    architecture: Architecture = request.param
    folder = make_tiny_model(tmp_path_factory.mktemp(architecture), architecture)
    return Runner(AutoModelForCausalLM.from_pretrained(folder), num_slots=5, slot_length=SLOT_LENGTH)


@pytest.fixture(scope="module")
def chains(runner: Runner) -> ChainRunner:
    return ChainRunner(runner, compiled=False)


@pytest.fixture(scope="module")
def with_apart(runner: Runner) -> tuple[Runner, ChainRunner]:
    """The same model's, with memory for chains apart."""
    other = Runner(runner.model, num_slots=5, slot_length=SLOT_LENGTH, apart=APART_PLACES)
    return other, ChainRunner(other, compiled=False)


def context(count: int, seed: int) -> list[int]:
    return torch.randint(3, 380, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def row_after(ids: list[int], sampling: Sampling) -> SamplingRow:
    return SamplingRow(sampling, sampling.seed, len(ids), ids, 0)


def token_by_token(runner: Runner, slot: int, ids: list[int], sampling: Sampling, count: int) -> list[int]:
    text = list(ids)
    start = 0
    for _ in range(count):
        logits = runner.forward([Row(slot, start, text[start:], logits_from=len(text) - start - 1)])[0]
        start = len(text)
        row = row_after(text, sampling)
        text.append(int(draw(process(logits, [row]), [row])))
    return text[len(ids) :]


def chain(slot: int, ids: list[int], sampling: Sampling, count: int, tail: int = 1) -> ChainRow:
    return ChainRow(Row(slot, len(ids) - tail, ids[-tail:], logits_from=tail - 1), row_after(ids, sampling), count)


@pytest.mark.parametrize("group", [[0], [1], [2], [0, 1], [4, 2, 3], [0, 1, 2, 3, 4]], ids=str)
def test_chains_draw_what_single_tokens_draw(runner: Runner, chains: ChainRunner, group: list[int]) -> None:
    for turn in range(2):
        contexts = [context(MAX_TAIL + 9 * slot, 10 * turn + slot) for slot in group]
        expected = [
            token_by_token(runner, slot, ids, SAMPLINGS[slot], 7 - slot)
            for slot, ids in zip(group, contexts, strict=True)
        ]
        rows = [
            chain(slot, ids, SAMPLINGS[slot], 7 - slot, tail=1 + (turn + slot) % MAX_TAIL)
            for slot, ids in zip(group, contexts, strict=True)
        ]
        assert chains.run(rows) == expected


def test_slots_hold_all_drawn_tokens_but_the_last(runner: Runner, chains: ChainRunner) -> None:
    sampling = SAMPLINGS[0]
    contexts = [context(20, 1), context(30, 2)]
    expected = [token_by_token(runner, slot, ids, sampling, 12) for slot, ids in enumerate(contexts)]
    first = chains.run([chain(slot, ids, sampling, 5 + slot) for slot, ids in enumerate(contexts)])
    longer = [[*ids, *drawn] for ids, drawn in zip(contexts, first, strict=True)]
    second = chains.run([chain(slot, ids, sampling, 7 - slot) for slot, ids in enumerate(longer)])
    assert [one + two for one, two in zip(first, second, strict=True)] == expected


def test_contexts_are_read_in_as_many_static_passes_as_they_take(runner: Runner, chains: ChainRunner) -> None:
    """Two that do not fit into one static pass together, the first of them begun by an ordinary one."""
    sampling = SAMPLINGS[1]
    one, other = context(80, 11), context(90, 12)
    assert len(one) - 31 + len(other) - 1 > MAX_TAIL * chains.max_sequences
    expected = [token_by_token(runner, slot, ids, sampling, 5) for slot, ids in ((0, one), (1, other))]
    runner.cache.keys.zero_()
    runner.forward([Row(3, 0, one[:30], logits_from=30)])
    chains.read([Row(3, 30, one[30:-1], logits_from=49), Row(4, 0, other[:-1], logits_from=89)])
    assert chains.run([chain(3, one, sampling, 5), chain(4, other, sampling, 5)]) == expected


def test_a_full_slot_waits_for_longer_chains_without_touching_others(runner: Runner, chains: ChainRunner) -> None:
    sampling = SAMPLINGS[0]
    full, neighbour = context(SLOT_LENGTH - 2, 3), context(9, 4)
    held = [token_by_token(runner, 1, neighbour, sampling, 12), token_by_token(runner, 0, full, sampling, 2)]
    drawn = chains.run([chain(0, full, sampling, 2), chain(2, full, sampling, 0), chain(1, neighbour, sampling, 12)])
    assert [drawn[2], drawn[0]] == held
    assert drawn[1] == []


def test_what_a_static_draw_can_not_tell_ends_the_chain(
    runner: Runner, chains: ChainRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engines.sampling.static.RANKED", 4)
    ids = context(20, 5)
    wide = Sampling(temperature=50.0, top_p=0.99, seed=1)
    narrow = Sampling(temperature=0.05, top_p=0.5, seed=1)
    expected = [token_by_token(runner, slot, ids, narrow, 6) for slot in (1, 2)]
    assert chains.run([chain(0, ids, wide, 6), chain(1, ids, narrow, 6), chain(2, ids, narrow, 3)]) == [
        [],
        expected[0],
        expected[1][:3],
    ]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_unusable_logits_are_left_to_the_ordinary_way(
    runner: Runner, chains: ChainRunner, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    for sampling in SAMPLINGS[:3]:
        monkeypatch.setattr(chains, "_pass", lambda *inputs: torch.full((len(inputs[-1]), 384), value))
        assert chains.run([chain(0, context(20, 6), sampling, 4)]) == [[]]


@pytest.mark.parametrize(
    "edit", [{"logit_bias": {"5": 1.0}}, {"presence_penalty": 0.5}, {"repetition_penalty": 1.1}, {"min_tokens": 30}]
)
def test_rows_with_edited_logits_and_long_tails_are_not_taken(
    runner: Runner, chains: ChainRunner, edit: dict[str, object]
) -> None:
    ids = context(20, 7)
    row = Row(0, 19, ids[-1:])
    assert chains.takes(row, row_after(ids, SAMPLINGS[0]))
    assert not chains.takes(row, row_after(ids, SAMPLINGS[0].model_copy(update=edit)))
    assert not chains.takes(Row(0, 20 - MAX_TAIL - 1, ids[-MAX_TAIL - 1 :]), row_after(ids, SAMPLINGS[0]))


def test_a_row_that_does_not_fit_is_refused(runner: Runner, chains: ChainRunner) -> None:
    with pytest.raises(ValueError, match="outside the model's"):
        chains.run([chain(0, [*context(5, 8), 100_000], SAMPLINGS[0], 2)])


def test_the_runner_up_is_what_would_be_drawn_without_the_token(runner: Runner, chains: ChainRunner) -> None:
    for number, sampling in enumerate(SAMPLINGS[:2]):
        ids, kept = context(20, 5 + number), list[torch.Tensor | int]()
        runner.forward([Row(number, 0, ids[:-1], logits_from=19)])
        (tokens,) = chains.run([replace(chain(number, ids, sampling, 4), kept=kept)])
        assert len(kept) == len(tokens) == 4
        for place, second in enumerate(kept):
            text = [*ids, *tokens[:place]]
            row = row_after(text, sampling)
            (logits,) = runner.forward([Row(number, 0, text, logits_from=len(text) - 1)])
            logits = logits.clone()
            logits[0, tokens[place]] = -torch.inf
            assert second == int(draw(process(logits, [row]), [row]))


def test_chains_apart_draw_what_others_would_draw_there_and_leave_the_slot_as_it_is(
    with_apart: tuple[Runner, ChainRunner],
) -> None:
    """Behind different parts of the slot, some of which are fed in the same call, and of what is to come after it."""
    runner, chains = with_apart
    for slot, sampling in enumerate(SAMPLINGS[:3]):
        ids = context(40, 20 + slot)
        text = ids + token_by_token(runner, slot, ids, sampling, 9)
        branches = [
            (place, context(count, place)) for place, count in ((39, 1), (40, 1), (20, 3), (1, 2), (0, 1), (33, 5))
        ]
        expected = [token_by_token(runner, 4, [*ids[:place], *instead], sampling, 6) for place, instead in branches]
        runner.forward([Row(slot, 0, ids[:30], logits_from=30)])
        rows = [
            ChainRow(Row(slot, place, instead, logits_from=len(instead) - 1),
                     row_after([*ids[:place], *instead], sampling), 6, [], apart=True)
            for place, instead in branches
        ]  # fmt: skip
        first = chains.run([chain(slot, ids, sampling, 5, tail=10), *rows])
        assert first == [text[40:45], *expected]
        assert all(len(row.kept or []) >= 6 for row in rows)
        # The slot has all of its own chain, whatever was drawn apart.
        assert chains.run([chain(slot, text[:45], sampling, 4)]) == [text[45:]]


def test_more_chains_apart_than_fit_into_one_pass(with_apart: tuple[Runner, ChainRunner]) -> None:
    runner, chains = with_apart
    sampling, ids = SAMPLINGS[1], context(30, 41)
    runner.forward([Row(0, 0, ids[:-1], logits_from=29)])
    others = [[*ids[:20], 7 + number] for number in range(MAX_SEQUENCES + 3)]
    expected = [token_by_token(runner, 3, other, sampling, 3) for other in others]
    rows = [
        ChainRow(Row(0, 20, other[20:], logits_from=0), row_after(other, sampling), 3, apart=True) for other in others
    ]
    # A longer one beside them: those in the last places have none behind them.
    assert chains.run([chain(0, ids, sampling, 30), *rows])[1:] == expected


def test_a_chain_apart_that_has_no_room_is_refused(
    runner: Runner, chains: ChainRunner, with_apart: tuple[Runner, ChainRunner]
) -> None:
    ids = context(20, 6)
    one = ChainRow(Row(0, 19, ids[-1:]), row_after(ids, SAMPLINGS[0]), LONGEST_APART, apart=True)
    with pytest.raises(ValueError, match=f"room for {LONGEST_APART} tokens"):
        with_apart[1].run([one])
    with pytest.raises(ValueError, match="room for 0 tokens"):
        chains.run([replace(one, count=1)])
