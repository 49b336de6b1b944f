"""What `tandem up` says."""

from __future__ import annotations

import io
import json
import shlex

import pytest
from fake_services import Fake, serving
from rich.console import Console

from tandem.addresses import is_loopback, service_url
from tandem.up import announce, chat_fault, curl, served_model, warn_if_public
from tandem.up_flags import settings_for_up


def test_the_curl_is_one_command_that_parses() -> None:
    words = shlex.split(curl("http://127.0.0.1:8000", "it's/a model", has_keys=False).replace("\\\n", ""))
    assert words[:2] == ["curl", "http://127.0.0.1:8000/v1/chat/completions"]
    assert json.loads(words[words.index("-d") + 1])["model"] == "it's/a model"
    assert not any("Authorization" in word for word in words)


def test_with_keys_the_curl_leaves_the_key_to_a_variable() -> None:
    assert '"Authorization: Bearer $TANDEM_API_KEY"' in curl("http://127.0.0.1:8000", "m", has_keys=True)


def test_the_model_is_named_as_the_gateway_names_it() -> None:
    with serving(Fake({"/v1/models": {"data": [{"id": "served"}]}})) as url:
        assert served_model(url, None) == "served"
    with serving(Fake({})) as url:
        assert served_model(url, None) is None


@pytest.mark.parametrize(("status", "fault"), [(200, None), (400, "the model has no chat template"), (503, None)])
def test_a_model_that_takes_no_chats_is_tried_by_a_completion(
    status: int, fault: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway = Fake(
        {"/v1/models": {"data": [{"id": "served"}]}, "/tokenize": (status, {"error": {"message": f"{fault}."}})}
    )
    with serving(gateway) as url:
        assert chat_fault(url, "served", "key") == fault
        announce(settings_for_up({"port": int(url.rpartition(":")[2])}, None))
    said = capsys.readouterr().out
    assert ("No chats: the model has no chat template." in said) == (fault is not None)
    words = shlex.split(said[said.index("curl") : said.index("Ctrl-C")].replace("\\\n", ""))
    body = json.loads(words[words.index("-d") + 1])
    assert words[1].endswith("/v1/completions" if fault else "/v1/chat/completions")
    assert body.keys() == {"model", "max_tokens", "prompt" if fault else "messages"}


def warnings(monkeypatch: pytest.MonkeyPatch, given: dict[str, str], **variables: str) -> str:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    said = io.StringIO()
    warn_if_public(settings_for_up(given, None), Console(file=said, width=200))
    return said.getvalue()


def test_a_public_bind_without_keys_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    assert warnings(monkeypatch, {}) == ""
    assert "WARNING: the gateway listens on 0.0.0.0 and asks for no key" in warnings(monkeypatch, {"host": "0.0.0.0"})
    assert warnings(monkeypatch, {"host": "0.0.0.0"}, TANDEM_SERVE_API_KEYS="k") == ""
    assert "the target worker listens on ::" in warnings(monkeypatch, {}, TANDEM_TARGET_HOST="::")
    assert warnings(monkeypatch, {}, TANDEM_TARGET_HOST="::", TANDEM_WORKER_TOKEN="t") == ""


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", "localhost.example.org"])
def test_not_loopback(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("::1", "http://[::1]:80"),
        ("example.org", "http://example.org:80"),
    ],
)
def test_where_a_listener_is_reached(host: str, url: str) -> None:
    assert service_url(host, 80) == url
