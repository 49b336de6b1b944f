"""A GGUF file in memory with a context over it, before anything computes with it.

Nothing here needs torch: a worker begins this while its process still imports that, which is seconds of Python on one
core, while llama.cpp reads, repacks and clears memory on another.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from platform import machine

from basics.machine import available_cores
from config.workers import LONGEST_DEFAULT_CONTEXT, WorkerConfig
from engines.errors import BatchInvarianceError, ModelError
from engines.llama_cpp.context import Context, LoadedGguf, Options
from engines.llama_cpp.files import GgufFile, bytes_per_token, check_memory, find_gguf
from engines.llama_cpp.library import Library, library

TILED_PRODUCTS = "GGML_CPU_TILED_MM"
"""The environment variable: "0" has K-quants multiplied row by row, however many rows there are."""
PASS_TOKENS = 2048
SPARE_CELLS = 1024
"""Beyond what slots and a pass need, for what was given up and is not yet free again."""
MOST_SLOTS = 128
_FEW_SPINS, _MORE_SPINS, _LARGE_FILE = 300, 700, 500_000_000
_SPARE_CORES, _MOST_SPINS = 2, 300_000
"""With so many cores left for gateway and other workers, threads may wait awake for as long as GNU's OpenMP does."""
_SPLIT_TYPES = ("f32", "f16")
_X86 = ("x86_64", "AMD64")


@dataclass(frozen=True, slots=True)
class Loaded:
    """`options` are those it was loaded with. `close` frees it."""

    options: Options
    model: LoadedGguf
    context: Context
    slots: int
    length: int

    def close(self) -> None:
        self.context.close()
        self.model.close()


@dataclass(frozen=True, slots=True)
class Opened:
    """A file found and, in the way that the settings ask for first, loaded; a way that can't be had is its error."""

    lib: Library
    found: GgufFile
    first: Loaded | BatchInvarianceError


class Opening:
    """`open_model` in a thread, begun as soon as this is made. `progress` goes to whoever asks for the result."""

    def __init__(self, config: WorkerConfig) -> None:
        self._future: Future[Opened] = Future()
        self._told = ""
        self._listener: Callable[[str], None] | None = None
        # A daemon, so that a process asked to stop while loading does not wait for it.
        threading.Thread(target=self._run, args=(config,), name="tandem-open", daemon=True).start()

    def result(self, progress: Callable[[str], None]) -> Opened:
        """Raises ModelError."""
        self._listener = progress
        if self._told:
            progress(self._told)
        return self._future.result()

    def _run(self, config: WorkerConfig) -> None:
        try:
            self._future.set_result(open_model(config, self._tell))
        except Exception as error:  # noqa: BLE001 - it is raised where the result is asked for
            self._future.set_exception(error)

    def _tell(self, detail: str) -> None:
        self._told = detail
        if self._listener is not None:
            self._listener(detail)


_begun: list[tuple[WorkerConfig, Opening]] = []


def open_soon(config: WorkerConfig) -> None:
    """Begin to open a worker's model, for `opened` with the same settings. The environment must have been prepared."""
    _begun.append((config, Opening(config)))


def opened(config: WorkerConfig, progress: Callable[[str], None]) -> Opened:
    """The model that these settings name, begun before or opened now. Raises ModelError."""
    for index, (begun, opening) in enumerate(_begun):
        if begun == config:
            del _begun[index]
            return opening.result(progress)
    return open_model(config, progress)


def open_model(config: WorkerConfig, progress: Callable[[str], None]) -> Opened:
    """Find and load the configured file. Raises ModelError for what can't be loaded or does not fit."""
    progress(f"looking for {config.model}")
    found = find_gguf(config.model, progress)
    lib = library()
    progress(f"loading {found.id}")
    options = plain_options(config)
    if config.batch_invariant is not False:
        os.environ.setdefault(TILED_PRODUCTS, "0")
        try:
            options = exact_options(options, repacked=True)
        except BatchInvarianceError as error:
            return Opened(lib, found, error)
    return Opened(lib, found, load(lib, found, config, options))


