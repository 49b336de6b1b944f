"""The engines, a line each, for both workers (docs/add_an_engine.md)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from config.workers import EngineName, WorkerConfig
from engines.llama_cpp.library import INSTALL
from engines.llama_cpp.library import check_installed as check_llama_cpp
from engines.vllm.versions import check_installed as check_vllm
from protocol.worker_info import Capabilities

if TYPE_CHECKING:  # they import torch: lookup can do without, and its environment is to be prepared first
    from engines.running_model import OnPass
    from engines.runtime.engine import LoopModel

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Engine:
    """Where its parts are; modules are imported once a worker uses them, as torch and transformers take seconds.

    `load`: the module whose `load_engine` (see below) starts a model on the loop. `adapter`: the package of each worker
    that serves with the engine, "runtime" for those on the loop. `check` raises ModelError where what the engine needs
    is not installed.
    """

    adapter: str = "runtime"
    load: str = ""
    check: Callable[[], object] = lambda: None


ENGINES: dict[EngineName, Engine] = {
    "torch": Engine(load="engines.torch.start"),
    "vllm": Engine(adapter="vllm", check=check_vllm),
    "llama_cpp": Engine(load="engines.llama_cpp.start", check=check_llama_cpp),
}


def engine_of(config: WorkerConfig) -> EngineName:
    """The engine that the settings name, or (auto) llama_cpp for a GGUF file where it is installed, else torch.

    Settings of torch's own beside such a file (device, dtype) ask for torch.
    """
    if config.engine != "auto":
        return config.engine
    return "llama_cpp" if _suits_llama_cpp(config) and find_spec("llama_cpp") is not None else "torch"


def _suits_llama_cpp(config: WorkerConfig) -> bool:
    return _is_gguf(Path(config.model).expanduser()) and (config.device, config.dtype) == ("auto", "auto")


def _is_gguf(path: Path) -> bool:
    if path.is_dir():
        return any(path.glob("*.gguf")) and not any(path.glob("*.safetensors"))
    return path.suffix == ".gguf"


def adapter(worker: Literal["draft_worker", "target_worker"], config: WorkerConfig) -> Any:
    """The module through which a worker uses its engine: it has `load_drafter` or `load_target`. Raises ModelError."""
    entry = ENGINES[engine_of(config)]
    entry.check()
    return import_module(f"{worker}.{entry.adapter}.engine")


def load_engine(
    config: WorkerConfig,
    role: Literal["draft", "target"],
    capabilities: Capabilities,
    on_pass: OnPass,
    on_death: Callable[[str], None],
    progress: Callable[[str], None],
) -> LoopModel:
    """The configured engine's model, running on the loop (engines.runtime.engine.start_engine). Raises ModelError.

    `on_death(reason)` is called if the loop failed, `progress` with what is being done.
    """
    name = engine_of(config)
    module: Any = import_module(ENGINES[name].load)
    engine: LoopModel = module.load_engine(config, role, capabilities, on_pass, on_death, progress)
    if name == "torch" and config.engine == "auto" and _suits_llama_cpp(config):
        logger.warning(
            "%s was turned into float32 for torch; llama.cpp would run it as it is, several times as fast on a CPU: %s",
            config.model, INSTALL,
        )  # fmt: skip
    return engine
