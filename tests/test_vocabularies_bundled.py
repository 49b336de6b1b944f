"""The bundled model drafted by models of other tokenizers, and from Python: always its own text. Minutes on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from draft_worker.vocabularies.sample import SAMPLE
from testing.in_process import Stack, running_stack
from testing.models import bundled
from testing.vocabularies import llama_like, model_that_speaks, permuted, qwen_like
from tests.test_vocabularies import OTHER, at_once, complete, counts, drafted_by

pytestmark = pytest.mark.slow

PROMPTS = ["The capital of France is", "def add(a, b):\n", "Die Hauptstadt von 日本 ist"]
DRAFTERS = ("right_ids", "right_text", "bytes", "qwen", "disagrees")


@pytest.fixture(scope="module")
def stack(bitwise: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("models")
    corpus = [SAMPLE, *(page.read_text() for page in sorted(Path("docs").glob("*.md")))]
    tiny: dict[str, Any] = {"layers": 1, "hidden": 32, "context_length": 512}
    same = permuted(bundled(), folder / "permuted")
    bytes_ = model_that_speaks(folder / "bytes", llama_like(corpus, 4_000), "<s>", "</s>", **tiny)
    qwen = model_that_speaks(folder / "qwen", qwen_like(corpus, 8_000), None, "<|im_end|>", **tiny)
    disagrees = model_that_speaks(folder / "disagrees", qwen_like(OTHER, 500, ["<|end|>"]), None, "<|end|>", **tiny)
    pools = {
        "right_ids": {"model": str(same)},
        "right_text": {"model": str(same), "other_vocabulary": "shared_text"},
        "bytes": {"model": str(bytes_)},
        "qwen": {"model": str(qwen)},
        "disagrees": {"model": str(disagrees)},
    }
    with running_stack(
        bundled(), pools={name: {"slots": 8, "context_length": 512, **own} for name, own in pools.items()}
    ) as stack:
        yield stack


@pytest.mark.parametrize(("temperature", "candidates"), [(0.0, 1), (0.0, 3), (0.8, 1), (1.2, 3)])
def test_the_bundled_models_text_is_its_own_whoever_drafts(stack: Stack, temperature: float, candidates: int) -> None:
    accepted = dict.fromkeys(DRAFTERS, 0)
    drafted = dict.fromkeys(DRAFTERS, 0)
    for prompt in PROMPTS:
        asks = [
            partial(complete, stack, prompt, drafted_by(name, num_candidates=candidates), temperature=temperature)
            for name in ("none", *DRAFTERS)
        ]
        plain, *answers = at_once(asks)
        for name, answer in zip(DRAFTERS, answers, strict=True):
            assert answer["choices"] == plain["choices"], name
            more = counts(answer)
            drafted[name], accepted[name] = drafted[name] + more[0], accepted[name] + more[1]
    print(temperature, candidates, {name: f"{accepted[name]}/{drafted[name]}" for name in DRAFTERS})
    assert all(drafted.values()), drafted
    assert accepted["right_ids"] == drafted["right_ids"]
    if temperature == 0.0 and candidates == 1:
        assert accepted["right_text"] > 0.8 * drafted["right_text"]


@pytest.mark.parametrize("strategy", ["greedy", "threshold"])
def test_other_strategies_at_temperature_0(stack: Stack, strategy: str) -> None:
    asks = [
        partial(complete, stack, PROMPTS[0], drafted_by(name, strategy=strategy), temperature=0.0) for name in DRAFTERS
    ]
    plain, *answers = at_once([partial(complete, stack, PROMPTS[0], {"enabled": False}, temperature=0.0), *asks])
    assert all(answer["choices"] == plain["choices"] for answer in answers)


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": 0.9, "top_p": 0.9, "seed": 11}])
def test_python_gives_the_servers_text(bitwise: None, options: dict[str, Any]) -> None:
    from tandem import Tandem

    messages = [{"role": "user", "content": "Name three rivers."}]
    draft = {"draft_tokens": 4, "adaptive_speculation": False}
    with running_stack(bundled()) as server:
        answer = server.chat(messages=messages, max_tokens=40, speculative=draft, **options).json()
    exact: dict[str, Any] = {"device": "cpu", "batch_invariant": True, "target_options": {"slots": 16}}
    with Tandem("SmolLM2-135M-Instruct", draft="lookup", **exact) as t:
        assert t.chat(messages, max_tokens=40, **draft, **options).text == answer["choices"][0]["message"]["content"]
