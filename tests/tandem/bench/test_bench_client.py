"""What other servers send, and what goes wrong on the way: each is an answer or a failure with a reason."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from tandem.bench.client import Server
from tandem.bench.errors import BenchError, RequestFailure
from tandem.bench.plan import turns
from tandem.bench.prompts import Prompt
from tandem.bench.run import MOST_FAILURES, MOST_REFUSED_PROMPTS, Run
from tandem.bench.samples import Reply
from tandem.bench.variants import TANDEM, Load, Variant

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
HI = [{"role": "user", "content": "Hi"}]
CARD = {"data": [{"id": "m", "owned_by": "somebody"}]}


def with_server(
    chat: Handler, use: Callable[[Server], Awaitable[Any]], models: Any = CARD, key: str | None = None
) -> Any:
    """What `use` returns, of a server whose chat completions `chat` answers."""

    async def run() -> Any:
        async def cards(request: web.Request) -> web.StreamResponse:
            return web.json_response(models)

        app = web.Application()
        app.router.add_post("/v1/chat/completions", chat)
        app.router.add_get("/v1/models", cards)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        try:
            async with Server("other", f"http://127.0.0.1:{port}/v1/", key, timeout=2.0) as server:
                return await use(server)
        finally:
            await runner.cleanup()

    return asyncio.run(run())


def events(*chunks: Any, done: bool = True, pause: float = 0.0, cut: bool = False) -> Handler:
    async def chat(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        for chunk in chunks:
            await answer.write(f"data: {json.dumps(chunk)}\n\n".encode())
            await asyncio.sleep(pause)
        if done:
            await answer.write(b"data: [DONE]\n\n")
        if cut and request.transport is not None:
            request.transport.abort()
        return answer

    return chat


def said(text: str | None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": text}, "finish_reason": finish}], **more}


def ask(chat: Handler) -> Reply:
    async def use(server: Server) -> Reply:
        await server.look()
        return await server.chat(HI, max_tokens=4)

    reply: Reply = with_server(chat, use)
    return reply


def test_a_server_that_counts_nothing_is_counted_by_chunk() -> None:
    reply = ask(events(said(None), said("a"), said("b"), said("", "stop"), pause=0.02))
    assert (reply.text, reply.tokens, reply.finish_reason) == ("ab", 2, "stop")
    assert len(reply.arrivals) == 2
    assert 0.02 <= reply.arrivals[0] < reply.arrivals[1] < reply.seconds


def test_usage_in_a_chunk_without_choices_counts() -> None:
    reply = ask(events(said("ab"), said("", "length"), {"usage": {"completion_tokens": 7, "prompt_tokens": 3}}))
    assert (reply.tokens, reply.prompt_tokens) == (7, 3)


def test_a_thought_is_text() -> None:
    thought = {"choices": [{"delta": {"reasoning_content": "hm "}}]}
    assert ask(events(thought, said("a", "stop"))).text == "hm a"


@pytest.mark.parametrize(
    ("chat", "words"),
    [
        (events({"error": {"message": "out of memory"}}), "out of memory"),
        (events(said("a"), done=False), "the stream ended before the answer did"),
        (events(said("a"), done=False, cut=True), "the connection was cut"),
        (events(said("a"), pause=3.0), "no whole answer in time"),
        (events("a"), "no answer as OpenAI's API has them"),
        (events({"choices": "a"}), "no answer as OpenAI's API has them"),
    ],
)
def test_half_an_answer_is_a_failure_with_a_reason(chat: Handler, words: str) -> None:
    with pytest.raises(RequestFailure, match=words) as caught:
        ask(chat)
    assert not caught.value.refused


def refusing(status: int) -> Handler:
    async def chat(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no such thing"}}, status=status)

    return chat


@pytest.mark.parametrize(("status", "refused"), [(400, True), (404, True), (422, True), (429, False), (500, False)])
def test_a_refusal_is_in_the_servers_words(status: int, refused: bool) -> None:
    with pytest.raises(RequestFailure, match=f"HTTP {status}: no such thing") as caught:
        ask(refusing(status))
    assert caught.value.refused is refused


@pytest.mark.parametrize("models", [{}, {"data": []}, {"data": [7]}, [], {"object": "list", "data": None}])
def test_what_names_no_model_is_no_server(models: Any) -> None:
    with pytest.raises(BenchError, match="/v1/models names no model"):
        with_server(refusing(400), lambda server: server.look(), models)


@pytest.mark.parametrize(("status", "most"), [(500, MOST_FAILURES), (400, MOST_REFUSED_PROMPTS)])
def test_a_server_that_fails_is_not_asked_for_ever(status: int, most: int) -> None:
    asked = 0

    async def chat(request: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        return await refusing(status)(request)

    async def use(server: Server) -> None:
        await server.look()
        run = Run({TANDEM: server}, {}, max_tokens=4)
        prompts = [Prompt(f"p/{number}", "p", ("Hi",)) for number in range(50)]
        await run.measure(turns([Variant()], [Load()], prompts, 1, seed=1), lambda turn: None)

    with pytest.raises(BenchError, match=f"too many requests in a row failed: HTTP {status}: no such thing"):
        with_server(chat, use)
    assert asked == most


def test_a_key_is_sent_and_fields_of_tandem_to_tandem_alone() -> None:
    seen: list[tuple[str | None, dict[str, Any]]] = []

    async def chat(request: web.Request) -> web.StreamResponse:
        seen.append((request.headers.get("Authorization"), await request.json()))
        return await events(said("a", "stop"))(request)

    async def use(server: Server) -> None:
        await server.look()
        run = Run({TANDEM: server, "other": server}, {}, max_tokens=4)
        await run.warm_up([Variant(), Variant(server="other")], Prompt("p", "p", ("Hi",)))

    with_server(chat, use, key="secret")
    with_server(chat, use, {"data": [{"id": "m", "owned_by": "tandem"}]})
    (key, body), _, (no_key, own), (_, other) = seen
    assert key == "Bearer secret"
    assert no_key is None
    assert not {"speculative", "cache_salt"} & body.keys()
    assert own["speculative"] == {"enabled": False}
    assert "speculative" not in other, "another Tandem is asked as its users ask it"
    assert own["cache_salt"] != other["cache_salt"]