def spins(config: WorkerConfig) -> int:
    """How long threads wait awake for each other at a barrier, in turns of GNU OpenMP's.

    A pass has hundreds of barriers; sleeping at one costs 25 µs on virtual cores, and spinning takes its core from
    others that are busy. So where threads take all cores, they spin about as long as one of two waits for the other,
    which is longer in a larger model's products; where cores are to spare, as long as they would by themselves
    (docs/llama_cpp.md has what was measured). To be set before anything that uses OpenMP is loaded.
    """
    cores = available_cores()
    if cores - (config.threads or cores) >= _SPARE_CORES:
        return _MOST_SPINS
    path = Path(config.model).expanduser()
    sizes = [file.stat().st_size for file in (path.glob("*.gguf") if path.is_dir() else [path]) if file.is_file()]
    return _MORE_SPINS if sum(sizes) > _LARGE_FILE else _FEW_SPINS


def load(lib: Library, found: GgufFile, config: WorkerConfig, options: Options) -> Loaded:
    """The file with a context for the configured slots, whatever `options` say of cells. Raises ModelError."""
    model = LoadedGguf(lib, found.file, options)
    try:
        unserved = model.unserved()
        if unserved is not None:
            raise ModelError(f"{found.file.name} {unserved}")
        length = min(model.context_length, LONGEST_DEFAULT_CONTEXT)
        if config.context_length is not None:
            length = config.context_length
        if length > model.context_length:
            raise ModelError(
                f"{found.file.name}: a context length of {length} exceeds the model's {model.context_length}"
            )
        slots = _slots(config, found, options, length)
        options = replace(options, cells=slots * length + PASS_TOKENS + SPARE_CELLS)
        check_memory(found, options.cells, options.type_k, options.type_v, on_host=not offloads(lib, config))
        return Loaded(options, model, Context(model, options), slots, length)
    except BaseException:
        model.close()
        raise


def plain_options(config: WorkerConfig) -> Options:
    return Options(
        threads=config.threads or available_cores(),
        cells=0,
        pass_tokens=PASS_TOKENS,
        gpu_layers=-1 if config.gpu_layers is None else config.gpu_layers,
        type_k=config.cache_type_k,
        type_v=config.cache_type_v,
        flash_attention=config.flash_attn,
        mmap=config.mmap,
    )


def exact_options(options: Options, *, repacked: bool = False) -> Options:
    """`options` with what bitwise mode needs. Raises BatchInvarianceError for those that can't have it.

    `repacked`: weights may be repacked, for a runner that reads prompts apart where some are.
    """
    if options.flash_attention == "off":
        raise BatchInvarianceError("batch_invariant needs flash attention, and flash_attn is off")
    keys, values = options.type_k, options.type_v
    if keys == values and values in _SPLIT_TYPES:
        # Values in bfloat16 are converted row by row; keys are multiplied as they are, given instructions for it.
        keys, values = ("bf16", "f16") if machine() in _X86 else (keys, "bf16")
    return replace(options, extra_buffers=repacked, flash_attention="on", type_k=keys, type_v=values)


def _slots(config: WorkerConfig, found: GgufFile, options: Options, length: int) -> int:
    slots = config.slots
    if config.memory_gb is not None:
        slots = int(config.memory_gb * 2**30) // (length * bytes_per_token(found, options.type_k, options.type_v))
        if slots < 1:
            raise ModelError(
                f"{found.file.name}: {config.memory_gb} GiB hold no keys and values of {length} tokens; "
                "give more memory or a shorter context length"
            )
        slots = min(slots, MOST_SLOTS)
    if slots > MOST_SLOTS:
        raise ModelError(f"engine llama_cpp has at most {MOST_SLOTS} slots (now {slots}): the others are for branches")
    return slots


def offloads(lib: Library, config: WorkerConfig) -> bool:
    return bool(lib.api.llama_supports_gpu_offload()) and config.gpu_layers != 0
