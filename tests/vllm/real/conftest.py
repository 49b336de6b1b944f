"""Real vLLM on tiny random models, in processes of their own: started once a session, since a start takes long.

Where vLLM is not installed nothing here is collected; `make test-vllm` installs it into an environment of its own.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from testing.client import Client
from testing.patience import PATIENCE
from testing.processes import Process, Stack
from testing.tiny_models import make_tiny_model, truncate_model

collect_ignore_glob = [] if importlib.util.find_spec("vllm") is not None else ["test_*.py"]

CONTEXT = 384
COMMON: dict[str, Any] = {"dtype": "float32", "threads": 1, "context_length": CONTEXT}
VLLM: dict[str, Any] = {
    **COMMON,
    "engine": "vllm",
    "memory_gb": 0.1,
    "vllm_args": {"block_size": 32, "enforce_eager": True, "max_num_seqs": 32},
}


@dataclass
class Workers:
    """Both engines on both sides, and a gateway before vLLM's target that knows each drafter by name."""

    target: Process
    torch_target: Process
    drafters: dict[str, Process]
    client: Client

    def post(self, process: Process, path: str, message: dict[str, Any]) -> Any:
        answer = httpx.post(f"{process.url}{path}", json=message, timeout=PATIENCE, trust_env=False)
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    return make_tiny_model(folder, layers=4, hidden=128)  # vLLM's attention on CPU needs heads of 32 and more


@pytest.fixture(scope="session")
def tiny_draft(tiny_model: Path) -> Path:
    return truncate_model(tiny_model, tiny_model.with_name("tiny-draft"), 2)


@pytest.fixture(scope="session")
def workers(tiny_model: Path, tiny_draft: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with Stack(tmp_path_factory.mktemp("logs-vllm")) as stack:
        target = stack.target(tiny_model, **VLLM)
        drafters = {
            "vllm": stack.draft(tiny_draft, "draft-vllm", **VLLM),
            "torch": stack.draft(tiny_draft, "draft-torch", **COMMON),
            "lookup": stack.draft("lookup", "draft-lookup"),
            "wrong": stack.module("draft-wrong", "testing.scripted_draft", "--vocabulary", "300"),
        }
        torch_target = stack.target(tiny_model, "target-torch", **COMMON)
        gateway = stack.gateway(
            [target.url],
            [drafters["vllm"].url],
            draft_pools={name: [process.url] for name, process in drafters.items()},
            probe_interval_seconds=0.3,
            recovery_timeout_seconds=1200,
            draft_timeout_seconds=10,
        )
        stack.wait_ready(1200)  # vLLM imports itself in three processes, one after another
        yield Workers(target, torch_target, drafters, Client(gateway.url))
