"""From a body's bytes to a checked request, and errors that name the field in words of JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from api_doubles import MODEL, Running, Start, error

HI = [{"role": "user", "content": "Hi"}]
OK = {"model": MODEL, "messages": HI}
_CONTEXT = "this model's maximum context length is 512 tokens; you asked for 5 in the prompt"


def test_neutral_values_of_refused_fields_pass(gateway: Running) -> None:
    assert gateway.chat(best_of=1, guided_regex=None, use_beam_search=False, priority=0).status_code == 200
    assert error(gateway.chat(best_of=True))["param"] == "best_of"


def test_unknown_fields_are_named(gateway: Running) -> None:
    found = error(gateway.chat(temprature=1))
    assert (found["param"], found["code"]) == ("temprature", "unknown_parameter")
    assert found["message"] == "Unknown parameter: 'temprature'."


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stop": 5}, "Invalid value for 'stop': must be a string or a list"),
        (
            {"messages": [{"role": "user", "content": 5}]},
            "Invalid value for 'messages[0].content': must be a string or a list",
        ),
        (
            {"messages": [{"role": "user", "content": []}]},
            "Invalid value for 'messages[0].content': must be a string or a list of 1 or more",
        ),
        ({"speculative": "on"}, "Invalid value for 'speculative': must be an object"),
        ({"temperature": 2.5}, "Invalid value for 'temperature': must be at most 2"),
        ({"max_tokens": 0}, "Invalid value for 'max_tokens': must be at least 1"),
        ({"max_tokens": 10**18}, f"{_CONTEXT} and {10**18} for the completion"),
        ({"max_tokens": 1e300}, f"{_CONTEXT} and {int(1e300)} for the completion"),
        ({"max_completion_tokens": 10**18}, f"{_CONTEXT} and {10**18} for the completion"),
        ({"min_tokens": 10**18, "max_tokens": 9}, "'min_tokens' must not exceed max_tokens (9)"),
        ({"n": 1.5}, "Invalid value for 'n': must be an integer"),
        ({"n": 1000}, "this server gives at most 16 choices a request"),
        ({"n": 10**18}, "this server gives at most 16 choices a request"),
        ({"stream": "yes"}, "Invalid value for 'stream': must be true or false"),
        ({"logit_bias": {"1": "x"}}, "Invalid value for 'logit_bias.1': must be a number"),
        ({"prediction": {"type": "x", "content": ""}}, "Invalid value for 'prediction.type': must be 'content'"),
        (
            {"response_format": {"type": "x"}},
            "Invalid value for 'response_format.type': must be one of 'text', 'json_object' or 'json_schema'",
        ),
        ({"messages": [5]}, "Invalid value for 'messages[0]': must be an object"),
        ({"messages": [{"content": "Hi"}]}, "Missing required parameter: 'messages[0].role'."),
        (
            {"tool_choice": 5},
            "Invalid value for 'tool_choice': must be one of 'none', 'auto', 'required' or 'any' or an object",
        ),
        (
            {"messages": [{"role": "robot"}]},
            "Invalid value for 'messages[0].role': "
            "must be one of 'system', 'developer', 'user', 'assistant', 'tool', 'function'",
        ),
    ],
)
def test_what_was_wanted_is_said_in_words_of_json(gateway: Running, changes: dict[str, Any], message: str) -> None:
    assert error(gateway.chat(**changes))["message"] == message


def test_what_was_sent_is_not_sent_back_whole(gateway: Running) -> None:
    long = "x" * 200_000
    named = {"tools": [{"type": "function", "function": {"name": "f"}}]}
    for changes in [
        {long: 1},
        {"logit_bias": {long: 101}},
        {"messages": [{"role": long}]},
        {**named, "tool_choice": {"type": "function", "function": {"name": long}}},
    ]:
        response = gateway.chat(**changes)
        error(response)
        assert len(response.text) < 2000


def test_missing_fields_are_named(gateway: Running) -> None:
    found = error(gateway.post("/v1/chat/completions", {"model": MODEL}))
    assert (found["param"], found["code"]) == ("messages", "missing_required_parameter")
    assert error(gateway.post("/v1/chat/completions", {"messages": HI}))["param"] == "model"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nope",
        b"[]",
        b'"x"',
        b"null",
        b"\xff\xfe",
        b'{"model": "\xff"}',
        b'{"model": NaN}',
        b"[" * 100_000,
        b'{"model": ' + b"[" * 100_000,
        b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
        b'{"model": "tiny/model", "messages": [{"role": "user", "content": "\x00"}]}',
    ],
    ids=range(13),
)
def test_bodies_that_are_not_json(gateway: Running, body: bytes) -> None:
    response = gateway.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    assert error(response)["code"] == "invalid_json"


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        (b'{"model": "m", "temperature": 1e400}', "temperature", "invalid_value"),
        (b'{"messages": [{"role": "user", "content": "Hi"}, {"x": [0, -1e400]}]}', "messages[1].x[1]", "invalid_value"),
        (b'{"\\ud800": 1e400}', "\ufffd", "invalid_value"),
        (b"1e400", None, "invalid_value"),
        (b'{"temperature": 1e400, "temperature": 1}', None, "invalid_value"),
        (b'{"temperature": 1e400, "model": ' + b"[" * 100_000, None, "invalid_json"),
        (b'{"temperature": 1e400, "model"}', None, "invalid_json"),
    ],
    ids=range(7),
)
def test_a_number_that_no_float_holds_is_named(gateway: Running, body: bytes, param: str | None, code: str) -> None:
    response = gateway.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    found = error(response)
    assert (found["param"], found["code"]) == (param, code)
    assert "too large a number" in found["message"] or code == "invalid_json"
    assert "JSON" not in found["message"] or code == "invalid_json"


def test_content_types(gateway: Running) -> None:
    body = json.dumps(OK).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        response = gateway.post("/v1/chat/completions", content=body, headers={"content-type": kind})
        assert error(response, 415)["code"] == "unsupported_media_type"
    with_charset = {"content-type": "Application/JSON; charset=utf-8"}
    assert gateway.post("/v1/chat/completions", content=body, headers=with_charset).status_code == 200


def test_large_bodies(start: Start) -> None:
    running = start(max_body_bytes=2000)
    assert error(running.chat(user="x" * 3000), 413)["code"] == "request_too_large"

    def chunks() -> Any:
        for _ in range(100):
            yield b" " * 100

    json_type = {"content-type": "application/json"}
    response = running.http.post(running.url + "/v1/chat/completions", content=chunks(), headers=json_type)
    assert error(response, 413)["code"] == "request_too_large"


def test_a_compressed_body_is_refused_by_name(gateway: Running) -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    response = gateway.post("/v1/chat/completions", content=b"\x1f\x8b", headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (415, "unsupported_media_type")
    assert "gzip" in response.json()["error"]["message"]
    plain = {**headers, "content-encoding": "identity"}
    body = json.dumps(OK)
    assert gateway.post("/v1/chat/completions", content=body, headers=plain).status_code == 200
