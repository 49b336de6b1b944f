"""`vllm serve` and Tandem's draft workers as real processes."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from testing.patience import PATIENCE
from testing.processes import ROOT, Process, free_port

_START_SECONDS = 1200.0
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONPATH": str(ROOT),
}
PROPOSER = "engines.vllm.proposer.TandemProposer"


class Vllm(Process):
    """One `vllm serve` in float32."""

    def __init__(self, model: Path, folder: Path, *more: str) -> None:
        port = free_port()
        # What `vllm serve` runs. That command itself ends with PackageNotFoundError in the distribution vllm-cpu.
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
        command += ["--served-model-name", "target"]
        command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager"]
        command += ["--max-model-len", "256", "--max-num-seqs", "8", *more]
        super().__init__("vllm", command, port, folder / f"vllm-{port}.log", os.environ | _ENVIRONMENT)

    def wait_healthy(self) -> None:
        until = time.monotonic() + _START_SECONDS
        while time.monotonic() < until and self._process.poll() is None:
            with suppress(httpx.HTTPError):
                if httpx.get(f"{self.url}/health", timeout=PATIENCE, trust_env=False).status_code == 200:
                    return
            time.sleep(0.2)
        raise RuntimeError(f"vllm serve does not answer:\n{self.log_tail()}")

    def complete(self, prompt: list[int], **options: Any) -> list[int]:
        """The tokens of one completion, greedy unless `options` say otherwise."""
        body = {"model": "target", "prompt": prompt, "temperature": 0.0, "return_token_ids": True, **options}
        response = httpx.post(f"{self.url}/v1/completions", json=body, timeout=PATIENCE, trust_env=False)
        assert response.status_code == 200, response.text
        token_ids: list[int] = response.json()["choices"][0]["token_ids"]
        return token_ids

    def complete_all(self, questions: Sequence[dict[str, Any]]) -> list[list[int]]:
        """All at once, so that they share the engine's steps."""
        with ThreadPoolExecutor(len(questions)) as pool:
            return list(pool.map(lambda question: self.complete(**question), questions))

    def metric(self, name: str) -> float:
        page = httpx.get(f"{self.url}/metrics", timeout=PATIENCE, trust_env=False).text
        samples = [s.value for family in text_string_to_metric_families(page) for s in family.samples if s.name == name]
        assert samples, name
        return sum(samples)

    def drafted(self) -> float:
        return self.metric("vllm:spec_decode_num_draft_tokens_total")

    def accepted(self) -> float:
        return self.metric("vllm:spec_decode_num_accepted_tokens_total")


def speculating(
    model: Path, folder: Path, drafts: Sequence[str], draft_tokens: int = 4, lookahead: str = "off"
) -> Vllm:
    """A `vllm serve` whose drafts come from Tandem draft workers."""
    speculative = {"method": "custom_class", "model": PROPOSER, "num_speculative_tokens": draft_tokens}
    options = {"tandem": {"draft_url": list(drafts), "deadline_ms": 3000, "lookahead": lookahead}}
    return Vllm(
        model,
        folder,
        *("--speculative-config", json.dumps(speculative), "--additional-config", json.dumps(options)),
    )


def draft_worker(model: str, folder: Path) -> Process:
    port = free_port()
    command = [sys.executable, "-m", "tandem", "draft", "--model", model, "--port", str(port)]
    if model != "lookup":
        command += ["--dtype", "float32", "--threads", "1"]
    return Process("draft", command, port, folder / f"draft-{port}.log", os.environ | _ENVIRONMENT)
