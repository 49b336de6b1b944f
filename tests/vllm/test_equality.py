"""Whatever speculates, and on whichever engine, the text is the target's own: vLLM in float32."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from benchmarks.client import Answer
from benchmarks.prompts import SHORT
from benchmarks.stacks import speculative
from tests.real.rig import until_drafted
from tests.vllm.conftest import Workers

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

    def share(drafter: str) -> tuple[int, int]:
        options = {"max_tokens": 48, "temperature": 1.0, "seed": 5, "ignore_eos": True}
        found = workers.client.chat(SHORT[2], speculative=speculative(drafter, 3), **options)
        counts = found.speculation or {}
        return counts["num_accepted_draft_tokens"], counts["num_draft_tokens"]

    # On a busy machine a draft may be late, and its round goes without: another try tells that from another draw.
    tries = [(share("vllm"), share("torch"))]
    while len(tries) < 10 and tries[-1][0] != tries[-1][1]:
        tries.append((share("vllm"), share("torch")))
    assert tries[-1][0] == tries[-1][1], tries
    assert tries[-1][0][0] > 0
