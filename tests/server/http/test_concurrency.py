"""How many requests are served at once, and who gives way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from server.errors import ApiError
from server.http import concurrency
from server.http.concurrency import ConcurrencyLimit
from server.metrics import GatewayMetrics
from testing.patience import PATIENCE
from tests.server.http.test_middleware import CHAT, ask, ok


def test_no_more_than_so_many_generate_at_once_and_a_place_comes_back() -> None:
    async def main() -> None:
        go = asyncio.Event()

        async def waits(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["path"] == CHAT:
                await go.wait()
                raise RuntimeError  # a place comes back whatever became of it
            await ok(scope, receive, send)

        app = ConcurrencyLimit(waits, 2, GatewayMetrics())
        running = [asyncio.create_task(ask(app)) for _ in range(2)]
        await asyncio.sleep(0)
        refused, headers, body = await ask(app)
        assert (refused, body["error"]["type"]) == (429, "rate_limit_error")
        assert int(headers["retry-after"]) >= 1
        assert (await ask(app, "/v1/models"))[0] == 200, "which generates nothing"
        go.set()
        assert [type(found) for found in await asyncio.gather(*running, return_exceptions=True)] == [RuntimeError] * 2
        with pytest.raises(RuntimeError):
            await ask(app)

    asyncio.run(main())


def limited(most: int) -> tuple[ConcurrencyLimit, asyncio.Event]:
    """An app that reads the whole body and then waits for the event."""
    go = asyncio.Event()

    async def reads(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        await go.wait()
        await ok(scope, receive, send)

    return ConcurrencyLimit(reads, most, GatewayMetrics()), go


async def started(app: ConcurrencyLimit, *pieces: bytes) -> Any:
    """A request whose body comes in these pieces and then stays unfinished; None: all of it is there at once."""
    left = list(pieces)

    async def next_message() -> Any:
        if not pieces:
            return {"type": "http.request", "body": b"{}"}
        if not left:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": left.pop(0), "more_body": True}

    async def send(message: Any) -> None:
        pass

    task = asyncio.create_task(app({"type": "http", "path": CHAT, "headers": []}, next_message, send))
    for _ in range(6):  # lets it get as far as it can
        await asyncio.sleep(0)
    return task


def test_half_a_body_gives_way_to_whole_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency, "PATIENCE_SECONDS", 0.0)

    async def main() -> None:
        app, go = limited(2)
        half = [await started(app, b"{", b'"a"') for _ in range(2)]
        whole = [await started(app) for _ in range(2)]
        for task in half:
            with pytest.raises(ApiError, match="others waited for its place") as refused:
                await asyncio.wait_for(task, PATIENCE)
            assert refused.value.status == 408
        assert (await ask(app))[0] == 429, "who has sent all keeps the place"
        go.set()
        await asyncio.gather(*whole)
        assert (await ask(app))[0] == 200

    asyncio.run(main())


def test_a_body_has_some_time_to_arrive() -> None:
    async def main() -> None:
        app, go = limited(1)
        half = await started(app, b"{")
        assert (await ask(app))[0] == 429
        assert not half.done()
        half.cancel()
        with pytest.raises(asyncio.CancelledError):
            await half
        go.set()
        assert (await ask(app))[0] == 200, "its place is free again"

    asyncio.run(main())
