"""Several choices of one prompt, and salted caches: each choice has its own text, the same on any engine."""

from __future__ import annotations

import httpx
import pytest

from testing.patience import PATIENCE
from testing.prompts import SHORT
from testing.stacks import speculative
from testing.wire import request
from tests.vllm.real.conftest import Workers

PROMPT = [(7 * place) % 250 + 4 for place in range(80)]
WARM = {"temperature": 0.9}


def drawn(workers: Workers, engine: str, choice_index: int = 0, salt: str | None = None) -> tuple[list[int], int]:
    """Four tokens, a request each; and how many tokens of the prompt were held already."""
    process = workers.target if engine == "vllm" else workers.torch_target
    ids, cached = list(PROMPT), []
    for _ in range(4):
        fields = {"session_id": None, "choice_index": choice_index, "candidates": []}
        answer = workers.post(process, "/v1/verify", request(ids, salt=salt, sampling=WARM, **fields))
        ids += answer["token_ids"]
        cached.append(answer["cached_tokens"])
    return ids[len(PROMPT) :], cached[0]


def test_each_choice_is_a_text_of_its_own_and_the_same_on_both_engines(workers: Workers) -> None:
    texts = [drawn(workers, "vllm", choice_index=index)[0] for index in range(3)]
    assert texts == [drawn(workers, "torch", choice_index=index)[0] for index in range(3)]
    assert len(set(map(tuple, texts))) == 3


def test_a_choice_is_drafted_for_with_its_own_noise(workers: Workers) -> None:
    """Both drafters run one model: they draw the same tokens for a choice, and others for another choice."""

    def drafted(name: str, choice_index: int) -> list[int]:
        fields = {"session_id": None, "choice_index": choice_index, "draft_tokens": 4}
        answer = workers.post(workers.drafters[name], "/v1/draft", request(PROMPT, sampling=WARM, **fields))
        token_ids: list[int] = answer["candidates"][0]["token_ids"]
        return token_ids

    assert [drafted("vllm", index) for index in (0, 2)] == [drafted("torch", index) for index in (0, 2)]
    assert drafted("vllm", 0) != drafted("vllm", 2)


@pytest.mark.parametrize("drafter", ["vllm", "wrong"])
def test_all_choices_of_one_call_are_the_same_whoever_drafts(workers: Workers, drafter: str) -> None:
    def texts(who: str) -> list[str]:
        body = {
            "model": workers.client.model,
            "messages": [{"role": "user", "content": SHORT[0]}],
            "n": 3,
            "max_tokens": 12,
            "temperature": 0.9,
            "seed": 3,
            "speculative": speculative(who, 3),
        }
        answer = httpx.post(f"{workers.client.url}/v1/chat/completions", json=body, timeout=PATIENCE, trust_env=False)
        assert answer.status_code == 200, answer.text
        return [choice["message"]["content"] for choice in answer.json()["choices"]]

    plain = texts("none")
    assert texts(drafter) == plain
    assert len(set(plain)) == 3


def test_a_salt_keeps_caches_apart_and_texts_as_they_are(workers: Workers) -> None:
    held = drawn(workers, "vllm")[0]
    mine, cached = drawn(workers, "vllm", salt="mine")
    again, cached_again = drawn(workers, "vllm", salt="mine")
    yours, cached_yours = drawn(workers, "vllm", salt="yours")
    assert mine == again == yours == held
    assert (cached, cached_yours) == (0, 0), "what another salt computed is not to be found"
    assert cached_again >= 64
