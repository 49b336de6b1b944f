"""Pairs of engines in real processes, GGUF and safetensors of one family: the text is the target's own.

vLLM has an environment of its own: what the Makefile's VLLM_VENV names, or .venv-vllm (`make install-vllm`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from config.pairs import BUNDLED_DRAFT
from engines.bundled import bundled_gguf
from testing.client import Client
from testing.models import bundled
from testing.patience import PATIENCE
from testing.processes import ROOT, Process, Stack
from tests.engines.llama_cpp.tiny_gguf import require_llama_cpp
from tests.real.rig import until_drafted
from training.whole import GGUF, export_draft

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.timeout(2400),  # vLLM imports itself in three processes, one after another
]

VLLM_PYTHON = Path(os.environ.get("VLLM_VENV", ROOT / ".venv-vllm")) / "bin" / "python"
PROMPTS = (
    "Write a Python function that reverses a list.",
    "Repeat exactly: the quick brown fox jumps over the lazy dog. The quick brown fox jumps over the lazy dog.",
)
SAMPLINGS: list[dict[str, Any]] = [{"temperature": 0}, {"temperature": 0.8, "top_p": 0.95, "seed": 7}]
COMMON: dict[str, Any] = {"threads": 1, "context_length": 1024}
LLAMA_CPP = {**COMMON, "engine": "llama_cpp", "slots": 4}
TORCH = {**COMMON, "engine": "torch", "slots": 4, "dtype": "float32", "batch_invariant": True}
VLLM: dict[str, Any] = {
    **COMMON,
    "engine": "vllm",
    "dtype": "float32",
    "memory_gb": 0.3,
    "vllm_args": {"block_size": 32, "enforce_eager": True, "max_num_seqs": 16},
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    require_llama_cpp()
    with Stack(tmp_path_factory.mktemp("logs-pairs")) as stack:
        yield stack


def require_vllm() -> None:
    if not VLLM_PYTHON.is_file():
        pytest.skip(f"vLLM is not installed: there is no {VLLM_PYTHON} (make install-vllm)")


@pytest.fixture(scope="module")
def vllm(stack: Stack) -> dict[str, Process]:
    """A target and a draft on vLLM."""
    require_vllm()
    python = str(VLLM_PYTHON)
    return {
        "target": stack.target(bundled(), "target-vllm", python, **VLLM),
        "draft": stack.draft(bundled(), "draft-vllm", python, **VLLM, history_mb=0),
    }


@pytest.fixture(scope="module")
def llama_cpp(stack: Stack) -> dict[str, Process]:
    """A target and a draft on llama.cpp."""
    file = bundled_gguf(print)
    return {
        "target": stack.target(file, "target-llama-cpp", **LLAMA_CPP),
        "draft": stack.draft(file, "draft-llama-cpp", **LLAMA_CPP, history_mb=0),
    }


def check(stack: Stack, target: Process, drafter: Process, least_accepted: float) -> None:
    """Equal texts whether it drafts or not, one vocabulary, and drafts that are right so often."""
    target.wait_ready(1200)
    drafter.wait_ready(1200)
    vocabularies = [
        httpx.get(f"{one.url}/v1/model", trust_env=False, timeout=PATIENCE).json()["vocabulary"]
        for one in (target, drafter)
    ]
    assert vocabularies[0]["fingerprint"] == vocabularies[1]["fingerprint"]
    gateway = stack.gateway([target.url], [drafter.url], f"gateway-{target.name}-{drafter.name}")
    gateway.wait_ready()
    drafted = accepted = 0
    speculative = {"draft_tokens": 4, "adaptive_speculation": False}
    with Client(gateway.url, timeout=240) as client:
        for prompt in PROMPTS:
            for sampling in SAMPLINGS:
                options: dict[str, Any] = {"max_tokens": 48, **sampling}
                plain = client.chat(prompt, **options, speculative={"enabled": False})
                told = until_drafted(lambda: client.chat(prompt, **options, speculative=speculative))  # noqa: B023
                for answer in told:
                    assert answer.identity == plain.identity
                assert told[-1].speculation is not None
                drafted += told[-1].speculation["num_draft_tokens"]
                accepted += told[-1].speculation["num_accepted_draft_tokens"]
    print(f"{drafter.name} for {target.name}: {accepted} of {drafted} draft tokens accepted")
    assert accepted >= least_accepted * drafted
    gateway.close()


def test_llama_cpp_drafts_and_vllm_verifies(
    stack: Stack, vllm: dict[str, Process], llama_cpp: dict[str, Process]
) -> None:
    check(stack, vllm["target"], llama_cpp["draft"], 0.6)


def test_vllm_drafts_and_llama_cpp_verifies(
    stack: Stack, vllm: dict[str, Process], llama_cpp: dict[str, Process]
) -> None:
    check(stack, llama_cpp["target"], vllm["draft"], 0.6)


def test_torch_drafts_and_llama_cpp_verifies(bitwise: None, stack: Stack, llama_cpp: dict[str, Process]) -> None:
    check(stack, llama_cpp["target"], stack.draft(bundled(), "draft-torch", **TORCH, history_mb=0), 0.6)


def test_llama_cpp_drafts_and_torch_verifies(bitwise: None, stack: Stack, llama_cpp: dict[str, Process]) -> None:
    check(stack, stack.target(bundled(), "target-torch", **TORCH), llama_cpp["draft"], 0.6)


@pytest.fixture(scope="module")
def whole_draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled draft as `tandem export-draft --gguf` writes it."""
    out = tmp_path_factory.mktemp("whole")
    export_draft(BUNDLED_DRAFT, out, True, print)
    return out


@pytest.fixture(scope="module")
def whole_on_vllm(stack: Stack, whole_draft: Path) -> Process:
    require_vllm()
    return stack.draft(whole_draft, "draft-whole-vllm", str(VLLM_PYTHON), **VLLM, history_mb=0)


def test_an_exported_draft_on_vllm(stack: Stack, vllm: dict[str, Process], whole_on_vllm: Process) -> None:
    check(stack, vllm["target"], whole_on_vllm, 0.3)


def test_an_exported_draft_on_vllm_for_a_torch_target(bitwise: None, stack: Stack, whole_on_vllm: Process) -> None:
    check(stack, stack.target(bundled(), "target-torch-whole", **TORCH), whole_on_vllm, 0.3)


def test_an_exported_draft_on_llama_cpp(stack: Stack, llama_cpp: dict[str, Process], whole_draft: Path) -> None:
    drafter = stack.draft(whole_draft / GGUF, "draft-whole-llama-cpp", **LLAMA_CPP, history_mb=0)
    check(stack, llama_cpp["target"], drafter, 0.3)
