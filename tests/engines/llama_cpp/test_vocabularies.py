"""A draft model on llama.cpp for a target of another vocabulary: by shared ids and by shared text, as on torch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import httpx
import pytest

from testing.in_process import Stack, running_stack
from testing.patience import PATIENCE
from testing.tiny_models import make_tiny_model
from tests.engines.llama_cpp.tiny_gguf import tiny_gguf
from tests.test_vocabularies import complete, drafted, drafted_by


@pytest.fixture(scope="module")
def stack(bitwise: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("models")
    target = make_tiny_model(folder / "target", layers=2)
    other = tiny_gguf(folder / "other", vocabulary=300)
    pools = {
        way: {"model": str(other), "engine": "llama_cpp", "slots": 4, "context_length": 256, "other_vocabulary": way}
        for way in ("shared_ids", "shared_text")
    }
    with running_stack(target, pools=pools) as stack:
        yield stack


@pytest.mark.parametrize("way", ["shared_ids", "shared_text"])
def test_the_text_is_the_targets(stack: Stack, way: str) -> None:
    assert (
        f"on llama_cpp, by {way.replace('_', ' ')} ("
        in httpx.get(f"{stack.url}/ready", timeout=PATIENCE).json()["detail"]
    )
    for temperature, candidates in ((0.0, 1), (0.8, 3)):
        plain, asked = (
            partial(complete, stack, "Once upon a time", asked, temperature=temperature)
            for asked in (drafted_by("none"), drafted_by(way, num_candidates=candidates))
        )
        expected = plain()["choices"]
        assert all(answer["choices"] == expected for answer in drafted(asked))


def test_probabilistic_is_served_by_shared_ids_and_refused_by_shared_text(stack: Stack) -> None:
    asked = {"model": "tiny", "prompt": "Once", "max_tokens": 8, "seed": 1}
    found = {}
    for way in ("shared_ids", "shared_text"):
        speculative = drafted_by(way, strategy="probabilistic")
        found[way] = stack.post("/v1/completions", {**asked, "speculative": speculative}).status_code
    assert found == {"shared_ids": 200, "shared_text": 400}
