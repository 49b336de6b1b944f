"""Gateways whose model calls tools."""

from __future__ import annotations

import pytest
from api_doubles import Running, ScriptedBackend, Start
from test_api_tools import TOOL_TEMPLATE, model


@pytest.fixture(scope="module")
def backend() -> ScriptedBackend:
    return ScriptedBackend(served=model(TOOL_TEMPLATE, context_length=4096))


@pytest.fixture(scope="module")
def tools(start_session: Start, backend: ScriptedBackend) -> Running:
    return start_session(backend)
