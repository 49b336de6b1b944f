"""What a release consists of: its packages, their types, its version, its licence."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from setuptools import find_packages

import tandem
from testing.patience import PATIENCE

ROOT = Path(__file__).parents[1]
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = find_packages(str(ROOT), include=PYPROJECT["tool"]["setuptools"]["packages"]["find"]["include"])
ROOMS = {package for package in PACKAGES if "." not in package}


def test_every_room_is_shipped_and_typed() -> None:
    assert {"config", "protocol", "server", "engines", "worker", "draft_worker", "target_worker", "tandem"} <= ROOMS
    assert [room for room in sorted(ROOMS) if not (ROOT / room / "py.typed").is_file()] == []


def test_what_tests_and_benchmarks_share_is_not_shipped() -> None:
    assert ROOMS.isdisjoint({"testing", "tests", "benchmarks"})


def test_every_room_is_linted() -> None:
    tool = PYPROJECT["tool"]
    assert set(tool["mypy"]["packages"]) == ROOMS | {"testing", "benchmarks"}
    assert set(tool["importlinter"]["root_packages"]) == ROOMS | {"testing", "benchmarks"}


def test_workers_start_without_xgrammar() -> None:
    """It is an extra of its own: without it they serve no grammars."""
    engines = "draft_worker.runtime.engine, draft_worker.start, target_worker.runtime.engine, target_worker.start"
    code = f"import sys; sys.modules['xgrammar'] = None; import {engines}"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=PATIENCE)


def test_the_version_has_one_place() -> None:
    assert PYPROJECT["project"]["dynamic"] == ["version"]
    assert PYPROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "tandem.__version__"}
    assert f"## {tandem.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_licence_is_the_one_named() -> None:
    assert PYPROJECT["project"]["license"] == "Apache-2.0"
    assert "Apache License\n                           Version 2.0" in (ROOT / "LICENSE").read_text()
