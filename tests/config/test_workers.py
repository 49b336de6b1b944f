"""The workers' settings: which belong to one engine, and which contradict each other."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from config.roles import TargetSettings
from config.settings import SettingsError, load
from config.workers import DraftWorkerConfig, TargetWorkerConfig, WorkerConfig


def fault(kind: type[WorkerConfig], **settings: Any) -> str:
    """The first complaint: the setting and what is wrong with it."""
    with pytest.raises(ValidationError) as raised:
        kind(**settings)
    first = raised.value.errors()[0]
    place = "".join(f"{name}: " for name in first["loc"])
    return place + first["msg"].removeprefix("Value error, ")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"engine": "torch", "vllm_args": {"block_size": 32}}, "vllm_args: needs engine vllm"),
        ({"engine": "torch", "gpu_layers": 3}, "gpu_layers: needs engine llama_cpp"),
        ({"engine": "vllm", "mmap": False}, "mmap: needs engine llama_cpp"),
        ({"engine": "torch", "cache_type_k": "q8_0"}, "cache_type_k: needs engine llama_cpp"),
        ({"engine": "llama_cpp", "device": "cuda:1"}, "device: llama.cpp uses the GPU it was built for"),
        ({"engine": "llama_cpp", "dtype": "float32"}, "dtype: a GGUF file has its own"),
        ({"engine": "vllm", "batch_invariant": True}, "batch_invariant: vLLM's own is VLLM_BATCH_INVARIANT=1"),
        ({"engine": "vllm", "device": "cuda:1"}, "device: vLLM takes what CUDA_VISIBLE_DEVICES shows it"),
        ({"engine": "vllm", "strategy": "threshold"}, "strategy: engine vllm cannot do threshold"),
        ({"engine": "torch", "draft_workers": ["http://a:1"]}, "draft_workers: needs engine vllm"),
    ],
)
def test_settings_that_belong_to_another_engine_are_refused(settings: dict[str, Any], said: str) -> None:
    assert fault(TargetWorkerConfig, **settings).startswith(said)


def test_the_engine_they_belong_to_takes_them() -> None:
    of_llama_cpp = {"gpu_layers": 3, "mmap": False, "cache_type_k": "q8_0", "flash_attn": "on"}
    for engine in ("llama_cpp", "auto"):
        assert TargetWorkerConfig(engine=engine, **of_llama_cpp).gpu_layers == 3
    of_vllm = {"vllm_args": {"block_size": 32}, "draft_workers": ["http://a:1"]}
    assert TargetWorkerConfig(engine="vllm", **of_vllm).draft_workers == ["http://a:1"]
    assert TargetWorkerConfig(engine="torch", mmap=True, flash_attn="auto").mmap, "a default said aloud"


@pytest.mark.parametrize(
    ("arguments", "more", "words"),
    [
        ('{"max_model_len": 64}', {}, "max_model_len is what the setting context_length is for"),
        ('{"logits_processors": []}', {}, "logits_processors is Tandem's own to set"),
        ('{"dtype": "float16"}', {"dtype": "float32"}, "leave one out"),
        ("nope", {}, "is not valid JSON"),
        ('["nope"]', {}, "valid dictionary"),
    ],
)
def test_vllm_arguments_that_cannot_be_passed_on_are_refused(arguments: str, more: dict[str, str], words: str) -> None:
    with pytest.raises(SettingsError) as raised:
        load("target", TargetSettings, flags={"engine": "vllm", "vllm_args": arguments, **more})
    assert str(raised.value).startswith("--vllm-args: ")
    assert words in str(raised.value)


def test_vllm_arguments_may_come_as_json() -> None:
    settings = load("target", TargetSettings, flags={"engine": "vllm", "vllm_args": '{"block_size": 32}'}).settings
    assert settings.vllm_args == {"block_size": 32}


@pytest.mark.parametrize("memory", ["inf", "1e999", "nan", "0", "-1"])
def test_impossible_amounts_of_memory_are_refused(memory: str) -> None:
    assert fault(TargetWorkerConfig, memory_gb=memory).startswith("memory_gb: ")


def test_lookups_shortest_match_is_not_longer_than_its_longest() -> None:
    assert DraftWorkerConfig(lookup_min_ngram=3, lookup_max_ngram=3).lookup_min_ngram == 3
    assert fault(DraftWorkerConfig, lookup_min_ngram=4, lookup_max_ngram=3).startswith("lookup_min_ngram: exceeds")


def test_tokens_are_gathered_by_vllms_own_setting_there() -> None:
    assert "stream_interval" in fault(TargetWorkerConfig, engine="vllm", gather_ms=20)


def test_other_engines_have_graphs_of_their_own() -> None:
    assert "enforce_eager" in fault(TargetWorkerConfig, engine="vllm", cuda_graphs=False)
    assert "engine torch" in fault(TargetWorkerConfig, engine="llama_cpp", cuda_graphs=False)


def test_an_unknown_setting_is_refused() -> None:
    assert fault(DraftWorkerConfig, lookup_min_ngrams=4).startswith("lookup_min_ngrams: ")
