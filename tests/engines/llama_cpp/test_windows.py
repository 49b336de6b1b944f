"""Sliding windows on llama.cpp, past their length: transformers' logits, the same bits in any pass, and going back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from engines.llama_cpp.context import Context, LoadedGguf, Options
from engines.llama_cpp.exact import self_check
from engines.llama_cpp.library import library
from engines.llama_cpp.loading import exact_options
from engines.llama_cpp.runner import Runner
from engines.runtime.rows import Row
from tests.engines.gguf.gguf_files import byte_level_keys, keys_of, random_model, tensors_of, write
from tests.engines.llama_cpp.tiny_gguf import encoder

WINDOW, LENGTH, IDS = 16, 900, 300


@pytest.fixture(scope="module")
def model() -> Any:
    """Five layers with a window and one without, which is what llama.cpp takes every Gemma 3 to have."""
    return random_model(
        transformers.Gemma3TextConfig(
            vocab_size=IDS,
            hidden_size=64,
            intermediate_size=64,
            num_hidden_layers=6,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=32,
            sliding_window=WINDOW,
            layer_types=[*["sliding_attention"] * 5, "full_attention"],
            max_position_embeddings=1024,
            query_pre_attn_scalar=32,
            rope_parameters={
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                "full_attention": {"rope_type": "default", "rope_theta": 5e5},
            },
        )
    )


def written(model: Any, file: Path, window: int = WINDOW, kind: str = "F32") -> Path:
    """The model as a GGUF file whose matrices are of this type."""
    keys = keys_of(
        model.config,
        "gemma3",
        attention__sliding_window=window,
        attention__key_length=32,
        attention__value_length=32,
        rope__freq_base=5e5,
    )
    return write(file, keys | byte_level_keys(), tensors_of(model, "gemma3"), encoder(kind))


@pytest.fixture(scope="module")
def file(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(model, tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@contextmanager
def running(file: Path, *, bitwise: bool = False) -> Iterator[Runner]:
    options = Options(threads=2, cells=4 * LENGTH + 400, pass_tokens=300)
    if bitwise:
        options = exact_options(options)
    loaded = LoadedGguf(library(), file, options)
    context = Context(loaded, options)
    yield Runner(context, 4, LENGTH, ordered=bitwise)
    context.close()
    loaded.close()


def text(count: int) -> list[int]:
    return torch.randint(IDS, (count,), generator=torch.Generator().manual_seed(1)).tolist()


def expected_logits(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([ids])).logits[0]
    return logits


def test_logits_past_the_window_are_those_of_transformers(model: Any, file: Path) -> None:
    ids = text(120)
    expected = expected_logits(model, ids)
    with running(file) as runner:
        (whole,) = runner.forward([Row(0, 0, ids)])
        assert (whole - expected).abs().max() < 0.01 * expected.std()
        for at in (40, WINDOW, 1):  # back to where the keys of those windows are long behind
            (again,) = runner.forward([Row(0, at, ids[at:])])
            assert (again - expected[at:]).abs().max() < 0.01 * expected.std(), at


def test_a_window_that_is_one_too_wide_would_be_seen(model: Any, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        test_logits_past_the_window_are_those_of_transformers(
            model, written(model, tmp_path / "wider.gguf", WINDOW + 1)
        )


def test_the_same_bits_past_the_window_whatever_was_rejected(model: Any, tmp_path: Path) -> None:
    ids = text(90)
    with running(written(model, tmp_path / "q4.gguf", kind="Q4_1"), bitwise=True) as runner:
        self_check(runner, 64)
        reference = torch.cat([runner.forward([Row(0, at, [token])])[0].clone() for at, token in enumerate(ids)])
        at = 0
        for right in (20, 3, 5, 1, 8, 2, 30, 4):
            rejected = [(token + 1) % IDS for token in ids[at + right : at + right + 6]]
            (found,) = runner.forward([Row(1, at, [*ids[at : at + right], *rejected]), Row(2, 0, ids[: at + 1])])[:1]
            assert torch.equal(found[:right], reference[at : at + right])
            at += right
        runner.copy(1, 3, 50)
        (copied,) = runner.forward([Row(3, 50, ids[50:60])])
        assert torch.equal(copied, reference[50:60])
        (tree,) = runner.forward([Row(3, 60, [*ids[60:63], 7, 8], parents=[-1, 0, 1, 0, 3])])
        assert torch.equal(tree[:3], reference[60:63])
