"""What tests of rounds share."""

from __future__ import annotations

import pytest


@pytest.fixture
def far_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the target were, however fast or busy the machine is."""
    monkeypatch.setattr("server.rounds.adaptive.depth._FAR", float("-inf"))
    monkeypatch.setattr("server.rounds.adaptive.depth._LEAST_GAIN", float("-inf"))
