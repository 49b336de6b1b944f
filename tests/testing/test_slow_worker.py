"""The worker whose passes are lengthened: every pass lasts as long as stated, and the worker says so."""

from __future__ import annotations

from pathlib import Path

import httpx

from testing.patience import PATIENCE
from testing.processes import Stack
from testing.tiny_models import make_tiny_model


def test_every_pass_is_lengthened_and_known(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "tiny")
    with Stack(tmp_path / "logs") as stack:
        target = stack.slow("target", 50, model=model)
        target.wait_ready()
        with httpx.Client(base_url=target.url, timeout=PATIENCE, trust_env=False) as client:
            told = client.get("/v1/model").json()
            assert all(step["seconds"] >= 0.05 for step in told["step_seconds"])
            body = {
                "session_id": "s",
                "round": 0,
                "context": {"start": 0, "token_ids": [1], "prefix_hash": "e4a6a0577479b2b4"},
                "num_prompt_tokens": 1,
                "max_tokens": 4,
                "sampling": {"seed": 1},
                "candidates": [],
                "strategy": "deterministic",
            }
            answer = client.post("/v1/verify", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["timings"]["forward_ms"] >= 50
