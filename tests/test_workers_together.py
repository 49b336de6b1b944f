"""Both workers on real (tiny, random) models in batch-invariant mode: the text never depends on how it was drafted."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from config.pairs import BUNDLED_DRAFT
from config.workers import DraftWorkerConfig, TargetWorkerConfig
from draft_worker.app import create_app as create_draft_app
from engines.bundled import bundled_gguf
from server.fleet.times import DraftTimes, StepTimes
from server.rounds.adaptive.pair import PairState
from server.rounds.adaptive.planner import AdaptivePlanner, FixedPlanner
from server.rounds.adaptive.round import Planner, RoundOutcome, RoundPlan, Times
from target_worker.app import create_app as create_target_app
from testing.fakes.runner import FakeRunner
from testing.scripted_draft import Script
from testing.tiny_models import make_tiny_model, truncate_model
from testing.worker_apps import Drafter, Target, running
from tests.engines.llama_cpp.tiny_gguf import as_gguf, require_llama_cpp

LENGTH = 12
VOCABULARY = 384
PROMPTS = [[5, 9, 11, 5, 9, 11, 5, 9], list(range(40, 61))]
TEMPERATURES = (0.0, 0.3, 0.7, 1.0, 1.5)
CUTS: dict[str, dict[str, Any]] = {"": {}, "top_p": {"top_p": 0.8}}
PENALTIES: dict[str, dict[str, Any]] = {
    "": {},
    "penalties": {"repetition_penalty": 1.2, "presence_penalty": 0.4, "frequency_penalty": 0.3},
}
SAMPLINGS = {
    "-".join(filter(None, (f"t{temperature}", cut, penalty))): {
        "temperature": temperature, "seed": seed, **CUTS[cut], **PENALTIES[penalty]
    }
    for seed, (temperature, cut, penalty) in enumerate(itertools.product(TEMPERATURES, CUTS, PENALTIES))
}  # fmt: skip


class Pair:
    """A target, a draft worker with a model, and an event loop to run them on."""

    def __init__(self, events: asyncio.Runner, target: Target, drafter: Drafter) -> None:
        self.events = events
        self.target = target
        self.drafter = drafter
        self._serial = 0

    def name(self) -> str:
        self._serial += 1
        return f"s{self._serial}"


@asynccontextmanager
async def started(folder: Path, engines: tuple[str, str] = ("torch", "torch")) -> AsyncIterator[tuple[Target, Drafter]]:
    """`engines`: the target's and the drafter's."""
    common: dict[str, Any] = {
        "batch_invariant": True,
        "slots": 24,
        "max_queue": 256,
        "context_length": 96,
    }
    if engines == BUNDLED_GGUF:
        model, draft = bundled_gguf(print), Path(BUNDLED_DRAFT)
        engines = ("llama_cpp", "torch")
    else:
        model, draft = tiny_pair(folder, engines)
    async with AsyncExitStack() as stack:
        target = await stack.enter_async_context(
            running(create_target_app(TargetWorkerConfig(model=str(model), engine=name_of(engines[0]), **common)))
        )
        drafter = await stack.enter_async_context(
            running(create_draft_app(DraftWorkerConfig(model=str(draft), engine=name_of(engines[1]), **common)))
        )
        yield Target(target, FakeRunner()), Drafter(drafter, FakeRunner())


def tiny_pair(folder: Path, engines: tuple[str, str]) -> tuple[Path, Path]:
    """A tiny target and a draft cut from it, each in its engine's format."""
    hidden = 256 if K_QUANTS in engines else 64
    model = make_tiny_model(folder / "target", layers=3, context_length=256, hidden=hidden)
    draft = truncate_model(model, folder / "draft", layers=2)
    kind = "Q4_K" if K_QUANTS in engines else "Q4_1"
    if name_of(engines[0]) == "llama_cpp":
        model = as_gguf(model, folder / "target.gguf", kind)
    if name_of(engines[1]) == "llama_cpp":
        draft = as_gguf(draft, folder / "draft.gguf", kind)
    return model, draft


def name_of(engine: str) -> Any:
    return engine.partition(" ")[0]


K_QUANTS = "llama_cpp k_quants"
"""Whose weights are repacked where the processor has it, so that prompts are computed apart."""
PAIRS = [
    ("torch", "torch"),
    ("llama_cpp", "llama_cpp"),
    ("torch", "llama_cpp"),
    ("llama_cpp", "torch"),
    (K_QUANTS, K_QUANTS),
]


FEW = ("t0.0-penalties", "t0.7", "t1.5-top_p")


BUNDLED_GGUF = ("bundled_gguf", "bundled_draft")
"""The bundled model's own Q4_1 file on llama.cpp, drafts from the bundled draft on torch."""


def pairs_and_samplings() -> Iterator[Any]:
    """All samplings for torch; for pairs with llama.cpp a few, the others, and the bundled file, when slow tests are
    asked for."""
    for engines in (*PAIRS, BUNDLED_GGUF):
        for name in SAMPLINGS:
            left_out = engines == BUNDLED_GGUF or (engines != PAIRS[0] and name not in FEW)
            marks = [pytest.mark.slow] if left_out else []
            yield pytest.param(engines, name, marks=marks, id=f"{'-'.join(engines)}-{name}")


