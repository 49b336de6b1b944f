"""Whatever speculates, and on whichever engine, the text is the target's own: vLLM in float32."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from testing.client import Answer
from testing.prompts import SHORT
from testing.stacks import speculative
from testing.wire import request
from tests.real.rig import until_drafted
from tests.vllm.real.conftest import Workers

SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "warm": {"temperature": 0.9, "top_p": 0.9, "seed": 11},
    "penalties": {
        "temperature": 0.7,
        "seed": 4,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.3,
        "repetition_penalty": 1.1,
    },
}
TOKENS = 20
DRAFTS = [*itertools.product(("vllm", "torch", "lookup", "wrong"), (1, 3, 8), (1,)), ("vllm", 3, 3), ("torch", 3, 3)]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_same_text_whoever_drafts(workers: Workers, sampling: str) -> None:
    options = {"max_tokens": TOKENS, "logprobs": True, "ignore_eos": True, **SAMPLINGS[sampling]}
    prompts = SHORT[:2]
    plain = [workers.client.chat(prompt, speculative=speculative("none"), **options) for prompt in prompts]

    def differs(number: int) -> str | None:
        drafter, gamma, candidates = DRAFTS[number]
        # Without logprobs greedy verification takes one request, with them a request for each place.
        asked = {**options, "logprobs": number % 2 == 0}
        block = speculative(drafter, gamma, candidates)

        def ask() -> Answer:
            return workers.client.chat(prompts[number % 2], speculative=block, **asked)

        # Prompt lookup may find nothing to draft from.
        texts = {answer.text for answer in ([ask()] if drafter == "lookup" else until_drafted(ask))}
        return None if texts == {plain[number % 2].text} else f"{DRAFTS[number]}: {texts!r}"

    # Several at once: what else is in vLLM's batch must not matter either.
    with ThreadPoolExecutor(4) as pool:
        assert [line for line in pool.map(differs, range(len(DRAFTS))) if line is not None] == []


def test_drafts_are_worth_something(workers: Workers) -> None:
    """Equal texts can't show a broken coupling: count what each engine's drafts win at temperature 1."""
    sampling = {"temperature": 1.0, "seed": 5}

    def accepted(drafter: str) -> list[int]:
        """Accepted drafts of each of 16 rounds, asked of the workers themselves: no draft can be late."""
        ids = [*range(20, 60), 5, 9, 11]
        fields: dict[str, Any] = {"session_id": None, "num_prompt_tokens": len(ids), "sampling": sampling}
        counts = []
        for _ in range(16):
            asked = request(ids, draft_tokens=3, **fields)
            candidates = workers.post(workers.drafters[drafter], "/v1/draft", asked)["candidates"]
            answer = workers.post(workers.target, "/v1/verify", request(ids, candidates=candidates, **fields))
            counts.append(answer["num_accepted"])
            ids += answer["token_ids"]
        return counts

    counts = accepted("vllm")
    assert counts == accepted("torch")
    assert sum(counts) > 0
