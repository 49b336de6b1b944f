"""A service that dies after it was ready."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
from fastapi import FastAPI

from protocol.errors import NotReady
from protocol.messages import ModelInfo
from tests.wire import async_test, pause
from worker.lifecycle import Lifecycle


class Silent:
    """A service that does nothing."""

    info = cast(ModelInfo, None)

    async def delete(self, session_id: str) -> None: ...

    async def close(self, patience: float) -> None: ...


@async_test
async def test_a_service_that_dies_is_not_ready_and_says_why() -> None:
    reasons: list[str] = []
    lifecycle: Lifecycle[Silent] = Lifecycle(lambda progress: Silent(), reasons.append, 0.1)
    async with lifecycle.lifespan(FastAPI()):
        while not lifecycle.ready().ready:
            await pause()
        assert lifecycle.get()
        lifecycle.fail("the engine has died")
        assert (lifecycle.ready().ready, lifecycle.ready().detail) == (False, "the engine has died")
        with pytest.raises(NotReady, match="the engine has died"):
            lifecycle.get()
        while not reasons:
            await pause()
    assert reasons == ["the engine has died"]
    assert lifecycle.ready().detail == "the engine has died"


@async_test
async def test_a_service_that_dies_while_it_is_loaded_never_becomes_ready() -> None:
    reasons: list[str] = []

    def load(progress: Callable[[str], None]) -> Silent:
        lifecycle.fail("the engine has died")
        return Silent()

    lifecycle: Lifecycle[Silent] = Lifecycle(load, reasons.append, 0.1)
    async with lifecycle.lifespan(FastAPI()):
        while not reasons:
            await pause()
        assert not lifecycle.ready().ready
