"""From a worker's settings to a running model of the torch engine."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal, TypeGuard

import torch

from config.workers import LONGEST_DEFAULT_CONTEXT, DraftWorkerConfig, TargetWorkerConfig, WorkerConfig
from engines.generation_config import read_generation_config
from engines.models import ModelFiles, resolve_model
from engines.running_model import OnPass
from engines.runtime.engine import LoadedModel, LoopModel, start_engine
from engines.runtime.runner import Chains
from engines.tokenizer import load_tokenizer, special_token_ids, stop_token_ids, tokenizer_info
from engines.torch.chains import APART_PLACES, ChainRunner
from engines.torch.configuration import read_config
from engines.torch.fused_linear import fuse_siblings
from engines.torch.graph_passes import capture_passes
from engines.torch.int8_linear import Int8Linear
from engines.torch.loader import load_runner, runner_fingerprint
from engines.torch.runner import Runner
from engines.torch.short_chains import ShortChains
from engines.torch.support import context_length
from protocol.worker_info import Capabilities

logger = logging.getLogger(__name__)


def load_engine(
    config: WorkerConfig,
    role: Literal["draft", "target"],
    capabilities: Capabilities,
    on_pass: OnPass,
    on_death: Callable[[str], None],
    progress: Callable[[str], None],
) -> LoopModel:
    """Find, load and start the configured model (see engines.table.load_engine).

    The process's environment must have been prepared (engines.torch.environment). Raises ModelError.
    """
    progress(f"looking for {config.model}")
    files = resolve_model(config.model, allow_pickle_weights=config.allow_pickle_weights, progress=progress)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    progress(f"loading {files.id}")
    tokenizer = load_tokenizer(files)
    read_generation_config(files)  # which refuses a damaged one: loading the model would take it for none
    runner = load_runner(
        files,
        num_slots=config.slots if config.memory_gb is None else None,
        kv_memory_bytes=int((config.memory_gb or 0) * 2**30),
        slot_length=_slot_length(config, files),
        device=config.device,
        dtype=config.dtype,
        batch_invariant=bool(config.batch_invariant),
        prefill_chunk_tokens=config.prefill_chunk_tokens,
        allow_pickle_weights=config.allow_pickle_weights,
        apart=APART_PLACES if _may_chain(config) else 0,
    )
    how = _chains(config, runner)
    if runner.device.type == "cuda":
        if how != "none":
            fuse_siblings(runner.model)
        if _captures_passes(config, runner):
            progress(f"capturing passes of {files.id}")
            runner.graph_passes = capture_passes(runner, files.id)
    stops = stop_token_ids(tokenizer, runner.model.config, runner.model.generation_config)
    model = LoadedModel(
        id=files.id,
        engine="torch",
        dtype=_weights(runner),
        device=str(runner.device),
        fingerprint=runner_fingerprint(files, runner),
        runner=runner,
        tokenizer=tokenizer_info(
            files, tokenizer, stop_ids=stops, logits_size=runner.vocab_size, context_length=runner.slot_length
        ),
        special_token_ids=special_token_ids(tokenizer),
        batch_invariant=runner.batch_invariant,
        takes_trees=runner.takes_trees,
    )

    def chains() -> Chains | None:
        if how == "none":
            return None
        if runner.short_passes is not None:
            return ShortChains(runner, runner.short_passes)
        progress(f"capturing chains of {files.id}")
        return _capture(runner, files.id, compiled=how == "compiled")

    return start_engine(model, config, role, capabilities, on_pass, on_death, progress, chains)


def _weights(runner: Runner) -> str:
    """What the products are made of: a trained draft's may be int8 in a model that is float32 otherwise."""
    if any(isinstance(module, Int8Linear) for module in runner.model.modules()):
        return "int8"
    return str(runner.dtype).removeprefix("torch.")


def _chains(config: WorkerConfig, runner: Runner) -> Literal["none", "plain", "compiled"]:
    """Whether tokens that follow each other may be drawn without the host between them, and whether by what
    torch.compile makes of the model."""
    if not _may_chain(config) or not runner.takes_chains:
        return "none"
    on_cuda = runner.device.type == "cuda"
    pays = on_cuda or runner.short_passes is not None
    if config.chains == "auto" and not pays:
        return "none"
    return "compiled" if on_cuda and config.compile else "plain"


def _may_chain(config: WorkerConfig) -> TypeGuard[DraftWorkerConfig]:
    return isinstance(config, DraftWorkerConfig) and not config.batch_invariant and config.chains != "off"


def _captures_passes(config: WorkerConfig, runner: Runner) -> bool:
    """A draft worker's passes are chains, and trees that are prepared ahead, which no graph takes: what a graph takes
    would only make it believe that trees are quick."""
    if not isinstance(config, TargetWorkerConfig) or not config.cuda_graphs:
        return False
    return runner.takes_chains and not runner.batch_invariant


def _capture(runner: Runner, model_id: str, *, compiled: bool) -> ChainRunner | None:
    try:
        return ChainRunner(runner, compiled=compiled)
    except Exception as error:  # noqa: BLE001 - whatever can't be captured: tokens are then drawn one by one
        logger.warning("%s drafts token by token, as its chains can't be captured: %s", model_id, error)
        return None


def _slot_length(config: WorkerConfig, files: ModelFiles) -> int:
    if config.context_length is not None:
        return config.context_length
    return min(context_length(read_config(files)), LONGEST_DEFAULT_CONTEXT)
