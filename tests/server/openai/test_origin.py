"""Which key a request came with, as its hash."""

from __future__ import annotations

from starlette.requests import Request

from server.openai.origin import origin_of


def caller(*headers: tuple[bytes, bytes]) -> str:
    return origin_of(Request({"type": "http", "headers": list(headers)})).caller


def test_each_key_is_a_caller_and_the_key_is_not_in_it() -> None:
    mine = caller((b"authorization", b"Bearer secret"))
    assert mine == caller((b"authorization", b"bearer  secret "))
    assert len({mine, caller((b"authorization", b"Bearer other")), caller()}) == 3
    assert "secret" not in mine


def test_who_sends_no_key_is_one_caller() -> None:
    assert caller() == caller((b"authorization", b"Bearer")) == ""
