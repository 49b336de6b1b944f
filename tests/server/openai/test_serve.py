"""What a client sees, and what is stopped, when something goes wrong or slowly."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncGenerator
from typing import Any

import openai
import pytest
from api_doubles import MODEL, TOKENIZER, Running, ScriptedBackend, Start, make_round

from protocol.errors import ContextTooLong, QueueFull, Unsupported
from protocol.messages import TokenLogprob
from server.backend import GenerationRequest, Round
from server.errors import NoTarget
from testing.patience import PATIENCE

HI: list[Any] = [{"role": "user", "content": "Hi"}]
THE = TOKENIZER.encode("the").ids
Rounds = AsyncGenerator[Round, None]


def failing(error: Exception, after: int) -> Any:
    async def script(request: GenerationRequest) -> Rounds:
        for _ in range(after):
            yield make_round(THE)
        raise error

    return script


async def endless(request: GenerationRequest) -> Rounds:
    while True:
        yield make_round(THE)
        await asyncio.sleep(0.001)


async def silent(request: GenerationRequest) -> Rounds:
    await asyncio.Event().wait()
    yield make_round(THE)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (NoTarget("all gone"), 503, "no_target"),
        (QueueFull("full"), 429, "overloaded"),
        (ContextTooLong("long"), 400, "context_length_exceeded"),
        (Unsupported("no", "sampling.top_k"), 400, "unsupported_parameter"),
        (RuntimeError("a secret prompt"), 500, "internal_error"),
    ],
)
def test_a_failure_before_the_first_token_has_a_status(
    start: Start, error: Exception, status: int, code: str, stream: bool
) -> None:
    response = start(ScriptedBackend(script=failing(error, 0))).chat(stream=stream)
    assert response.status_code == status
    assert response.json()["error"]["code"] == code
    assert "secret" not in response.text
    assert ("retry-after" in response.headers) == (status in (429, 503))


def test_a_failure_in_mid_stream_is_an_error_event(start: Start) -> None:
    running = start(ScriptedBackend(script=failing(NoTarget("all gone"), 3)))
    stream = running.sdk.chat.completions.create(model=MODEL, messages=HI, stream=True)
    pieces: list[str] = []
    with pytest.raises(openai.APIError) as raised:
        pieces.extend(chunk.choices[0].delta.content or "" for chunk in stream)
    assert "".join(pieces) == "the" * 3
    assert raised.value.code == "no_target"
    events = running.chat(stream=True).text.split("\n\n")
    assert '"code":"no_target"' in events[-3]
    assert events[-2:] == ["data: [DONE]", ""]
    assert running.chat().status_code == 503


def test_rounds_that_end_without_a_reason_are_a_failure(start: Start) -> None:
    async def short(request: GenerationRequest) -> Rounds:
        yield make_round(THE)

    running = start(ScriptedBackend(script=short))
    assert running.chat().status_code == 503
    assert '"error"' in running.chat(stream=True).text


def test_one_choice_failing_stops_the_others(start: Start) -> None:
    async def script(request: GenerationRequest) -> Rounds:
        if request.choice_index == 1:
            raise NoTarget("gone")
        async for round in endless(request):
            yield round

    running = start(ScriptedBackend(script=script))
    assert running.chat(n=2).status_code == 503
    assert running.backend.gone.wait(PATIENCE)


def streamed(running: Running, release: threading.Event, comments: int) -> str:
    """All of a streamed answer; `release` is set once so many comments were read."""
    body = {"model": MODEL, "messages": HI, "stream": True}
    seen = ""
    with running.http.stream("POST", running.url + "/v1/chat/completions", json=body) as response:
        assert response.status_code == 200
        for text in response.iter_text():
            seen += text
            if seen.count(": keep-alive\n\n") >= comments:
                release.set()
    return seen


def test_comments_fill_the_silence(start: Start) -> None:
    release = threading.Event()

    async def late(request: GenerationRequest) -> Rounds:
        await asyncio.to_thread(release.wait, PATIENCE)
        yield make_round(THE, stop_reason="length")

    running = start(ScriptedBackend(script=late), keep_alive_seconds=0.02)
    seen = streamed(running, release, comments=2)
    assert seen.startswith(": keep-alive\n\n")
    assert seen.endswith("data: [DONE]\n\n")
    assert list(running.sdk.chat.completions.create(model=MODEL, messages=HI, stream=True))


def test_a_failure_after_comments_is_an_event(start: Start) -> None:
    release = threading.Event()

    async def late(request: GenerationRequest) -> Rounds:
        await asyncio.to_thread(release.wait, PATIENCE)
        raise NoTarget("gone")
        yield make_round(THE)

    running = start(ScriptedBackend(script=late), keep_alive_seconds=0.02)
    seen = streamed(running, release, comments=1)
    assert seen.startswith(": keep-alive\n\n")
    assert '"code":"no_target"' in seen
    assert seen.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("script", [endless, silent])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_disconnects_stops_generation(start: Start, stream: bool, script: Any) -> None:
    running = start(ScriptedBackend(script=script), keep_alive_seconds=0.05)
    with socket.create_connection(_address(running)) as connection:
        connection.sendall(_request(running, stream))
        if stream:
            assert connection.recv(10)
        else:
            while not running.backend.requests:
                threading.Event().wait(0.01)
    assert running.backend.gone.wait(PATIENCE)
    assert running.get("/health").status_code == 200


def test_a_client_that_never_reads_is_given_up(start: Start) -> None:
    entry = TokenLogprob(logprob=-1.0, rank=1, top=[(token_id, -1.0) for token_id in range(5)])

    async def flood(request: GenerationRequest) -> Rounds:
        while True:
            yield make_round(THE * 200, logprobs=[entry] * 200)

    running = start(ScriptedBackend(script=flood), write_timeout_seconds=0.3)
    with socket.create_connection(_address(running)) as connection:
        connection.sendall(_request(running, True, logprobs=True, top_logprobs=5))
        assert running.backend.gone.wait(PATIENCE)
        # Cut while the client still has not read: closing would have waited for it.
        while connection.getsockname() in [known.client for known in running.connections]:
            threading.Event().wait(0.01)
    assert running.get("/health").status_code == 200


def test_a_body_that_never_arrives(start: Start) -> None:
    running = start(body_timeout_seconds=0.2)
    with socket.create_connection(_address(running)) as connection:
        head, _, _ = _request(running, False).partition(b"\r\n\r\n")
        connection.sendall(head + b"\r\n\r\n{")
        connection.settimeout(PATIENCE)
        assert b" 408 " in connection.recv(1000)


def test_a_request_may_not_take_forever(start: Start) -> None:
    running = start(ScriptedBackend(script=silent), request_timeout_seconds=1.0)
    response = running.chat()
    assert (response.status_code, response.json()["error"]["code"]) == (504, "request_timeout")
    assert running.backend.gone.wait(PATIENCE)


def test_too_many_at_once(start: Start) -> None:
    running = start(ScriptedBackend(script=endless), max_concurrent_requests=1)
    body = {"model": MODEL, "messages": HI, "stream": True}
    with running.http.stream("POST", running.url + "/v1/chat/completions", json=body) as response:
        pieces = response.iter_bytes()  # kept, since dropping it closes the connection
        assert next(pieces)
        refused = running.chat()
        assert (refused.status_code, refused.json()["error"]["type"]) == (429, "rate_limit_error")
        assert int(refused.headers["retry-after"]) >= 1
        counted = 'tandem_http_requests_total{method="POST",path="/v1/chat/completions",status="429"} 1.0'
        assert counted in running.get("/metrics").text
        assert running.get("/v1/models").status_code == 200
    assert running.backend.gone.wait(PATIENCE)
    running.backend.script = None
    while (again := running.chat()).status_code == 429:
        threading.Event().wait(0.01)
    assert again.status_code == 200


def test_no_text_in_the_log(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    running = start(ScriptedBackend(script=failing(RuntimeError("a secret prompt"), 0)))
    with caplog.at_level("DEBUG"):
        running.chat(messages=[{"role": "user", "content": "a secret prompt"}])
        running.chat(temperature="a secret prompt")
        running.chat(model="a secret prompt")
    own = [record for record in caplog.records if record.name.startswith("server")]
    assert own
    assert not any("secret" in record.getMessage() for record in own)


def _address(running: Running) -> tuple[str, int]:
    host, _, port = running.url.removeprefix("http://").partition(":")
    return host, int(port)


def _request(running: Running, stream: bool, **changes: Any) -> bytes:
    body = {"model": MODEL, "messages": HI, "stream": stream, **changes}
    request = running.http.build_request("POST", running.url + "/v1/chat/completions", json=body)
    head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    return f"POST /v1/chat/completions HTTP/1.1\r\n{head}\r\n".encode() + request.content
