"""The engines, a line each, for both workers (docs/add_an_engine.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from config.workers import EngineName, WorkerConfig
from engines.vllm.versions import check_installed
from protocol.messages import Capabilities

if TYPE_CHECKING:  # they import torch: lookup can do without, and its environment is to be prepared first
    from engines.runtime.engine import LoopEngine
    from engines.runtime.passes import PassReport


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
    "vllm": Engine(adapter="vllm", check=check_installed),
}


def adapter(worker: Literal["draft_worker", "target_worker"], engine: EngineName) -> Any:
    """The module through which a worker uses an engine: it has `load_drafter` or `load_target`. Raises ModelError."""
    entry = ENGINES[engine]
    entry.check()
    return import_module(f"{worker}.{entry.adapter}.engine")


def load_engine(
    config: WorkerConfig,
    role: Literal["draft", "target"],
    capabilities: Capabilities,
    on_pass: Callable[[PassReport], None],
    on_death: Callable[[str], None],
    progress: Callable[[str], None],
) -> LoopEngine:
    """The configured engine's model, running on the loop (engines.runtime.engine.start_engine). Raises ModelError.

    `on_death(reason)` is called if the loop failed, `progress` with what is being done.
    """
    module: Any = import_module(ENGINES[config.engine].load)
    engine: LoopEngine = module.load_engine(config, role, capabilities, on_pass, on_death, progress)
    return engine
