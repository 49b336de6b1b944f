from __future__ import annotations

import json
import random

import pytest
import torch
from tokenizers import Tokenizer

from engines.grammar import state as state_module
from engines.grammar.bitmask import only_permitted, permits, unpack
from engines.grammar.compiler import CompiledGrammar, GrammarCompiler
from engines.grammar.errors import GrammarError
from engines.grammar.state import GrammarState
from protocol.messages import Grammar
from tests.engines.grammar.conftest import LOGITS_SIZE

STOP = 0
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"type": "integer"}}},
    "required": ["name", "tags"],
}


@pytest.fixture
def compiled(compiler: GrammarCompiler) -> CompiledGrammar:
    return compiler.compile(Grammar(type="json_schema", value=json.dumps(SCHEMA), start=0))


def _mask(state: GrammarState) -> torch.Tensor:
    return state.masks_along([]).bitmask[0]


def _walk(compiled: CompiledGrammar, rng: random.Random, length: int) -> list[int]:
    """Random tokens that the grammar takes, up to its end."""
    state = GrammarState(compiled)
    ids: list[int] = []
    while len(ids) < length and not state.terminated:
        ids.append(rng.choice(unpack(_mask(state)[None], LOGITS_SIZE)[0].nonzero().flatten().tolist()))
        state.sync(ids)
    return ids


def test_masks_along_a_chain_equal_those_step_by_step(compiled: CompiledGrammar) -> None:
    for seed in range(20):
        rng = random.Random(seed)
        ids = _walk(compiled, rng, 40)
        wrong = rng.randrange(len(ids) + 1)
        drafts = [*ids[:wrong], 400, *ids[wrong:]] if seed % 2 else ids
        state = GrammarState(compiled)
        masks = state.masks_along(drafts)
        assert state.token_ids == []
        follower = GrammarState(compiled)
        for index in range(len(drafts) + 1):
            if index and not masks.alive[index - 1]:
                assert not permits(masks.bitmask[index - 1], drafts[index - 1])
                assert not any(masks.alive[index - 1 :])
                assert bool((masks.bitmask[index:] == -1).all())
                break
            follower.sync(drafts[:index])
            assert torch.equal(masks.bitmask[index], _mask(follower))
        else:
            assert all(masks.alive)


def test_masks_along_a_tree_equal_those_of_its_paths(compiled: CompiledGrammar) -> None:
    for seed in range(15):
        rng = random.Random(seed)
        context = _walk(compiled, rng, rng.randrange(12))
        drafts: list[int] = []
        parents: list[int] = []
        for index in range(40):
            parents.append(rng.randrange(-1, index))
            path = _path(parents, index)
            state = GrammarState(compiled)
            try:
                state.sync([*context, *(drafts[node] for node in path[:-1])])
                choices = unpack(_mask(state)[None], LOGITS_SIZE)[0].nonzero().flatten().tolist()
            except GrammarError:
                choices = [400]
            drafts.append(rng.choice(choices) if rng.random() < 0.8 else rng.randrange(-1, LOGITS_SIZE + 5))
        state = GrammarState(compiled)
        state.sync(context)
        masks = state.masks_along(drafts, parents)
        assert state.token_ids == context
        for index in range(len(drafts)):
            follower = GrammarState(compiled)
            try:
                follower.sync([*context, *(drafts[node] for node in _path(parents, index))])
            except GrammarError:
                assert not masks.alive[index]
                continue
            assert masks.alive[index]
            assert torch.equal(masks.bitmask[index + 1], _mask(follower))


def _path(parents: list[int], node: int) -> list[int]:
    path: list[int] = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def test_a_synced_state_equals_one_built_from_scratch(compiled: CompiledGrammar) -> None:
    rng = random.Random(1)
    walks = [_walk(compiled, rng, 60) for _ in range(4)]
    state = GrammarState(compiled)
    for _ in range(60):
        walk = rng.choice(walks)
        tokens = walk[: rng.randrange(len(walk) + 1)]
        state.sync(tokens)
        fresh = GrammarState(compiled)
        fresh.sync(tokens)
        assert state.token_ids == tokens
        assert state.terminated == fresh.terminated
        assert torch.equal(_mask(state), _mask(fresh))


