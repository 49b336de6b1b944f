"""From a worker's settings to a running model of the llama.cpp engine."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from basics.machine import available_cores
from config.workers import WorkerConfig
from engines.errors import BatchInvarianceError, ModelError
from engines.grammar.service import Grammars
from engines.llama_cpp.context import Context, LoadedGguf, Options
from engines.llama_cpp.exact import TILED_PRODUCTS, exact_options, self_check
from engines.llama_cpp.files import GgufFile, bytes_per_token, check_memory, find_gguf
from engines.llama_cpp.known_tokenizer import kept_tokenizer, known_tokenizer
from engines.llama_cpp.library import Library, library
from engines.llama_cpp.remembered import mark_of, passed, remember
from engines.llama_cpp.runner import Runner
from engines.running_model import OnPass
from engines.runtime.engine import LONGEST_DEFAULT_CONTEXT, LoadedModel, LoopModel, start_engine
from protocol.worker_info import Capabilities

logger = logging.getLogger(__name__)

PASS_TOKENS = 2048
SPARE_CELLS = 1024
"""Beyond what slots and a pass need, for what was given up and is not yet free again."""
MOST_SLOTS = 128


def load_engine(
    config: WorkerConfig,
    role: Literal["draft", "target"],
    capabilities: Capabilities,
    on_pass: OnPass,
    on_death: Callable[[str], None],
    progress: Callable[[str], None],
) -> LoopModel:
    """Find, load and start the configured GGUF model (see engines.table.load_engine). Raises ModelError."""
    progress(f"looking for {config.model}")
    found = find_gguf(config.model, progress)
    lib = library()
    progress(f"loading {found.id}")
    kept = kept_tokenizer(lib, found)
    runner, options, exact = load_runner(lib, found, config)
    model = runner.context.model
    tokenizer = known_tokenizer(found, model, runner.slot_length, kept)
    loaded = LoadedModel(
        id=found.id,
        engine="llama_cpp",
        dtype=model.file_type,
        device="gpu" if _offloads(lib, config) else "cpu",
        fingerprint=_fingerprint(lib, found, options, exact),
        runner=runner,
        tokenizer=tokenizer.info,
        special_token_ids=tokenizer.special_token_ids,
        batch_invariant=exact,
        reads_apart=runner.reads_apart,
    )
    # A later start is not kept waiting for them: only requests that have a grammar are.
    grammars = Grammars.soon if kept is not None and kept.takes_grammars else Grammars.of_info
    return start_engine(loaded, config, role, capabilities, on_pass, on_death, progress, make_grammars=grammars)


def load_runner(lib: Library, found: GgufFile, config: WorkerConfig) -> tuple[Runner, Options, bool]:
    """The model ready to run, how, and whether in bitwise mode: asked for, or (batch_invariant None) if it holds.

    Raises:
        ModelError: for what can't be loaded, does not fit or is not supported.
    """
    wanted = config.batch_invariant
    plain = _options(config, found)
    if wanted is not False:
        os.environ.setdefault(TILED_PRODUCTS, "0")
    if lib.tiled_products is None:
        lib.tiled_products = os.environ.get(TILED_PRODUCTS, "")
    if wanted is not False:
        try:
            return *_exact(lib, found, config, plain), True
        except BatchInvarianceError as error:
            if wanted:
                raise BatchInvarianceError(f"{found.file.name}: {error}") from error
            logger.warning("%s: %s; its texts may depend on what else is in a pass", found.id, error)
    return *_try(lib, found, config, plain, exact=False), False


def _exact(lib: Library, found: GgufFile, config: WorkerConfig, plain: Options) -> tuple[Runner, Options]:
    """In bitwise mode: over repacked weights, if that holds, else over weights as they are in the file."""
    try:
        return _try(lib, found, config, exact_options(plain, repacked=True), exact=True)
    except BatchInvarianceError as error:
        if not lib.log.repacked:
            raise
        logger.info("%s: over repacked weights %s", found.id, error)
    return _try(lib, found, config, exact_options(plain), exact=True)


def _try(
    lib: Library, found: GgufFile, config: WorkerConfig, options: Options, *, exact: bool
) -> tuple[Runner, Options]:
    model = LoadedGguf(lib, found.file, options)
    context: Context | None = None
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
        cells = slots * length + PASS_TOKENS + SPARE_CELLS
        check_memory(found, cells, options.type_k, options.type_v, on_host=not _offloads(lib, config))
        options = replace(options, cells=cells)
        context = Context(model, options)
        runner = Runner(context, slots, length, ordered=exact, reads_apart=exact and model.repacked)
        if exact:
            mark = mark_of(lib, found, lib.tiled_products, options, slots, length, config.prefill_chunk_tokens)
            if not passed(mark):
                self_check(runner, config.prefill_chunk_tokens)
                runner.cells.forget_all()
                remember(mark)
    except BaseException:
        if context is not None:
            context.close()
        model.close()
        raise
    return runner, options


def _options(config: WorkerConfig, found: GgufFile) -> Options:
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


def _offloads(lib: Library, config: WorkerConfig) -> bool:
    return bool(lib.api.llama_supports_gpu_offload()) and config.gpu_layers != 0


def _fingerprint(lib: Library, found: GgufFile, options: Options, exact: bool) -> str:
    facts: list[Any] = [
        f"llama-cpp-python-{lib.version}", lib.system, options.type_k, options.type_v, options.flash_attention,
        options.extra_buffers, options.gpu_layers, exact, "" if exact else options.threads,
    ]  # fmt: skip
    return found.fingerprint(*map(str, facts))
