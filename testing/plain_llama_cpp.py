"""llama.cpp by itself, through its binding's low-level calls, with its own defaults: what Tandem is compared with."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from engines.llama_cpp.batch import BatchArrays, FlatBatch
from engines.llama_cpp.library import library
from engines.runtime.rows import Row


class PlainLlamaCpp:
    """One model and one sequence, decoded greedily. Flash attention, repacking and types are llama.cpp's defaults.

    Raises RuntimeError if llama.cpp can't load or compute.
    """

    def __init__(self, file: Path, context_length: int, threads: int) -> None:
        api = self._api = library().api
        self._model = api.llama_model_load_from_file(str(file).encode(), api.llama_model_default_params())
        params = api.llama_context_default_params()
        params.n_ctx = context_length
        params.n_threads = params.n_threads_batch = threads
        self._context: Any = api.llama_init_from_model(self._model, params) if self._model else None
        if not self._context:
            raise RuntimeError(f"llama.cpp can't load {file}")
        self._ids = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._model))
        self._pass_tokens = int(params.n_batch)
        self._arrays = BatchArrays(api, self._pass_tokens)

    def read(self, token_ids: Sequence[int]) -> tuple[int, float]:
        """Start anew with these tokens: the greedy next one, and the seconds that reading took."""
        began = time.perf_counter()
        self._cut(0)
        following = self._next(token_ids, 0)
        return following, time.perf_counter() - began

    def generate(self, token_ids: Sequence[int], count: int) -> tuple[list[int], float]:
        """`count` greedy tokens after `token_ids`, and the seconds from the first of them to the last."""
        following, _ = self.read(token_ids)
        made = [following]
        began = time.perf_counter()
        while len(made) < count:
            made.append(self._next([made[-1]], len(token_ids) + len(made) - 1))
        return made, time.perf_counter() - began

    def pass_seconds(self, context: int, rows: int) -> float:
        """A pass of `rows` tokens after `context` tokens that were read before, with logits for all of them."""
        began = time.perf_counter()
        self._decode(list(range(100, 100 + rows)), context, logits_from=0)
        seconds = time.perf_counter() - began
        self._cut(context)
        return seconds

    def close(self) -> None:
        self._api.llama_free(self._context)
        self._api.llama_model_free(self._model)

    def _next(self, token_ids: Sequence[int], start: int) -> int:
        logits = self._decode(token_ids, start, logits_from=len(token_ids) - 1)
        return int(np.argmax(np.ctypeslib.as_array(logits, (self._ids,))))

    def _decode(self, token_ids: Sequence[int], start: int, logits_from: int) -> Any:
        """The address of the logits of the last pass."""
        batch = FlatBatch()
        batch.add(Row(0, start, list(token_ids), logits_from=logits_from), [[0]] * len(token_ids))
        for piece, _ in batch.pieces(self._arrays, self._pass_tokens):
            if self._api.llama_decode(self._context, piece) != 0:
                raise RuntimeError("llama_decode failed")
        return self._api.llama_get_logits(self._context)

    def _cut(self, length: int) -> None:
        self._api.llama_memory_seq_rm(self._api.llama_get_memory(self._context), 0, length, -1)
