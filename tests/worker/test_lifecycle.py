"""A service that dies after it was ready."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError
from typing import cast

import pytest
from fastapi import FastAPI

from config.workers import DraftWorkerConfig, TargetWorkerConfig
from draft_worker.app import create_app as create_draft
from engines.vllm import versions
from protocol.errors import NotReady
from protocol.worker_info import ModelInfo
from target_worker.app import create_app as create_target
from testing.wire import async_test, pause
from worker.lifecycle import Lifecycle

DRAFTING_WITH_VLLM = DraftWorkerConfig(engine="vllm", model="a/model")


class Silent:
    """A service that does nothing."""

    info = cast(ModelInfo, None)

    async def delete(self, session_id: str) -> None: ...

    async def close(self, patience: float) -> None: ...


@async_test
async def test_a_service_that_dies_is_not_ready_and_reports_why() -> None:
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
async def test_on_loaded_is_called_before_calls_are_let_in() -> None:
    ready: list[bool] = []
    lifecycle: Lifecycle[Silent] = Lifecycle(
        lambda progress: Silent(), lambda reason: None, 0.1, on_loaded=lambda: ready.append(lifecycle.ready().ready)
    )
    async with lifecycle.lifespan(FastAPI()):
        while not lifecycle.ready().ready:
            await pause()
    assert ready == [False]


@pytest.mark.parametrize(("error", "traced"), [(ValueError("no such folder"), False), (KeyError("oops"), True)])
def test_only_what_was_not_expected_is_logged_with_its_traceback(
    error: Exception, traced: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def load(progress: Callable[[str], None]) -> Silent:
        raise error

    @async_test
    async def main() -> None:
        reasons: list[str] = []
        lifecycle: Lifecycle[Silent] = Lifecycle(load, reasons.append, 0.1, ValueError)
        async with lifecycle.lifespan(FastAPI()):
            while not reasons:
                await pause()
        assert reasons == [str(error)]
        assert lifecycle.ready().detail == f"loading failed: {error}"

    main()
    assert any(record.exc_info for record in caplog.records) == traced


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


@pytest.mark.parametrize(
    "create", [partial(create_target, TargetWorkerConfig(engine="vllm")), partial(create_draft, DRAFTING_WITH_VLLM)]
)
def test_a_worker_without_vllm_says_how_to_install_it(
    create: Callable[..., FastAPI], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def version(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(versions, "version", version)

    @async_test
    async def main() -> None:
        reasons: list[str] = []
        app = create(on_failure=reasons.append)
        async with app.router.lifespan_context(app):
            while not reasons:
                await pause()
        assert reasons[0].startswith("engine vllm needs vLLM, which is not installed: pip install")

    main()
    assert not any(record.exc_info for record in caplog.records)