def test_rolls_back_hundreds_of_tokens(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    compiled = compiler.compile(Grammar(type="regex", value="a*b", start=0))
    a, b = (tokenizer.token_to_id(letter) for letter in "ab")
    state = GrammarState(compiled)
    state.sync([a] * 1000)
    assert all(state.masks_along([a] * 300).alive)
    state.sync([b, STOP])
    assert state.terminated
    state.sync([a])
    assert not state.terminated


def test_a_refused_token_is_named_and_what_came_before_it_stays(compiled: CompiledGrammar) -> None:
    ids = _walk(compiled, random.Random(3), 5)
    state = GrammarState(compiled)
    for wrong in (400, -1, LOGITS_SIZE, 10**9, STOP, 1):
        with pytest.raises(GrammarError, match=f"token 5 .*{wrong}"):
            state.sync([*ids, wrong])
        assert state.token_ids == ids


def test_once_complete_only_stop_tokens_are_permitted(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    compiled = compiler.compile(Grammar(type="choice", value='["ab"]', start=0))
    ids = [tokenizer.token_to_id(letter) for letter in "ab"]
    state = GrammarState(compiled)
    masks = state.masks_along([*ids, STOP, STOP, 5])
    assert masks.alive == [True, True, True, True, False]
    assert [only_permitted(row) for row in masks.bitmask[2:5]] == [STOP, STOP, STOP]
    state.sync([*ids, STOP, STOP])
    assert state.terminated
    assert state.jump_forward_text() == ""
    assert state.forced_tokens(4) == []
    state.sync(ids)
    assert not state.terminated


def test_a_dead_end_is_left_through_a_stop_token(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    compiled = compiler.compile(Grammar(type="grammar", value='root ::= "a" x | "b"\nx ::= "c" x', start=0))
    a, c = (tokenizer.token_to_id(letter) for letter in "ac")
    state = GrammarState(compiled)
    state.sync([a] + [c] * 20)
    stuck = compiler.compile(Grammar(type="grammar", value='root ::= "a" x | "b"\nx ::= x', start=0))
    state = GrammarState(stuck)
    state.sync([a])
    assert only_permitted(_mask(state)) == STOP
    state.sync([a, STOP])
    assert state.terminated
    state.sync([])
    assert permits(_mask(state), a)


def test_forced_tokens_are_those_with_one_bit(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    compiled = compiler.compile(Grammar(type="regex", value="[xy]777q", start=0))
    state = GrammarState(compiled)
    assert state.forced_tokens(8) == []
    state.sync([tokenizer.token_to_id("x")])
    spelled = [tokenizer.token_to_id(letter) for letter in "777q"]
    assert state.forced_tokens(8) == [*spelled, STOP]
    assert state.forced_tokens(2) == spelled[:2]
    assert state.jump_forward_text() == "777q"
    assert state.token_ids == [tokenizer.token_to_id("x")]


def test_a_mask_that_takes_too_long_is_refused_and_changes_nothing(
    compiled: CompiledGrammar, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = _walk(compiled, random.Random(5), 6)
    state = GrammarState(compiled)
    state.sync(ids[:3])
    clock = iter([0.0, 0.0, 0.0, 1.0])  # the second mask takes a second
    with monkeypatch.context() as patch:
        patch.setattr(state_module.time, "thread_time", lambda: next(clock))
        with pytest.raises(GrammarError, match="too ambiguous"):
            state.masks_along(ids[3:])
    assert state.token_ids == ids[:3]


def test_a_tree_names_parents_before_children(compiled: CompiledGrammar) -> None:
    with pytest.raises(ValueError, match="parents"):
        GrammarState(compiled).masks_along([1, 2], [0, 0])


def test_packed_masks() -> None:
    allowed = torch.zeros(1, 70, dtype=torch.bool)
    allowed[0, [0, 31, 32, 69]] = True
    packed = torch.tensor([[(1 << 31) + 1 - (1 << 32), 1, 1 << 5]], dtype=torch.int32)
    assert torch.equal(unpack(packed, 70), allowed)
    assert [token for token in range(-40, 200) if permits(packed[0], token)] == [0, 31, 32, 69]
    assert only_permitted(packed[0]) is None
    assert only_permitted(torch.tensor([0, -(2**31)], dtype=torch.int32)) == 63
    assert only_permitted(torch.tensor([0, 0], dtype=torch.int32)) is None
    assert only_permitted(torch.tensor([3, 0], dtype=torch.int32)) is None
