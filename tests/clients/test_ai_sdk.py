"""npm's `ai` with `@ai-sdk/openai-compatible`, which many editors and web apps stand on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from testing.in_process import Stack
from tests.clients.conftest import Sum

PACKAGES = ("ai@6", "@ai-sdk/openai-compatible@2", "zod@4")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_ai_sdk_calls_and_goes_on(stack: Stack, tmp_path: Path) -> None:
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("npm and node are not installed")
    (tmp_path / "package.json").write_text('{"private": true, "type": "module"}')
    shutil.copy(Path(__file__).with_name("ai_sdk.mjs"), tmp_path)
    run([npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", *PACKAGES], tmp_path)
    found = json.loads(run([node, "ai_sdk.mjs"], tmp_path, TANDEM_URL=stack.url))
    assert len(found["calls"]) == 2  # one of each run, then text
    assert all(0 <= number <= 99 for call in found["calls"] for number in call)
    assert found["steps"] == [2, 2]
    assert found["roles"] == ["assistant", "tool", "assistant"] * 2
    assert found["usage"] > 0
    Sum.model_validate(found["structured"])


def run(command: list[str], folder: Path, **variables: str) -> str:
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True, timeout=300, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
