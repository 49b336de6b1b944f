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
    config = uvicorn.Config(app, http=HttpConnection, log_level="warning", timeout_graceful_shutdown=20)
    server = DrainingServer(config, 0.1, app.state.gateway.background.cancel)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": True, "max_tokens": 400}
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/chat/completions"
        events = []
        with httpx.stream("POST", url, json=body, timeout=20, trust_env=False) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    events.append(line.removeprefix("data: "))
                    server.should_exit = True
        thread.join(20)
    assert not thread.is_alive()
    assert events[-1] == "[DONE]"
    error = json.loads(events[-2])["error"]
    assert error["code"] == "service_unavailable"
    assert "shutting down" in error["message"]
    assert backend.gone.wait(5), "generation goes on"
