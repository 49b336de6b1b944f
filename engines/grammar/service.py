"""Grammars for an engine: compiled on threads of their own, and where each session stands in its grammar."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import find_spec
from typing import TYPE_CHECKING, get_args

from protocol.errors import DeadlineExceeded, QueueFull
from protocol.messages import Grammar, GrammarType
from protocol.worker_info import TokenizerInfo

if TYPE_CHECKING:  # they import xgrammar, which a worker without grammars does not need
    from engines.grammar.compiler import CompiledGrammar, GrammarCompiler
    from engines.grammar.state import GrammarState

logger = logging.getLogger(__name__)

_THREADS = 2
_MAX_WAITING = 32
_MAX_STATES = 1024
_MAX_STATE_BYTES = 512 * 2**20


class Grammars:
    """Lives on the event loop's thread. Without a compiler no grammar is supported.

    A session's GrammarState is a cache like everything of a session: it is kept from call to call, and one that was
    dropped is made anew from the tokens.
    """

    def __init__(self, compiler: GrammarCompiler | None = None) -> None:
        self._made: Future[GrammarCompiler] | None = None
        if compiler is not None:
            self._made = Future()
            self._made.set_result(compiler)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="grammar")
        self._waiting = 0
        self._states: OrderedDict[int, tuple[Grammar, GrammarState]] = OrderedDict()

    @classmethod
    def of_tokenizer(cls, tokenizer_json: str, logits_size: int, stop_token_ids: Collection[int]) -> Grammars:
        """Supports no grammar if the tokenizer's tokens have no definite bytes, or xgrammar is not installed."""
        from engines.token_bytes import UnsupportedTokenizer

        try:
            return cls(_compiler_of(tokenizer_json, logits_size, stop_token_ids))
        except ImportError as error:
            logger.warning("no structured output: %s (pip install -e '.[grammar]')", error)
            return cls()
        except UnsupportedTokenizer as error:
            logger.warning("no structured output: %s", error)
            return cls()

    @classmethod
    def of_info(cls, tokenizer: TokenizerInfo) -> Grammars:
        """`of_tokenizer`, of what a worker reports of its tokenizer."""
        return cls.of_tokenizer(tokenizer.tokenizer_json, tokenizer.vocabulary.logits_size, tokenizer.stop_token_ids)

    @classmethod
    def soon(cls, tokenizer: TokenizerInfo) -> Grammars:
        """`of_info` for a tokenizer that is known to have definite bytes and a stop token: the compiler, which takes a
        second or two, is made on a thread, and the first grammars wait for it."""
        if find_spec("xgrammar") is None:
            return cls.of_info(tokenizer)  # which says what to install
        grammars = cls()
        grammars._made = grammars._threads.submit(_told_compiler_of, tokenizer)
        return grammars

    @property
    def types(self) -> list[GrammarType]:
        return list(get_args(GrammarType)) if self._made is not None else []

    @property
    def _compiler(self) -> GrammarCompiler | None:
        """None as long as it is not made."""
        made = self._made
        return made.result() if made is not None and made.done() and not _failed(made) else None

    async def compile(self, grammar: Grammar, deadline: float = float("inf")) -> CompiledGrammar:
        """`deadline` is on time.monotonic's clock. Raises GrammarError, QueueFull, DeadlineExceeded."""
        if self._made is None:
            raise RuntimeError("a grammar must be checked against `types` first")
        compiler = self._compiler
        known = compiler.known(grammar) if compiler is not None else None
        if known is not None:
            return known
        if self._waiting >= _MAX_WAITING:
            raise QueueFull(f"{self._waiting} grammars are already waiting to be compiled")
        self._waiting += 1
        try:
            left = None if deadline == float("inf") else max(0.0, deadline - time.monotonic())
            async with asyncio.timeout(left):
                if compiler is None:
                    compiler = await asyncio.shield(asyncio.wrap_future(self._made))
                return await asyncio.get_running_loop().run_in_executor(self._threads, compiler.compile, grammar)
        except TimeoutError:
            raise DeadlineExceeded("the grammar was not compiled in time", "deadline_ms") from None
        finally:
            self._waiting -= 1

    async def state(
        self, grammar: Grammar | None, owner: int | None, deadline: float = float("inf")
    ) -> GrammarState | None:
        """Where session `owner` (None: no session) stands, for one call at a time. Raises what `compile` raises."""
        if grammar is None:
            return None
        held = self.at_once(grammar, owner) if owner is not None else None
        return held if held is not None else self._begin(await self.compile(grammar, deadline), grammar, owner)

    def at_once(self, grammar: Grammar, owner: int) -> GrammarState | None:
        """The same if there is nothing to wait for: the grammar is compiled already, for any session."""
        held = self._states.get(owner)
        if held is not None and held[0] == grammar:
            self._states.move_to_end(owner)
            return held[1]
        known = self._compiler.known(grammar) if self._compiler is not None else None
        return self._begin(known, grammar, owner) if known is not None else None

    def _begin(self, compiled: CompiledGrammar, grammar: Grammar, owner: int | None) -> GrammarState:
        from engines.grammar.state import GrammarState

        state = GrammarState(compiled)
        if owner is not None:
            self._states[owner] = grammar, state
            self._states.move_to_end(owner)
            self._evict()
        return state

    def _evict(self) -> None:
        """A state keeps its compiled grammar alive even if the compiler has dropped it."""
        while len(self._states) > _MAX_STATES:
            self._states.popitem(last=False)
        seen: set[int] = set()
        total = 0
        for kept, (_, state) in enumerate(reversed(self._states.values())):  # the newest first
            if id(state.compiled) not in seen:
                seen.add(id(state.compiled))
                total += state.compiled.grammar.memory_size_bytes
            if kept and total > _MAX_STATE_BYTES:
                break
        else:
            return
        while len(self._states) > kept:
            self._states.popitem(last=False)

    def disown(self, owner: int) -> None:
        """The session with this serial is gone."""
        self._states.pop(owner, None)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._compiler is not None:
            self._compiler.close()


def _compiler_of(tokenizer_json: str, logits_size: int, stop_token_ids: Collection[int]) -> GrammarCompiler:
    from engines.grammar.compiler import GrammarCompiler

    return GrammarCompiler.from_tokenizer_json(tokenizer_json, logits_size, stop_token_ids)


def _told_compiler_of(tokenizer: TokenizerInfo) -> GrammarCompiler:
    try:
        return _compiler_of(tokenizer.tokenizer_json, tokenizer.vocabulary.logits_size, tokenizer.stop_token_ids)
    except Exception:
        logger.exception("no structured output: requests with a grammar will fail")
        raise


def _failed(made: Future[GrammarCompiler]) -> bool:
    return made.cancelled() or made.exception() is not None
