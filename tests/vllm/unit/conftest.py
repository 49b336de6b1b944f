"""What the proposer's tests assume: a vLLM that Tandem was tested with, though none is installed here."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def tested_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.vllm.proposer.proposer.check_installed", lambda: "0.32.0")
