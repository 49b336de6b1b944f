"""A tiny target to train drafts for."""

from __future__ import annotations

from pathlib import Path

import pytest

from testing.tiny_models import make_tiny_model


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("target") / "tiny", layers=3, spread=3.0)
