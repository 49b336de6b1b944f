"""What the doctor asks of a service, and the words for each answer that is of no use."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tandem.probes import REPEATS, ProbedService, Unreachable
from testing.patience import PATIENCE


def service(answer: Callable[[httpx.Request], httpx.Response]) -> ProbedService:
    """A service that answers without a network."""
    probed = ProbedService("gateway", "http://gateway/", "secret", timeout=PATIENCE)
    headers = probed._client.headers
    probed._client = httpx.Client(transport=httpx.MockTransport(answer), base_url=probed.url, headers=headers)
    return probed


def failing(error: Exception) -> Callable[[httpx.Request], httpx.Response]:
    def answer(request: httpx.Request) -> httpx.Response:
        raise error

    return answer


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (failing(httpx.ConnectError("refused")), "/x: cannot be reached (is it running?)"),
        (failing(httpx.ReadTimeout("slow")), "/x: no answer in time"),
        (lambda request: httpx.Response(401, json={"error": {"message": "who are you?"}}), "HTTP 401: who are you?"),
        (lambda request: httpx.Response(502, text="<html>bad gateway"), "HTTP 502: <html>bad gateway"),
        (lambda request: httpx.Response(500, json=["?"]), 'HTTP 500: ["?"]'),
    ],
)
def test_a_call_without_a_usable_answer_says_why(answer: Any, words: str) -> None:
    with pytest.raises(Unreachable) as raised:
        service(answer).get("/x")
    assert str(raised.value).startswith("gateway at http://gateway: ")
    assert str(raised.value).endswith(words)


def test_the_token_goes_with_every_call() -> None:
    seen: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("authorization"))
        return httpx.Response(200, json={"data": [{"id": "m"}]})

    assert service(answer).models() == "m"
    assert seen == ["Bearer secret"]


@pytest.mark.parametrize("body", [{}, {"data": []}, {"data": None}, []])
def test_a_list_without_models_is_no_answer(body: Any) -> None:
    with pytest.raises(Unreachable, match="answers no model"):
        service(lambda request: httpx.Response(200, json=body)).models()


def test_an_answer_that_is_not_the_wires_names_the_field() -> None:
    with pytest.raises(Unreachable, match=r"/v1/model does not speak Tandem's wire: role: "):
        service(lambda request: httpx.Response(200, json={"role": "king"})).model()


def test_the_first_worker_of_a_role_is_the_one_that_readiness_names() -> None:
    detail = "target http://a:1: ready (m); draft https://b:2: down (x); draft http://c:3: ready (y)"
    ready = service(lambda request: httpx.Response(503, json={"detail": detail}))
    assert ready.ready() == (False, detail)
    assert ready.first_worker("target") == "http://a:1"
    assert ready.first_worker("draft") == "https://b:2"
    assert service(lambda request: httpx.Response(200, json={"detail": ""})).first_worker("draft") is None
    assert service(failing(httpx.ConnectError("refused"))).first_worker("draft") is None


def events(*chunks: dict[str, Any]) -> httpx.Response:
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    return httpx.Response(200, text=": keep-alive\n\n" + "".join(lines) + "data: [DONE]\n\n")


def test_an_answer_is_put_together_from_its_stream() -> None:
    pieces: list[dict[str, Any]] = [{"choices": [{"delta": {"content": text}}]} for text in (None, "a ", "b")]
    numbers = {"num_spec_steps": 3}
    last = {"choices": [], "usage": {"completion_tokens": 7}, "metrics": {"speculative_decoding": numbers}}
    asked: list[dict[str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content))
        return events(*pieces, last)

    found = service(answer).generate({"model": "m"})
    assert (found.text, found.completion_tokens, found.speculative) == ("a b", 7, numbers)
    assert asked == [{"model": "m", "stream": True, "stream_options": {"include_usage": True}}]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (events({"error": {"message": "the workers left"}}), "the workers left"),
        (httpx.Response(429, json={"error": {"message": "full"}}), "HTTP 429: full"),
        (httpx.Response(200, text="data: {no json\n\n"), "JSONDecodeError"),
        (events({"unknown": 1}), "KeyError"),
    ],
)
def test_an_answer_that_fails_on_its_way_is_none(answer: httpx.Response, words: str) -> None:
    with pytest.raises(Unreachable, match=words):
        service(lambda request: answer).generate({})


def test_a_workers_time_is_the_median_without_the_call_that_reads_and_its_session_is_freed() -> None:
    calls: list[tuple[str, str, Any]] = []
    times = iter([900.0, 5.0, 1.0, 4.0, 3.0, 2.0])

    def answer(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content) if request.content else {}
        calls.append((request.method, request.url.path, body))
        if request.method == "DELETE":
            return httpx.Response(204)
        reply = {
            "session_id": body["session_id"],
            "round": body["round"],
            "candidates": [{"token_ids": [5, 6]}],
            "source": "model",
            "cached_tokens": 0,
            "timings": {"queue_ms": 0.0, "forward_ms": 0.0, "sample_ms": 0.0, "total_ms": next(times)},
        }
        return httpx.Response(200, json=reply)

    assert service(answer).draft_ms([1, 2, 3], 2) == (3.0, 2)
    assert [body["round"] for _, _, body in calls[:-1]] == list(range(REPEATS + 1))
    [session] = {body["session_id"] for _, _, body in calls[:-1]}
    assert calls[-1][:2] == ("DELETE", f"/v1/sessions/{session}")
