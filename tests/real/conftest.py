"""Real processes in bitwise mode, started once a session: the tiny model for breadth, the bundled one for truth."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.equality import running
from testing.processes import Stack
from testing.stacks import BITWISE, Services, start
from testing.tiny_models import make_tiny_model, truncate_model
from tests.real.far import SlowWorkers, slow_workers

TINY_VOCABULARY = 384


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", layers=4, hidden=64, vocabulary=TINY_VOCABULARY)


@pytest.fixture(scope="session")
def tiny_draft(tiny_model: Path) -> Path:
    """A draft that keeps half of the tiny model's layers."""
    return truncate_model(tiny_model, tiny_model.with_name("tiny-draft"), 2)


@pytest.fixture(scope="session")
def tiny(
    bitwise: None, tiny_model: Path, tiny_draft: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Services]:
    with Stack(tmp_path_factory.mktemp("logs-tiny")) as stack:
        workers = {**BITWISE, "slots": 8, "threads": 1}
        yield start(stack, tiny_model, tiny_draft, worker_settings=workers)


@pytest.fixture(scope="session")
def slow(
    bitwise: None, tiny_model: Path, tiny_draft: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SlowWorkers]:
    with slow_workers(tiny_model, tiny_draft, tmp_path_factory.mktemp("logs-slow")) as workers:
        yield workers


@pytest.fixture(scope="session")
def bundled_services(bitwise: None) -> Iterator[Services]:
    with running() as services:
        yield services
