"""A GGUF model in memory with one context over it: what the runner computes with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from config.workers import KvType
from engines.errors import ModelError
from engines.llama_cpp.library import Library

FlashAttention = Literal["auto", "on", "off"]
_GGML_TYPES: dict[KvType, int] = {
    "f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "iq4_nl": 20, "bf16": 30,
}  # fmt: skip
"""Numbers of ggml.h's ggml_type, of which the bindings lack one."""
_FLASH = {"auto": -1, "off": 0, "on": 1}


@dataclass(frozen=True, slots=True)
class Options:
    """How a model is loaded and computed; names are llama.cpp's.

    `extra_buffers`: weights may be repacked for products of many rows. `cells`: tokens that keys and values of all
    sequences together have room for.
    """

    threads: int
    cells: int
    pass_tokens: int
    physical_batch: int = 512
    gpu_layers: int = -1
    type_k: KvType = "f16"
    type_v: KvType = "f16"
    flash_attention: FlashAttention = "auto"
    mmap: bool = True
    extra_buffers: bool = True


class LoadedGguf:
    """The weights and vocabulary. `close` frees them; contexts over them must be closed before."""

    def __init__(self, library: Library, file: Path, options: Options) -> None:
        """Raises ModelError, with llama.cpp's own reason, for a file that it can't load."""
        api = library.api
        self.library = library
        self.api: Any = api
        params = api.llama_model_default_params()
        params.n_gpu_layers = options.gpu_layers
        params.use_extra_bufts = options.extra_buffers
        params.load_mode = api.llama_load_mode_from_str(b"mmap" if options.mmap else b"none")
        library.log.errors.clear()
        library.log.repacked = False
        self.pointer = api.llama_model_load_from_file(str(file).encode(), params)
        if not self.pointer:
            raise ModelError(f"{file.name}: llama.cpp could not load it: {library.log.reason()}")
        self.repacked = library.log.repacked
        self.vocabulary = api.llama_model_get_vocab(self.pointer)
        self.num_ids = int(api.llama_vocab_n_tokens(self.vocabulary))

    @property
    def context_length(self) -> int:
        """The most tokens that the model was trained on in one sequence."""
        return int(self.api.llama_model_n_ctx_train(self.pointer))

    def unserved(self) -> str | None:
        """Why this model's memory can't be cut back or it does not continue text, None if it serves."""
        api, model = self.api, self.pointer
        if api.llama_model_is_hybrid(model) or api.llama_model_is_recurrent(model):
            return "is recurrent, wholly or in part: its memory can't be cut back to verify drafts; it is not supported"
        if api.llama_model_has_encoder(model) or not api.llama_model_has_decoder(model):
            return "has an encoder; Tandem serves decoder-only models"
        if api.llama_model_is_diffusion(model):
            return "is a diffusion model; Tandem serves autoregressive ones"
        return None

    @property
    def file_type(self) -> str:
        """How most of its weights are stored, in llama.cpp's words: "Q4_1", "Q4_K - Medium"."""
        name = self.api.llama_ftype_name(self.api.llama_model_ftype(self.pointer))
        return name.decode() if name else "unknown"

    def tokenize(self, text: str) -> list[int]:
        """llama.cpp's own ids of a text: nothing added before or after, special tokens in it found."""
        data = text.encode()
        buffer = (self.api.llama_token * (len(data) + 16))()
        count = self.api.llama_tokenize(self.vocabulary, data, len(data), buffer, len(buffer), False, True)
        if count < 0:
            raise ModelError(f"llama.cpp needs {-count} tokens for a text of {len(data)} bytes")
        return list(buffer[:count])

    def close(self) -> None:
        if self.pointer:
            self.api.llama_model_free(self.pointer)
            self.pointer = None


class Context:
    """Keys and values of all sequences in one buffer, and the graph that computes over it."""

    def __init__(self, model: LoadedGguf, options: Options) -> None:
        """Raises ModelError if llama.cpp can't make one."""
        api, library = model.api, model.library
        self.api = api
        self.model = model
        params = api.llama_context_default_params()
        params.n_ctx = options.cells
        params.n_batch = options.pass_tokens
        params.n_ubatch = min(options.physical_batch, options.pass_tokens)
        params.n_seq_max = api.llama_max_parallel_sequences()
        params.n_outputs_max = params.n_outputs_max_per_seq = 0  # logits may be wanted for every token of a pass
        params.n_threads = params.n_threads_batch = options.threads
        params.type_k, params.type_v = _GGML_TYPES[options.type_k], _GGML_TYPES[options.type_v]
        params.flash_attn_type = _FLASH[options.flash_attention]
        params.kv_unified = True  # a tree's branches share cells
        params.swa_full = True  # a sequence may be cut back to before its sliding window
        library.log.errors.clear()
        self.pointer = api.llama_init_from_model(model.pointer, params)
        if not self.pointer:
            raise ModelError(f"llama.cpp could not make a context: {library.log.reason()}")
        self.memory = api.llama_get_memory(self.pointer)
        self.num_cells = int(api.llama_n_ctx(self.pointer))
        self.pass_tokens = int(api.llama_n_batch(self.pointer))
        pool = library.thread_pool(options.threads) if options.threads > 1 else None
        if pool is not None:
            library.attach(self.pointer, pool)

    def close(self) -> None:
        if self.pointer:
            self.api.llama_free(self.pointer)
            self.pointer = None
