"""From a worker's settings to a running model of the llama.cpp engine."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, Literal

from config.workers import WorkerConfig
from engines.errors import BatchInvarianceError
from engines.grammar.service import Grammars
from engines.llama_cpp.context import Options
from engines.llama_cpp.exact import self_check
from engines.llama_cpp.files import GgufFile
from engines.llama_cpp.known_tokenizer import kept_tokenizer, known_tokenizer
from engines.llama_cpp.library import Library
from engines.llama_cpp.loading import (
    TILED_PRODUCTS,
    Loaded,
    Opened,
    exact_options,
    load,
    offloads,
    opened,
    plain_options,
)
from engines.llama_cpp.remembered import mark_of, passed, remember
from engines.llama_cpp.runner import Runner
from engines.running_model import OnPass
from engines.runtime.engine import LoadedModel, LoopModel, start_engine
from protocol.worker_info import Capabilities

logger = logging.getLogger(__name__)

_MEASURING_SECONDS = 0.4
"""A row more costs llama.cpp's products on a CPU much the same from four rows on, so what is left out is a line."""


def load_engine(
    config: WorkerConfig,
    role: Literal["draft", "target"],
    capabilities: Capabilities,
    on_pass: OnPass,
    on_death: Callable[[str], None],
    progress: Callable[[str], None],
) -> LoopModel:
    """Find, load and start the configured GGUF model (see engines.table.load_engine). Raises ModelError."""
    found_model = opened(config, progress)
    lib, found = found_model.lib, found_model.found
    kept = kept_tokenizer(lib, found)
    runner, options, exact = load_runner(found_model, config)
    model = runner.context.model
    tokenizer = known_tokenizer(found, model, runner.slot_length, kept)
    loaded = LoadedModel(
        id=found.id,
        engine="llama_cpp",
        dtype=model.file_type,
        device="gpu" if offloads(lib, config) else "cpu",
        fingerprint=_fingerprint(lib, found, options, exact),
        runner=runner,
        tokenizer=tokenizer.info,
        special_token_ids=tokenizer.special_token_ids,
        batch_invariant=exact,
        reads_apart=runner.reads_apart,
    )
    # A later start is not kept waiting for them: only requests that have a grammar are.
    grammars = Grammars.soon if kept is not None and kept.takes_grammars else Grammars.of_info
    return start_engine(
        loaded,
        config,
        role,
        capabilities,
        on_pass,
        on_death,
        progress,
        make_grammars=grammars,
        measuring_seconds=_MEASURING_SECONDS,
    )


def load_runner(model: Opened, config: WorkerConfig) -> tuple[Runner, Options, bool]:
    """The model ready to run, how, and whether in bitwise mode: asked for, or (batch_invariant None) if it holds.

    Raises:
        ModelError: for what can't be loaded, does not fit or is not supported.
    """
    lib, found, first = model.lib, model.found, model.first
    if lib.tiled_products is None:
        lib.tiled_products = os.environ.get(TILED_PRODUCTS, "")
    if config.batch_invariant is False and isinstance(first, Loaded):
        return Runner(first.context, first.slots, first.length, ordered=False), first.options, False
    try:
        if isinstance(first, BatchInvarianceError):
            raise first
        return *_exact(model, config, first), True
    except BatchInvarianceError as error:
        if config.batch_invariant:
            raise BatchInvarianceError(f"{found.file.name}: {error}") from error
        logger.warning("%s: %s; its texts may depend on what else is in a pass", found.id, error)
    loaded = load(lib, found, config, plain_options(config))
    return Runner(loaded.context, loaded.slots, loaded.length, ordered=False), loaded.options, False


def _exact(model: Opened, config: WorkerConfig, first: Loaded) -> tuple[Runner, Options]:
    """In bitwise mode: over repacked weights, if that holds, else over weights as they are in the file."""
    try:
        return _tried(model, config, first), first.options
    except BatchInvarianceError as error:
        if not first.model.repacked:
            raise
        logger.info("%s: over repacked weights %s", model.found.id, error)
    second = load(model.lib, model.found, config, exact_options(plain_options(config)))
    return _tried(model, config, second), second.options


def _tried(model: Opened, config: WorkerConfig, loaded: Loaded) -> Runner:
    """Raises BatchInvarianceError, and then it is closed."""
    lib, chunk = model.lib, config.prefill_chunk_tokens
    runner = Runner(loaded.context, loaded.slots, loaded.length, reads_apart=loaded.model.repacked)
    mark = mark_of(lib, model.found, lib.tiled_products, loaded.options, loaded.slots, loaded.length, chunk)
    try:
        if not passed(mark):
            self_check(runner, chunk)
            runner.cells.forget_all()
            remember(mark)
    except BaseException:
        loaded.close()
        raise
    return runner


def _fingerprint(lib: Library, found: GgufFile, options: Options, exact: bool) -> str:
    facts: list[Any] = [
        f"llama-cpp-python-{lib.version}", lib.system, options.type_k, options.type_v, options.flash_attention,
        options.extra_buffers, options.gpu_layers, exact, "" if exact else options.threads,
    ]  # fmt: skip
    return found.fingerprint(*map(str, facts))
