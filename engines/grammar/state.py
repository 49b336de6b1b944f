"""Where one sequence stands in its grammar, and what the grammar permits next."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import xgrammar
from torch import Tensor

from engines.grammar.bitmask import only_permitted, permits
from engines.grammar.compiler import CompiledGrammar
from engines.grammar.errors import GrammarError

# A mask takes well under a millisecond; a grammar that is ambiguous enough takes ever longer as the text grows.
# Seconds of this thread's CPU time, so that a busy machine does not count against a grammar.
MAX_MASK_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class DraftMasks:
    """What is permitted after the context (row 0) and after each of n draft tokens (row i + 1).

    `bitmask` is int32 [n + 1, ⌈V / 32⌉] on the CPU. `alive[i]` is whether the grammar takes draft token i at its place;
    a row after a refused token permits everything, and nothing drawn from it counts.
    """

    bitmask: Tensor
    alive: list[bool]


class GrammarState:
    """A matcher that follows a token list. The list is the truth: `sync` takes back what it no longer holds.

    Once the grammar is complete, and after a stop token, only stop tokens are permitted. The same applies in a dead
    end (which only a faulty grammar has): the text ends there rather than never. Not for use from two threads at once.
    """

    def __init__(self, compiled: CompiledGrammar) -> None:
        self._compiled = compiled
        self._matcher = xgrammar.GrammarMatcher(compiled.grammar)
        self._tokens: list[int] = []
        self._ended = 0  # how many of _tokens are stop tokens that the matcher did not need to see

    @property
    def compiled(self) -> CompiledGrammar:
        """What it was made from."""
        return self._compiled

    @property
    def token_ids(self) -> list[int]:
        """The tokens accepted so far."""
        return list(self._tokens)

    @property
    def terminated(self) -> bool:
        """Whether a stop token has been accepted."""
        return bool(self._ended) or self._matcher.is_terminated()

    def sync(self, token_ids: Sequence[int]) -> None:
        """Makes `token_ids`, all tokens from `grammar.start` on, what has been accepted.

        Keeps the longest common prefix. Raises GrammarError at a token that the grammar does not permit; what comes
        before it stays accepted.
        """
        common = len(self._tokens)
        if self._tokens != list(token_ids[:common]):
            pairs = enumerate(zip(self._tokens, token_ids, strict=False))
            common = next((i for i, (ours, theirs) in pairs if ours != theirs), min(common, len(token_ids)))
        self._rollback(len(self._tokens) - common)
        for index in range(common, len(token_ids)):
            if not self._accept(token_ids[index]):
                raise GrammarError(
                    f"token {index} after grammar.start ({token_ids[index]}) is not what the grammar permits there",
                    field="context.token_ids",
                )

    def masks_along(self, draft_ids: Sequence[int], parents: Sequence[int] | None = None) -> DraftMasks:
        """Masks along a chain of drafts, or a tree: `parents[i] < i`, -1 the context's end. The state stays as it is.

        Raises GrammarError if the grammar takes too long (MAX_MASK_SECONDS for one mask).
        """
        count = len(draft_ids)
        bitmask = torch.full((count + 1, self._compiled.words), -1, dtype=torch.int32)
        alive = [False] * count
        base = len(self._tokens)
        path: list[int] = []  # the drafts that are accepted right now, from the context's end down
        try:
            self._fill(bitmask, 0)
            for index, token_id in enumerate(draft_ids):
                parent = index - 1 if parents is None else parents[index]
                if not -1 <= parent < index:
                    raise ValueError(f"parents[{index}] is {parent}")
                if (parent >= 0 and not alive[parent]) or not permits(bitmask[parent + 1], token_id):
                    continue
                self._walk(path, parent, draft_ids, parents)
                alive[index] = self._accept(token_id)
                if alive[index]:
                    path.append(index)
                    self._fill(bitmask, index + 1)
        finally:
            self._rollback(len(self._tokens) - base)
        return DraftMasks(bitmask, alive)

    def forced_tokens(self, limit: int) -> list[int]:
        """The next tokens, at most `limit`, while the grammar permits exactly one. The state stays as it is."""
        row = torch.empty((1, self._compiled.words), dtype=torch.int32)
        base = len(self._tokens)
        try:
            while len(self._tokens) - base < limit and not self.terminated:
                self._fill(row, 0)
                token_id = only_permitted(row[0])
                if token_id is None or not self._accept(token_id):
                    break
            return self._tokens[base:]
        finally:
            self._rollback(len(self._tokens) - base)

    def jump_forward_text(self) -> str:
        """The text that must come next, whatever tokens spell it ("" if several texts may).

        Good material for a draft once encoded. Its last token had better be left out: what follows may join it.
        """
        return "" if self.terminated else self._matcher.find_jump_forward_string()

    def _walk(self, path: list[int], parent: int, draft_ids: Sequence[int], parents: Sequence[int] | None) -> None:
        """Moves from the node that `path` ends in to `parent`, both of which are permitted."""
        if parent == (path[-1] if path else -1):
            return
        wanted: list[int] = []
        node = parent
        while node >= 0:
            wanted.append(node)
            node = node - 1 if parents is None else parents[node]
        wanted.reverse()
        common = 0
        while common < min(len(path), len(wanted)) and path[common] == wanted[common]:
            common += 1
        self._rollback(len(path) - common)
        del path[common:]
        for node in wanted[common:]:
            self._accept(draft_ids[node])
            path.append(node)

    def _fill(self, bitmask: Tensor, row: int) -> None:
        if self.terminated:
            bitmask[row] = self._compiled.stops
            return
        started = time.thread_time()
        self._matcher.fill_next_token_bitmask(bitmask, row)
        if time.thread_time() - started > MAX_MASK_SECONDS:
            raise GrammarError("the grammar is too ambiguous: what it permits takes too long to compute")
        if not bool(bitmask[row].any()):
            bitmask[row] = self._compiled.stops

    def _accept(self, token_id: int) -> bool:
        if not 0 <= token_id < self._compiled.vocabulary:
            return False
        if not self.terminated and self._matcher.accept_token(token_id):
            self._tokens.append(token_id)
            return True
        if token_id not in self._compiled.stop_token_ids or not (self.terminated or self._is_dead_end()):
            return False
        self._tokens.append(token_id)
        self._ended += 1
        return True

    def _is_dead_end(self) -> bool:
        row = torch.empty((1, self._compiled.words), dtype=torch.int32)
        self._matcher.fill_next_token_bitmask(row)
        return not bool(row.any())

    def _rollback(self, count: int) -> None:
        if count <= 0:
            return
        del self._tokens[-count:]
        beyond = min(count, self._ended)
        self._ended -= beyond
        if count > beyond:
            self._matcher.rollback(count - beyond)