@pytest.fixture(scope="module")
def pair(request: pytest.FixtureRequest, bitwise: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    if request.param != PAIRS[0]:
        require_llama_cpp()
    with asyncio.Runner() as events:
        both = started(tmp_path_factory.mktemp("models"), request.param)
        target, drafter = events.run(both.__aenter__())
        yield Pair(events, target, drafter)
        events.run(both.__aexit__(None, None, None))


async def plain(pair: Pair, prompt: list[int], sampling: dict[str, Any]) -> list[int]:
    lines = await pair.target.generate(
        ids=prompt, session_id=pair.name(), num_prompt_tokens=len(prompt), max_tokens=LENGTH, sampling=sampling
    )
    return [token_id for line in lines for token_id in line["token_ids"]]


@dataclass(frozen=True)
class Cell:
    """One way to draft. `adaptive`: γ and N are the most there may be, and the gateway's own planner chooses."""

    kind: str
    draft_tokens: int = 1
    candidates: int = 1
    adaptive: bool = False


CELLS = [
    Cell("none"),
    *itertools.starmap(
        Cell, itertools.product(("lookup", "model", "wrong", "partly_right"), (1, 3, 8), (1, 3), (False, True))
    ),
]


@dataclass
class Told:
    """What one text's rounds said of its drafts."""

    text: list[int]
    drafted: int = 0
    accepted: int = 0


async def speculative(
    pair: Pair, prompt: list[int], sampling: dict[str, Any], cell: Cell, truth: Sequence[int] = ()
) -> Told:
    """What the gateway does, in miniature: plan, draft, verify, append, until the target stops.

    `truth` is what drafts of the kind `partly_right` are right by.
    """
    told, script = Told([]), Script("partly_right", vocabulary=VOCABULARY)
    script.remember([*prompt, *truth])
    name, ids, number, held_draft, held = pair.name(), list(prompt), 0, 0, 0
    planner: Planner = FixedPlanner(cell.draft_tokens, cell.candidates)
    if cell.adaptive:
        planner = AdaptivePlanner(PairState(), cell.draft_tokens, cell.draft_tokens, cell.candidates)
    times = Times(StepTimes(()), DraftTimes(()))
    plain_left = 0
    while True:
        left = LENGTH - (len(ids) - len(prompt))
        fields = {
            "ids": ids,
            "session_id": name,
            "round": number,
            "num_prompt_tokens": len(prompt),
            "max_tokens": left,
            "sampling": sampling,
        }
        if plain_left <= 0:
            plan = planner.plan(times)
            plain_left = plan.plain_tokens
        drafts: list[dict[str, Any]] = []
        if cell.kind in ("model", "lookup") and plan.draft_tokens:
            answer = await pair.drafter.draft(
                **fields,
                held=held_draft,
                draft_tokens=plan.draft_tokens,
                num_candidates=plan.num_candidates,
                draft_model="lookup" if cell.kind == "lookup" else None,
                candidate_temperature=1.2 if plan.num_candidates > 1 else None,
            )
            drafts = answer["candidates"]
            held_draft = len(ids)
        elif cell.kind == "wrong" and plan.draft_tokens:
            drafts = [
                {"token_ids": [(ids[-1] + 7 * i + c) % VOCABULARY for i in range(plan.draft_tokens)]}
                for c in range(plan.num_candidates)
            ]
        elif cell.kind == "partly_right" and plan.draft_tokens:
            drafts = [{"token_ids": one} for one in script.drafts(ids, plan.draft_tokens, plan.num_candidates)]
        answer = await pair.target.verify(**fields, held=held, candidates=drafts)
        held = len(ids)
        ids += answer["token_ids"]
        told.drafted += answer["num_drafted"]
        told.accepted += answer["num_accepted"]
        number += 1
        if answer["stop_reason"] is not None:
            told.text = ids[len(prompt) :]
            return told
        if drafts:
            planner.observe(outcome(plan, drafts, answer), times)
        else:
            times.steps.observe_plain(1, 1.0)
            planner.observe_plain(len(answer["token_ids"]))
            plain_left -= len(answer["token_ids"])


def outcome(plan: RoundPlan, drafts: list[dict[str, Any]], answer: dict[str, Any]) -> RoundOutcome:
    """As the round loop reports it, on a virtual clock: a draft token costs a tenth of a step."""
    return RoundOutcome(
        asked=plan.draft_tokens,
        num_candidates=plan.num_candidates,
        drafted=answer["num_drafted"],
        accepted=answer["num_accepted"],
        emitted=len(answer["token_ids"]),
        gain=0,
        draft_seconds=0.1 * plan.draft_tokens,
        draft_failed=False,
        verify_seconds=1.0,
        rows=1 + sum(len(draft["token_ids"]) for draft in drafts),
    )


@pytest.mark.parametrize(("pair", "name"), list(pairs_and_samplings()), indirect=["pair"])
def test_the_same_tokens_whoever_drafts_and_however(pair: Pair, name: str) -> None:
    sampling = SAMPLINGS[name]
    prompt = PROMPTS[sampling["seed"] % len(PROMPTS)]

    async def check() -> None:
        truth = await plain(pair, prompt, sampling)
        # All at once: whatever else is in a pass must not matter either.
        found = await asyncio.gather(*(speculative(pair, prompt, sampling, cell, truth) for cell in CELLS))
        for cell, told in zip(CELLS, found, strict=True):
            assert told.text == truth, cell
            if cell.kind == "partly_right":
                assert told.accepted > 0, cell
            if cell.kind in ("model", "wrong"):
                assert told.drafted > 0, cell

    pair.events.run(check())


@pytest.mark.parametrize("pair", PAIRS, ids="-".join, indirect=True)
def test_the_drafts_were_worth_something(pair: Pair) -> None:
    """Equal texts can't show a broken coupling: count what the model's drafts win at temperature 1."""

    async def check() -> None:
        samplings = [{"temperature": 1.0, "seed": seed} for seed in range(12)]
        found = await asyncio.gather(
            *(speculative(pair, PROMPTS[1], sampling, Cell("model", 3)) for sampling in samplings)
        )
        assert sum(told.accepted for told in found) / sum(told.drafted for told in found) > 0.1

    pair.events.run(check())
