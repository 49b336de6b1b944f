"""From a grammar's text to what a matcher runs on, within bounds of size, time and memory."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch
import xgrammar
from torch import Tensor

from engines.grammar.errors import GrammarError, Overloaded, reason
from engines.grammar.reading_process import ReadingProcess
from engines.grammar.sources import Source, compiled, read
from engines.grammar.vocabulary import token_bytes, vocabulary
from protocol.messages import Grammar, GrammarType

# The control characters that a grammar's tokens may hold (vocabulary.vocabulary): none inside of JSON, whose layout is
# fixed; line ends beside the JSON of a structural tag.
CONTROL: dict[GrammarType, bytes] = {
    "json_object": b"", "json_schema": b"", "structural_tag": b"\n\r",
    "regex": b"\t\n\r", "choice": b"\t\n\r", "grammar": b"\t\n\r",
}  # fmt: skip
MAX_AT_ONCE = 2
MAX_REFUSALS = 256


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """A grammar over one vocabulary. `vocabulary` is the width of the logits, `words` that of a packed mask."""

    grammar: xgrammar.CompiledGrammar
    vocabulary: int
    words: int
    stop_token_ids: frozenset[int]
    stops: Tensor = field(repr=False)
    """int32 [words]: a packed mask that permits the stop tokens alone."""


class GrammarCompiler:
    """Compiles and remembers, least recently used first out. May be used from many threads.

    A compilation runs in C++ without the interpreter's lock, on threads of its own, and
    cannot be stopped: one that overruns `time_limit` is refused and left to finish, and takes one of MAX_AT_ONCE places
    until then. What comes before is Python and has a process of its own (reading_process.py).
    """

    def __init__(
        self,
        tokens: Sequence[bytes],
        stop_token_ids: Collection[int],
        *,
        time_limit: float = 30.0,
        threads: int = 2,
        cache_bytes: int = 256 * 2**20,
    ) -> None:
        """`tokens`: every token's bytes (vocabulary.token_bytes), as many as there are logits.

        `time_limit` in seconds; `threads` of the CPU for one compilation. Raises UnsupportedTokenizer if there is no
        stop token.
        """
        self._vocabularies = {
            control: vocabulary(tokens, stop_token_ids, control=control) for control in set(CONTROL.values())
        }
        self._compilers = {
            control: xgrammar.GrammarCompiler(known, max_threads=threads, cache_enabled=False)
            for control, known in self._vocabularies.items()
        }
        self._size = len(tokens)
        self._time_limit = time_limit
        self._cache_bytes = cache_bytes
        self._places = threading.BoundedSemaphore(MAX_AT_ONCE)
        self._reading = ReadingProcess()
        self._lock = threading.Lock()
        self._compiled: OrderedDict[bytes, CompiledGrammar] = OrderedDict()
        self._refused: OrderedDict[bytes, GrammarError] = OrderedDict()
        self._stop_ids = frozenset(next(iter(self._vocabularies.values())).stop_token_ids)

    @classmethod
    def from_tokenizer_json(
        cls, tokenizer_json: str, logits_size: int, stop_token_ids: Collection[int]
    ) -> GrammarCompiler:
        """Raises UnsupportedTokenizer (vocabulary.token_bytes)."""
        return cls(token_bytes(tokenizer_json, logits_size), stop_token_ids)

    def known(self, grammar: Grammar) -> CompiledGrammar | None:
        """What was compiled before and is still held; never blocks for long."""
        key = _key(grammar)
        with self._lock:
            if key in self._compiled:
                self._compiled.move_to_end(key)
            return self._compiled.get(key)

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Blocks for at most the time limit. Raises GrammarError."""
        key = _key(grammar)
        with self._lock:
            if key in self._compiled:
                self._compiled.move_to_end(key)
                return self._compiled[key]
            if key in self._refused:
                raise GrammarError(self._refused[key].message, self._refused[key].field or "grammar.value")
        try:
            xgrammars = self._compilers[CONTROL[grammar.type]]
            package = self._package(self._within_limit(lambda: compiled(self._read(grammar), xgrammars)))
        except Overloaded:
            raise
        except GrammarError as error:
            with self._lock:
                # Not `error` itself: its traceback will have every frame of the call that is refused.
                self._refused[key] = GrammarError(error.message, error.field or "grammar.value")
                if len(self._refused) > MAX_REFUSALS:
                    self._refused.popitem(last=False)
            raise
        with self._lock:
            self._compiled[key] = package
            self._evict()
        return package

    def close(self) -> None:
        """End the process that reads schemas; a grammar that is compiled later starts it again."""
        self._reading.close()

    def _read(self, grammar: Grammar) -> Source:
        """Reads quick ones here, and those that may be slow in a process of their own."""
        if grammar.type in ("json_schema", "structural_tag"):
            return self._reading.read(grammar.type, grammar.value)
        return read(grammar.type, grammar.value)

    def _within_limit(self, build: Callable[[], xgrammar.CompiledGrammar]) -> xgrammar.CompiledGrammar:
        deadline = time.monotonic() + self._time_limit
        if not self._places.acquire(timeout=self._time_limit):
            raise Overloaded("too many grammars are being compiled; try again later")
        outcome: Future[xgrammar.CompiledGrammar] = Future()

        def run() -> None:
            try:
                outcome.set_result(build())
            except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
                outcome.set_exception(error)
            finally:
                self._places.release()

        threading.Thread(target=run, name="grammar-compiler", daemon=True).start()
        try:
            return outcome.result(timeout=max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            raise GrammarError(f"the grammar takes longer than {self._time_limit:g} s to compile") from None
        except (RuntimeError, ValueError, TypeError, RecursionError) as error:
            raise GrammarError(reason(error)) from error

    def _package(self, grammar: xgrammar.CompiledGrammar) -> CompiledGrammar:
        if grammar.memory_size_bytes > self._cache_bytes:
            raise GrammarError("the grammar is too large once compiled")
        shape = xgrammar.get_bitmask_shape(1, self._size)
        first = torch.empty(shape, dtype=torch.int32)
        xgrammar.GrammarMatcher(grammar).fill_next_token_bitmask(first)
        if not bool(first.any()):
            raise GrammarError("the grammar matches no text")
        stops = torch.zeros(shape[1], dtype=torch.int64)
        for stop in self._stop_ids:
            stops[stop >> 5] |= 1 << (stop & 31)
        return CompiledGrammar(grammar, self._size, shape[1], self._stop_ids, stops.to(torch.int32))

    def _evict(self) -> None:
        total = sum(entry.grammar.memory_size_bytes for entry in self._compiled.values())
        while total > self._cache_bytes and len(self._compiled) > 1:
            _, entry = self._compiled.popitem(last=False)
            total -= entry.grammar.memory_size_bytes


def _key(grammar: Grammar) -> bytes:
    """Short, so that what is remembered of long grammars stays small."""
    return hashlib.sha256(f"{grammar.type} {grammar.value}".encode(errors="surrogatepass")).digest()
