"""From a worker's settings to a running vLLM."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import transformers

from basics.metrics import Watched
from config.workers import WorkerConfig
from engines.errors import ModelError
from engines.fingerprint import fingerprint
from engines.generation_config import read_generation_config
from engines.grammar.service import Grammars
from engines.models import ModelFiles, resolve_model
from engines.running_model import OnPass, RunningModel
from engines.tokenizer import load_tokenizer, special_token_ids, stop_token_ids, tokenizer_info
from engines.vllm.arguments import engine_arguments, prepare_environment
from engines.vllm.draw_check import check_draws
from engines.vllm.engine import VllmEngine
from engines.vllm.measure import measure_step_seconds
from engines.vllm.owner import announce_owner
from engines.vllm.versions import check_installed
from protocol.worker_info import Capabilities, ModelInfo, StepTime


@dataclass(frozen=True, kw_only=True)
class VllmModel(RunningModel):
    """`engine` has been started. `resources` are closed after it."""

    engine: VllmEngine
    resources: ExitStack = field(default_factory=ExitStack)

    def gauges(self) -> list[Watched]:
        stats = self.engine.stats
        return [
            ("num_requests_running", "Requests in vLLM's batch", lambda: stats.running),
            ("num_requests_waiting", "Requests that wait to be in vLLM's batch", lambda: stats.waiting),
        ]

    def close(self, patience: float) -> None:
        self.engine.close(patience)
        super().close(patience)
        self.resources.close()


def load_model(
    config: WorkerConfig,
    role: Literal["draft", "target"],
    capabilities: Capabilities,
    ours: Mapping[str, Any],
    on_pass: OnPass,
    on_death: Callable[[str], None],
    progress: Callable[[str], None],
    started: Callable[[VllmEngine, Capabilities], Capabilities] | None = None,
) -> VllmModel:
    """Find the configured model and start vLLM with it; `progress` is called with what is being done.

    `ours` are the engine arguments that make vLLM draw as its worker needs it: `logits_processors`, a list of
    "module:Class", or none of them and a `speculative_config`; then `started` installs the processor in the running
    engine, and returns what the engine can do. Raises ModelError.
    """
    version = check_installed()
    from vllm.platforms import current_platform

    is_cpu = current_platform.is_cpu()
    progress(f"looking for {config.model}")
    files = resolve_model(config.model, allow_pickle_weights=config.allow_pickle_weights, progress=progress)
    described = _config(files)
    tokenizer = load_tokenizer(files)
    stops = stop_token_ids(tokenizer, described, read_generation_config(files))
    arguments = engine_arguments(config, files, _longest_context(described), is_cpu, ours)
    prepare_environment(is_cpu)
    announce_owner()
    progress(f"starting vLLM {version} with {files.id}")
    engine = VllmEngine(config.max_queue, on_pass, on_death)
    try:
        engine.start(arguments)
        if started is not None:
            capabilities = started(engine, capabilities)
        settings = engine.llm.vllm_config.model_config
        vocabulary, context_length = settings.get_vocab_size(), settings.max_model_len
        draws = bool(arguments.get("logits_processors") or arguments.get("speculative_config"))
        if draws:
            progress(f"checking vLLM's draws with {files.id}")
            engine.run_now(check_draws(engine, vocabulary))
        progress(f"measuring {files.id}")
        step_seconds = engine.run_now(measure_step_seconds(engine, vocabulary, context_length, draws))
        known = tokenizer_info(files, tokenizer, stop_ids=stops, logits_size=vocabulary, context_length=context_length)
        progress(f"preparing grammars for {files.id}")
        grammars = Grammars.of_tokenizer(known.tokenizer_json, vocabulary, stops) if draws else Grammars()
        dtype = str(settings.dtype).removeprefix("torch.")
        info = ModelInfo(
            role=role,
            id=files.id,
            engine="vllm",
            dtype=dtype,
            device=_device_name(),
            vocabulary=known.vocabulary,
            special_token_ids=special_token_ids(tokenizer),
            stop_token_ids=stops,
            context_length=context_length,
            max_sessions=engine.max_sequences,
            fingerprint=_fingerprint(config, files, version, dtype),
            capabilities=capabilities.model_copy(update={"grammar_types": grammars.types}),
            step_seconds=[StepTime(rows=rows, seconds=seconds) for rows, seconds in step_seconds.items()],
        )
    except BaseException:
        engine.close(0.0)
        raise
    return VllmModel(engine=engine, info=info, tokenizer=known, grammars=grammars)


def _fingerprint(config: WorkerConfig, files: ModelFiles, version: str, dtype: str) -> str:
    return fingerprint(
        files.folder,
        engine=f"vllm-{version} torch-{torch.__version__}",
        dtype=dtype,
        device=_device_name(),
        numerics=f"{torch.get_num_threads()} threads {sorted(config.vllm_args.items(), key=str)}",
    )


def _config(files: ModelFiles) -> Any:
    try:
        return transformers.AutoConfig.from_pretrained(files.folder, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ModelError(f"{files.id}: its config.json could not be read: {error}") from error


def _longest_context(config: Any) -> int:
    return int(getattr(config.get_text_config(), "max_position_embeddings", None) or 2048)


def _device_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
