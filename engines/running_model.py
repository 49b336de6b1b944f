"""A model that serves, on whatever engine: what the workers' services ask of it beside tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from basics.metrics import Watched
from engines.drawing import Limits
from engines.grammar.service import Grammars
from protocol.worker_info import ModelInfo, TokenizerInfo

OnPass = Callable[[int, int, float], None]
"""Called after every forward pass with its sessions, its tokens and its seconds; from any thread."""


@dataclass(frozen=True, kw_only=True)
class RunningModel(ABC):
    """What GET /v1/model and /v1/tokenizer show, and the grammars. An engine's own class adds the engine itself."""

    info: ModelInfo
    tokenizer: TokenizerInfo
    grammars: Grammars = field(default_factory=Grammars)

    @property
    def limits(self) -> Limits:
        return Limits(frozenset(self.info.stop_token_ids), self.info.context_length)

    @abstractmethod
    def gauges(self) -> Sequence[Watched]:
        """What metrics show of the engine's state."""

    def counters(self) -> Sequence[Watched]:
        return []

    def disown(self, owner: int) -> None:
        """The session with this serial is gone."""
        self.grammars.disown(owner)

    def close(self, patience: float) -> None:
        """Give running work `patience` seconds, then end it."""
        self.grammars.close()
