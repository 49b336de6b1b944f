from __future__ import annotations

import asyncio
import threading
import time

import pytest
from tokenizers import Tokenizer

from engines.grammar import service
from engines.grammar.bitmask import permits, permits_other_than
from engines.grammar.compiler import CompiledGrammar, GrammarCompiler
from engines.grammar.errors import GrammarError
from engines.grammar.service import Grammars
from engines.grammar.state import GrammarState
from protocol.errors import DeadlineExceeded, QueueFull
from protocol.messages import Grammar
from testing.patience import PATIENCE, until
from testing.vocabularies import tokenizer_info
from testing.wire import async_test

YES = Grammar(type="choice", value='["yes", "no"]', start=0)


@async_test
async def test_a_sessions_place_is_kept_from_call_to_call(compiler: GrammarCompiler) -> None:
    grammars = Grammars(compiler)
    first = await grammars.state(YES, 1)
    assert first is not None
    assert await grammars.state(YES, 1) is first is grammars.at_once(YES, 1)
    assert await grammars.state(YES, 2) is not first
    assert await grammars.state(YES, None) is not await grammars.state(YES, None)
    assert await grammars.state(None, 1) is None
    moved = YES.model_copy(update={"start": 3})
    assert await grammars.state(moved, 1) is not first
    assert grammars.at_once(YES, 1) is not first
    grammars.disown(1)
    grammars.close()


@async_test
async def test_at_once_returns_none_until_a_grammar_is_compiled(compiler: GrammarCompiler) -> None:
    grammars = Grammars(compiler)
    new = Grammar(type="choice", value='["at", "once"]', start=0)
    assert grammars.at_once(new, 1) is None
    with pytest.raises(DeadlineExceeded):
        await grammars.state(new, 1, time.monotonic())
    await until(lambda: grammars.at_once(new, 1) is not None, "a thread compiles it all the same")
    grammars.close()


@async_test
async def test_only_so_many_places_are_kept(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_MAX_STATES", 3)
    grammars = Grammars(compiler)
    for owner in range(5):
        await grammars.state(YES, owner)
    assert list(grammars._states) == [2, 3, 4]
    grammars.close()


@async_test
async def test_compiling_neither_waits_for_ever_nor_piles_up(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()

    def slow(grammar: Grammar) -> CompiledGrammar:
        gate.wait(PATIENCE)
        raise GrammarError("as the test wants it")

    monkeypatch.setattr(compiler, "compile", slow)
    monkeypatch.setattr(service, "_MAX_WAITING", 2)
    grammars = Grammars(compiler)
    unknown = [Grammar(type="regex", value=f"unknown{n}", start=0) for n in range(3)]
    waiting = [asyncio.create_task(grammars.compile(grammar)) for grammar in unknown[:2]]
    await asyncio.sleep(0)
    with pytest.raises(QueueFull):
        await grammars.compile(unknown[2])
    gate.set()
    for task in waiting:
        with pytest.raises(GrammarError):
            await task
    gate.clear()
    with pytest.raises(DeadlineExceeded):
        await grammars.compile(unknown[2], time.monotonic() + 0.01)
    gate.set()
    grammars.close()


def test_without_a_compiler_nothing_is_supported(tokenizer: Tokenizer) -> None:
    assert Grammars().types == []
    assert len(Grammars.of_tokenizer(tokenizer.to_str(), 500, [0]).types) == 6
    assert Grammars.of_tokenizer(tokenizer.to_str(), 500, []).types == [], "no stop token to end on"


@async_test
async def test_a_compiler_that_is_still_made_is_promised_and_waited_for(
    compiler: GrammarCompiler, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    monkeypatch.setattr(service, "_compiler_of", lambda *given: (gate.wait(PATIENCE), compiler)[1])
    grammars = Grammars.soon(tokenizer_info(tokenizer, eos="<|end|>"))
    assert grammars.types == Grammars(compiler).types
    assert grammars.at_once(YES, 1) is None
    with pytest.raises(DeadlineExceeded):
        await grammars.state(YES, 1, time.monotonic() + 0.01)
    waiting = asyncio.create_task(grammars.state(YES, 1))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    gate.set()
    assert await waiting is grammars.at_once(YES, 1) is not None
    grammars.close()


@async_test
async def test_a_compiler_that_cannot_be_made_later_fails_each_grammar_and_nothing_else(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> GrammarCompiler:
        raise OSError("xgrammar's library does not load")

    monkeypatch.setattr(service, "_compiler_of", broken)
    grammars = Grammars.soon(tokenizer_info(tokenizer, eos="<|end|>"))
    for _ in range(2):
        with pytest.raises(OSError, match="does not load"):
            await grammars.state(YES, 1)
    assert grammars.at_once(YES, 1) is None
    assert await grammars.state(None, 1) is None
    grammars.close()


def test_without_xgrammar_nothing_is_promised(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> GrammarCompiler:
        raise ImportError("No module named 'xgrammar'")

    monkeypatch.setattr(service, "find_spec", lambda name: None)
    monkeypatch.setattr(service, "_compiler_of", missing)
    assert Grammars.soon(tokenizer_info(tokenizer, eos="<|end|>")).types == []


def test_a_mask_without_some_tokens(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    state = GrammarState(compiler.compile(YES))
    row = state.masks_along([]).bitmask[0]
    every = [token_id for token_id in range(500) if permits(row, token_id)]
    assert permits_other_than(row, every[1:])
    assert not permits_other_than(row, [*every, 31, 10_000])
    assert permits(row, every[0]), "the row itself stays as it is"
