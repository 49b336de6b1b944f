"""What identifies saved results."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks import report
from tandem.bench import results
from testing.patience import PATIENCE


def git(folder: Path, *arguments: str) -> str:
    settings = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *settings, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE).stdout.strip()


def test_results_name_the_commit_and_whether_files_differ_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "ROOT", tmp_path)
    assert report.commit() == "unknown"
    git(tmp_path, "init", "-q")
    (tmp_path / "code").write_text("one")
    git(tmp_path, "add", "code")
    git(tmp_path, "commit", "-qm", "one")
    head = git(tmp_path, "rev-parse", "HEAD")
    assert report.commit() == head[:12]
    (tmp_path / "code").write_text("two")
    assert report.commit() == f"{head[:12]}-dirty"
