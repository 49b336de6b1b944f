"""A running model of the torch engine: its loop, and what GET /v1/model and /v1/tokenizer say of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from basics.metrics import Watched
from engines.drawing import Limits
from engines.grammar.service import Grammars
from engines.runtime.loop import EngineLoop
from protocol.messages import ModelInfo, TokenizerInfo


@dataclass(frozen=True, slots=True)
class TorchEngine:
    """`loop` has been started."""

    loop: EngineLoop
    info: ModelInfo
    tokenizer: TokenizerInfo
    grammars: Grammars = field(default_factory=Grammars)

    @property
    def limits(self) -> Limits:
        return Limits(frozenset(self.info.stop_token_ids), self.info.context_length)

    def gauges(self) -> list[Watched]:
        loop = self.loop
        return [
            ("num_requests_running", "Calls on a slot", lambda: loop.running),
            ("num_requests_waiting", "Calls without a slot yet", lambda: loop.waiting),
            ("slots", "Sessions whose keys and values can be held", lambda: len(loop.slots.slots)),
            ("slots_used", "Slots that hold something", lambda: loop.slots.filled),
        ]

    def counters(self) -> list[Watched]:
        slots = self.loop.slots
        return [("num_slot_evictions", "Slots whose content made room for another's", lambda: slots.evictions)]
