"""From a worker's settings to a running model of the torch engine."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal

import torch
import transformers

from config.workers import WorkerConfig
from engines.errors import ModelError
from engines.grammar.service import Grammars
from engines.models import ModelFiles, resolve_model
from engines.runtime.engine import TorchEngine
from engines.runtime.loop import EngineLoop
from engines.runtime.passes import PassReport
from engines.runtime.slots import SlotCache
from engines.tokenizer import load_tokenizer, special_token_ids, stop_token_ids, tokenizer_info
from engines.torch.chains import ChainRunner
from engines.torch.fused_linear import fuse_siblings
from engines.torch.loader import load_runner, runner_fingerprint
from engines.torch.support import context_length, shortened
from protocol.messages import Capabilities, ModelInfo, StepTime

logger = logging.getLogger(__name__)

LONGEST_DEFAULT_CONTEXT = 8192
"""Slots are allocated whole: without a setting, a model of 128k tokens would take all the memory there is."""


def load_engine(
    config: WorkerConfig,
    role: Literal["draft", "target"],
    capabilities: Capabilities,
    on_pass: Callable[[PassReport], None],
    progress: Callable[[str], None],
    chains: Literal["none", "plain", "compiled"] = "none",
) -> TorchEngine:
    """Find, load and start the configured model; `progress` hears what is being done.

    `chains`: whether tokens that follow each other may be drawn without the host between them, and whether by what
    torch.compile makes of the model.

    The process's environment must have been prepared (engines.torch.environment). Raises ModelError.
    """
    progress(f"looking for {config.model}")
    files = resolve_model(config.model, allow_pickle_weights=config.allow_pickle_weights, progress=progress)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    progress(f"loading {files.id}")
    tokenizer = load_tokenizer(files)
    runner = load_runner(
        files,
        num_slots=config.slots if config.memory_gb is None else None,
        kv_memory_bytes=int((config.memory_gb or 0) * 2**30),
        slot_length=_slot_length(config, files),
        device=config.device,
        dtype=config.dtype,
        batch_invariant=config.batch_invariant,
        prefill_chunk_tokens=config.prefill_chunk_tokens,
        allow_pickle_weights=config.allow_pickle_weights,
    )
    progress(f"measuring {files.id}")
    step_seconds = runner.measure_step_seconds()
    model = runner.model
    stops = stop_token_ids(tokenizer, model.config, model.generation_config)
    told = tokenizer_info(
        files, tokenizer, stop_ids=stops, logits_size=runner.vocab_size, context_length=runner.slot_length
    )
    progress(f"preparing grammars for {files.id}")
    grammars = Grammars.of_tokenizer(told.tokenizer_json, runner.vocab_size, stops)
    cache = SlotCache(runner.num_slots, runner.copy, config.slot_hold_ms / 1000)
    chain_runner: ChainRunner | None = None
    if chains != "none":
        progress(f"capturing chains of {files.id}")
        if runner.device.type == "cuda":
            fuse_siblings(model)
        try:
            chain_runner = ChainRunner(runner, compiled=chains == "compiled")
        except Exception as error:  # noqa: BLE001 - whatever can't be captured: tokens are then drawn one by one
            logger.warning("%s drafts token by token, as its chains can't be captured: %s", files.id, error)
    loop = EngineLoop(runner, cache, config.max_queue, config.prefill_chunk_tokens, on_pass, chain_runner)
    info = ModelInfo(
        role=role,
        id=files.id,
        engine="torch",
        dtype=str(runner.dtype).removeprefix("torch."),
        device=str(runner.device),
        vocabulary=told.vocabulary,
        special_token_ids=special_token_ids(tokenizer),
        stop_token_ids=stops,
        context_length=runner.slot_length,
        max_sessions=runner.num_slots,
        fingerprint=runner_fingerprint(files, runner),
        capabilities=capabilities.model_copy(
            update={"batch_invariant": runner.batch_invariant, "grammar_types": grammars.types}
        ),
        step_seconds=[StepTime(rows=rows, seconds=seconds) for rows, seconds in step_seconds.items()],
    )
    loop.start()
    return TorchEngine(loop, info, told, grammars)


def _slot_length(config: WorkerConfig, files: ModelFiles) -> int:
    if config.context_length is not None:
        return config.context_length
    try:
        described = transformers.AutoConfig.from_pretrained(files.folder, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ModelError(f"{files.id}: its config.json could not be read: {error}") from error
    cut = shortened(described)
    if cut is not None:
        logger.warning("%s: %s", files.id, cut)
    return min(context_length(described), LONGEST_DEFAULT_CONTEXT)
