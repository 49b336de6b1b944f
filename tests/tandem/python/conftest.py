"""Tandem with two tiny models in this process, and the same two served over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_pair import EXACT

from tandem import Tandem
from testing.in_process import Stack, running_stack
from testing.tiny_models import make_tiny_model


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "target", layers=3)


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "draft", layers=2, seed=1)


@pytest.fixture(scope="module")
def t(bitwise: None, target: Path, draft: Path) -> Iterator[Tandem]:
    with Tandem(target, draft=draft, **EXACT) as t:
        yield t


@pytest.fixture(scope="module")
def server(bitwise: None, target: Path, draft: Path) -> Iterator[Stack]:
    with running_stack(target, draft) as stack:
        yield stack
