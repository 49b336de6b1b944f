"""What the proposer's tests take for given: a vLLM that Tandem was tested with, which is not installed here."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def tested_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.vllm.proposer.proposer.check_installed", lambda: "0.32.0")
