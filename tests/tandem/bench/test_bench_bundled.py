"""`tandem bench --quick` as a stranger types it: the bundled model, three processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_quick_measures_every_way_on_the_bundled_model(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "tandem", "bench", "--quick", "--out", str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=500, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False
    )
    assert done.returncode == 0, done.stderr
    (file,) = tmp_path.glob("*.json")
    found = json.loads(file.read_text())
    rows = [row for row in found["rows"] if row["load"]["concurrency"] == 1]
    assert {row["name"] for row in rows} >= {"plain", "auto", "lookup γ3", "lookup γ7"}
    assert all(row["same"] == row["compared"] for row in found["rows"])
    assert any(row["acceptance"]["accepted"] for row in rows)
