"""A model that is served from the loop: the loop, and what GET /v1/model and /v1/tokenizer report about it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from basics.metrics import Watched
from config.workers import WorkerConfig
from engines.grammar.service import Grammars
from engines.running_model import OnPass, RunningModel
from engines.runtime.loop import EngineLoop
from engines.runtime.rows import Row
from engines.runtime.runner import Chains, ModelRunner
from engines.runtime.slots import SlotCache
from protocol.worker_info import Capabilities, ModelInfo, StepTime, TokenizerInfo

MEASURED_ROWS = (1, 2, 4, 8, 16, 32)
MEASURING_SECONDS = 0.9


@dataclass(frozen=True, kw_only=True)
class LoopModel(RunningModel):
    """`loop` has been started."""

    loop: EngineLoop

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

    def disown(self, owner: int) -> None:
        super().disown(owner)
        self.loop.disown(owner)

    def close(self, patience: float) -> None:
        self.loop.shutdown(patience)
        super().close(patience)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What an engine has loaded, for `start_engine`. Strings are as GET /v1/model shows them.

    `reads_apart`: the runner computes prompts in other ways than what is generated (engines.runtime.slots.SlotCache).
    """

    id: str
    engine: str
    dtype: str
    device: str
    fingerprint: str
    runner: ModelRunner
    tokenizer: TokenizerInfo
    special_token_ids: list[int]
    batch_invariant: bool = False
    takes_trees: bool = True
    reads_apart: bool = False


def start_engine(
    model: LoadedModel,
    config: WorkerConfig,
    role: Literal["draft", "target"],
    capabilities: Capabilities,
    on_pass: OnPass,
    on_death: Callable[[str], None],
    progress: Callable[[str], None],
    chains: Callable[[], Chains | None] = lambda: None,
    make_grammars: Callable[[TokenizerInfo], Grammars] = Grammars.of_info,
    measuring_seconds: float = MEASURING_SECONDS,
) -> LoopModel:
    """Measure a loaded model, prepare its grammars and start the loop; `progress` is called with what is being done.

    `chains` and `make_grammars` are called once the model has been measured, which what they begin would disturb.
    """
    runner, tokenizer = model.runner, model.tokenizer
    progress(f"measuring {model.id}" + (" in bitwise mode" if model.batch_invariant else ""))
    step_seconds = measure_step_seconds(runner, budget=measuring_seconds)
    progress(f"preparing grammars for {model.id}")
    grammars = make_grammars(tokenizer)
    slots = SlotCache(
        runner.num_slots,
        runner.copy,
        config.slot_hold_ms / 1000,
        reusable=runner.reusable,
        reads_apart=model.reads_apart,
    )
    drawn_as_chains = chains()
    loop = EngineLoop(
        runner, slots, config.max_queue, config.prefill_chunk_tokens, on_pass, drawn_as_chains, on_death, step_seconds
    )
    info = ModelInfo(
        role=role,
        id=model.id,
        engine=model.engine,
        dtype=model.dtype,
        device=model.device,
        vocabulary=tokenizer.vocabulary,
        special_token_ids=model.special_token_ids,
        stop_token_ids=tokenizer.stop_token_ids,
        context_length=runner.slot_length,
        max_sessions=runner.num_slots,
        fingerprint=model.fingerprint,
        capabilities=capabilities.model_copy(
            update={
                "batch_invariant": model.batch_invariant,
                "grammar_types": grammars.types,
                "max_candidates": capabilities.max_candidates if model.takes_trees else 1,
                "lookahead": capabilities.lookahead and model.takes_trees,
            }
        ),
        step_seconds=[StepTime(rows=rows, seconds=seconds) for rows, seconds in step_seconds.items()],
    )
    loop.start()
    return LoopModel(loop=loop, info=info, tokenizer=tokenizer, grammars=grammars)


def measure_step_seconds(
    runner: ModelRunner,
    repeats: int = 3,
    clock: Callable[[], float] = time.perf_counter,
    budget: float = MEASURING_SECONDS,
) -> dict[int, float]:
    """Least seconds of one pass over 1, 2, 4, … tokens of one sequence. Overwrites slot 0.

    The sizes take turns and the least counts: others on the machine (a draft worker that starts, too) only slow a pass
    down, and must not make few rows look dearer than many. It is over in about `budget` seconds: larger sizes of a
    slow model are left to be extrapolated.
    """
    began = clock()

    def left() -> float:
        return budget - (clock() - began)

    def once(count: int) -> float:
        start = clock()
        (logits,) = runner.forward([Row(slot=0, start=0, token_ids=[0] * count)])
        logits[-1, -1].item()  # waits for the device
        return clock() - start

    seconds: dict[int, float] = {}
    longest = 0.0
    for count in MEASURED_ROWS:
        if count > runner.slot_length or (len(seconds) > 1 and left() < 4 * longest):
            break
        once(count)  # warms up
        seconds[count] = longest = once(count)
    for count in list(seconds) * (repeats - 1):
        if left() < seconds[count]:
            break
        seconds[count] = min(seconds[count], once(count))
    return seconds
