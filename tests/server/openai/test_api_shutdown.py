"""What the client of a running request receives when the drain time is over."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncGenerator, Callable

import httpx
import pytest
import uvicorn
from api_doubles import MODEL, TOKENIZER, ScriptedBackend, make_round

from config.gateway import GatewayConfig
from server.app import create_app
from server.backend import GenerationRequest, Round
from serving.connection import HttpConnection
from serving.runner import DrainingServer
from testing.patience import PATIENCE


async def endless(request: GenerationRequest) -> AsyncGenerator[Round, None]:
    while True:
        yield make_round(TOKENIZER.encode("the").ids)
        await asyncio.sleep(0.01)


async def stuck(request: GenerationRequest) -> AsyncGenerator[Round, None]:
    yield make_round(TOKENIZER.encode("the").ids)
    await asyncio.Event().wait()


@pytest.mark.parametrize("script", [endless, stuck])
def test_a_stream_that_outlasts_the_drain_ends_with_an_error_and_done(
    script: Callable[[GenerationRequest], AsyncGenerator[Round, None]],
) -> None:
    backend = ScriptedBackend(script=script)
    app = create_app(GatewayConfig(), backend)
    config = uvicorn.Config(app, http=HttpConnection, log_level="warning", timeout_graceful_shutdown=int(PATIENCE))
    server = DrainingServer(config, 0.1, app.state.gateway.background.cancel)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": True, "max_tokens": 400}
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/chat/completions"
        events = []
        with httpx.stream("POST", url, json=body, timeout=PATIENCE, trust_env=False) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    events.append(line.removeprefix("data: "))
                    server.should_exit = True
        thread.join(PATIENCE)
    assert not thread.is_alive()
    assert events[-1] == "[DONE]"
    error = json.loads(events[-2])["error"]
    assert error["code"] == "service_unavailable"
    assert "shutting down" in error["message"]
    assert backend.gone.wait(PATIENCE), "generation goes on"


def test_who_watches_is_answered_while_it_drains_and_nothing_new_begins() -> None:
    app = create_app(GatewayConfig(), ScriptedBackend(script=endless))
    config = uvicorn.Config(app, http=HttpConnection, log_level="warning", timeout_graceful_shutdown=int(PATIENCE))
    state = app.state.gateway
    server = DrainingServer(config, PATIENCE, state.background.cancel, state.draining.set)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 400}
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with httpx.stream(
            "POST", f"{url}/v1/chat/completions", json=body | {"stream": True}, timeout=PATIENCE
        ) as answer:
            lines = answer.iter_lines()
            next(lines)
            server.should_exit = True
            assert state.draining.wait(PATIENCE)
            assert "tandem_num_requests_running 1.0" in httpx.get(f"{url}/metrics", timeout=PATIENCE).text
            assert httpx.get(f"{url}/health", timeout=PATIENCE).status_code == 200
            assert httpx.get(f"{url}/ready", timeout=PATIENCE).status_code == 503
            refused = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=PATIENCE)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "service_unavailable")
            assert refused.headers["retry-after"] == "1"
            assert next(line for line in lines if line.startswith("data: {"))  # what runs goes on
        thread.join(PATIENCE)
    assert not thread.is_alive()


def test_a_prompt_that_still_waits_for_a_thread_is_refused_when_the_drain_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("serving.runner._FAREWELL_SECONDS", 0.1)
    app = create_app(GatewayConfig(), ScriptedBackend(script=endless))
    config = uvicorn.Config(app, http=HttpConnection, log_level="warning", timeout_graceful_shutdown=int(PATIENCE))
    state = app.state.gateway
    server = DrainingServer(config, 0.1, state.background.cancel, state.draining.set)
    go, came = threading.Event(), threading.Event()

    async def never(work: object) -> None:
        came.set()
        await asyncio.get_running_loop().run_in_executor(None, go.wait, PATIENCE)

    monkeypatch.setattr(state.texts, "run_chat", never)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        answers: list[httpx.Response] = []
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/chat/completions"
        client = threading.Thread(target=lambda: answers.append(httpx.post(url, json=body, timeout=PATIENCE)))
        client.start()
        assert came.wait(PATIENCE)
        server.should_exit = True
        client.join(PATIENCE)
        go.set()
        thread.join(PATIENCE)
    assert not thread.is_alive()
    assert [answer.status_code for answer in answers] == [503]
    assert answers[0].json()["error"]["message"] == "the server is shutting down"
