"""Where a setting comes from, and how each kind of mistake is reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from config.roles import ROLES, DraftSettings, Role, ServeSettings, TargetSettings, shared_fields
from config.settings import SettingsError, load, unknown_variables


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tandem.yml"


def failure(role: Role, **arguments: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        load(role, ROLES[role], **arguments)
    return str(caught.value)


def test_flags_win_over_variables_over_the_file_over_defaults(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def port_and_origin(flags: dict[str, str]) -> tuple[int, str | None]:
        loaded = load("target", TargetSettings, flags=flags, file=file)
        return loaded.settings.port, loaded.origins.get("port")

    file.write_text("log_level: info\n")
    assert port_and_origin({}) == (8002, None)
    file.write_text("target: {port: 1111}\n")
    assert port_and_origin({}) == (1111, f"{file}: target.port")
    monkeypatch.setenv("TANDEM_TARGET_PORT", "2222")
    assert port_and_origin({}) == (2222, "TANDEM_TARGET_PORT")
    assert port_and_origin({"port": "3333"}) == (3333, "--port")


@pytest.mark.parametrize("value", ["on", "off", "auto", "'on'"])
def test_on_and_off_are_words_in_a_file(file: Path, value: str) -> None:
    file.write_text(f"serve: {{lookahead: {value}, playground: off}}\ntarget: {{mmap: on, batch_invariant: true}}\n")
    served = load("serve", ServeSettings, file=file).settings
    assert (served.lookahead, served.playground) == (value.strip("'"), False)
    target = load("target", TargetSettings, file=file).settings
    assert (target.mmap, target.batch_invariant) == (True, True)


def test_a_services_own_value_wins_over_the_shared_one(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def threads() -> tuple[int | None, int | None]:
        return (
            load("target", TargetSettings, file=file).settings.threads,
            load("draft", DraftSettings, file=file).settings.threads,
        )

    file.write_text("threads: 2\ntarget: {threads: 3}\n")
    assert threads() == (3, 2)
    monkeypatch.setenv("TANDEM_THREADS", "4")
    assert threads() == (4, 4), "any variable wins over the file"
    monkeypatch.setenv("TANDEM_DRAFT_THREADS", "5")
    assert threads() == (4, 5)


def test_the_file_may_be_named_by_a_variable(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("serve: {port: 1234}\n")
    monkeypatch.setenv("TANDEM_CONFIG", str(file))
    assert load("serve", ServeSettings).settings.port == 1234


def test_no_variable_moves_all_three_ports_at_once() -> None:
    assert not {"host", "port", "model"} & shared_fields()
    assert {"threads", "log_level", "worker_token", "batch_invariant", "device", "dtype"} <= shared_fields()


@pytest.mark.parametrize(
    "written", ["http://a:1,http://b:2", ' ["http://a:1", "http://b:2"]', "http://a:1, http://b:2,"]
)
def test_lists_are_json_or_separated_by_commas(written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_SERVE_TARGET_URLS", written)
    assert load("serve", ServeSettings).settings.target_urls == ["http://a:1", "http://b:2"]


def test_a_flag_takes_a_list_too() -> None:
    settings = load("serve", ServeSettings, flags={"draft_urls": "http://a:1,http://b:2"}).settings
    assert settings.draft_urls == ["http://a:1", "http://b:2"]


def test_the_short_model_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_TARGET", "opt-1.3b")
    assert load("target", TargetSettings).settings.model == "opt-1.3b"
    assert load("draft", DraftSettings).settings.model == "lookup"
    monkeypatch.setenv("TANDEM_TARGET_MODEL", "gpt2")
    assert load("target", TargetSettings).settings.model == "gpt2"


def test_an_empty_variable_sets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_THREADS", "")
    monkeypatch.setenv("TANDEM_WORKER_TOKEN", "")
    settings = load("target", TargetSettings).settings
    assert settings.threads is None
    assert settings.worker_token is None


def test_a_wrong_flag_is_named() -> None:
    assert failure("target", flags={"port": "70000"}) == (
        "--port: input should be less than or equal to 65535, not '70000'"
    )
    assert failure("target", flags={"port": "x"}).startswith("--port: input should be a valid integer")
    assert "--draft-port" in failure("draft", flags={"port": "0"}, flag_names={"port": "--draft-port"})


def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_BATCH_INVARIANT", "maybe")
    assert failure("target").startswith("TANDEM_BATCH_INVARIANT: input should be a valid boolean")
    monkeypatch.setenv("TANDEM_TARGET_BATCH_INVARIANT", "perhaps")
    assert failure("target").startswith("TANDEM_TARGET_BATCH_INVARIANT: ")


def test_a_variable_that_is_not_json_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_SERVE_TARGET_URLS", '["http://a')
    assert failure("serve") == "TANDEM_SERVE_TARGET_URLS: is not valid JSON"


def test_a_wrong_value_in_the_file_is_named(file: Path) -> None:
    file.write_text("target: {dtype: float8}\n")
    assert failure("target", file=file).startswith(f"{file}: target.dtype: input should be 'auto', ")
    file.write_text("threads: -1\n")
    assert failure("draft", file=file).startswith(f"{file}: threads: ")


def test_every_mistake_gets_its_line(file: Path) -> None:
    assert len(failure("target", flags={"port": "0", "threads": "0"}).splitlines()) == 2
    file.write_text("serve: {draft_tokens: x, foo: 1}\ntarget: {bar: 1}\nbaz: 2\n")
    assert [line.split(": ")[1] for line in failure("serve", file=file).splitlines()] == [
        "baz", "serve.foo", "target.bar", "serve.draft_tokens",
    ]  # fmt: skip


def test_an_unknown_key_in_the_file_is_named(file: Path) -> None:
    file.write_text("target: {prot: 1}\n")
    assert failure("target", file=file) == f"{file}: target.prot: no such setting; did you mean port?"
    assert failure("serve", file=file) == f"{file}: target.prot: no such setting; did you mean port?"
    file.write_text("tarlget: {port: 1}\n")
    assert failure("serve", file=file) == f"{file}: tarlget: no such setting; did you mean target?"
    file.write_text("port: 1\n")
    assert failure("serve", file=file).startswith(f"{file}: port: no such setting")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a: [1\n", "is not valid YAML at line 2"),
        ("- a\n", "must hold settings (key: value), not list"),
        ("target: 3\n", "target: must be a section of settings, not 3"),
    ],
)
def test_a_broken_file_is_reported(file: Path, content: str, expected: str) -> None:
    file.write_text(content)
    said = failure("serve", file=file)
    assert said.startswith(f"{file}: ")
    assert expected in said
    assert "\n" not in said


def test_an_unreadable_file_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = tmp_path / "none.yml"
    assert failure("serve", file=missing) == f"--config: cannot read {missing}: No such file or directory"
    monkeypatch.setenv("TANDEM_CONFIG", str(tmp_path))
    assert failure("serve") == f"TANDEM_CONFIG: cannot read {tmp_path}: Is a directory"
    binary = tmp_path / "binary.yml"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "it is not UTF-8 text" in failure("serve", file=binary)


def test_an_empty_file_or_section_is_fine(file: Path) -> None:
    file.write_text("")
    assert load("serve", ServeSettings, file=file).settings.port == 8000
    file.write_text("target:\n")
    assert load("target", TargetSettings, file=file).settings.port == 8002


def test_secrets_are_never_repeated(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("serve: {api_keys: [[hunter2]]}\n")
    said = failure("serve", file=file)
    assert "api_keys" in said
    assert "hunter2" not in said
    monkeypatch.setenv("TANDEM_SERVE_API_KEYS", "hunter2")
    assert "hunter2" not in repr(load("serve", ServeSettings).settings)


def test_variables_that_set_nothing_are_reported() -> None:
    environ = ["TANDEM_THRADS", "TANDEM_THREADS", "TANDEM_TARGET", "TANDEM_SERVE_PORT", "TANDEM_CONFIG", "PATH"]
    assert list(unknown_variables(environ)) == ["TANDEM_THRADS: no such variable; did you mean TANDEM_THREADS?"]
    assert next(unknown_variables(["TANDEM_PORT"])).startswith("TANDEM_PORT: no such variable")


def test_a_mapping_in_a_variable_is_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_SERVE_DRAFT_POOLS", "nonsense")
    assert failure("serve").startswith("TANDEM_SERVE_DRAFT_POOLS: ")


def test_a_check_of_several_settings_names_the_one_at_fault() -> None:
    assert failure("draft", flags={"lookup_min_ngram": "9"}) == "--lookup-min-ngram: exceeds lookup_max_ngram"


@pytest.mark.parametrize(
    "url",
    [
        "http://a b:1", "http://a:99999", "http://a:0", "http://a:b", "http://", "http://:1", "http://[::1", "a:1",
        "ftp://a", "http://a\n:1", "http://a?b", "http://a#b",
    ],
)  # fmt: skip
def test_addresses_that_no_worker_can_have_are_refused(url: str) -> None:
    assert failure("serve", flags={"target_urls": json.dumps([url])}).startswith("--target-urls: ")
    assert failure("serve", flags={"draft_pools": json.dumps({"p": [url]})}).startswith("--draft-pools: ")
    assert "draft-workers" in failure("target", flags={"draft_workers": json.dumps([url]), "engine": "vllm"})


@pytest.mark.parametrize("url", ["http://a_b-1.example:65535", "https://[::1]:8002", "http://127.0.0.1", "http://ü:1"])
def test_addresses_of_workers(url: str) -> None:
    assert load("serve", ServeSettings, flags={"target_urls": json.dumps([f"{url}/"])}).settings.target_urls == [url]
