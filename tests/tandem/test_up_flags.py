"""How flags, pair and other settings become three services'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from config.roles import DraftSettings, Role, ServeSettings, TargetSettings
from config.settings import SettingsError, load
from tandem.cli import app, main
from tandem.up import services
from tandem.up_flags import settings_for_up


def test_the_default_is_the_bundled_model_with_its_own_draft() -> None:
    settings = settings_for_up({}, None)
    assert settings.target.model == "SmolLM2-135M-Instruct"
    assert settings.draft.model == "bundled-draft"
    assert settings.serve.draft_tokens == 5
    assert settings.serve.target_urls == ["http://127.0.0.1:8002"]
    assert settings.serve.draft_urls == ["http://127.0.0.1:8001"]


@pytest.mark.parametrize(
    "given",
    [
        {"engine": "llama_cpp"},
        {"engine": "vllm"},
        {"target": "HuggingFaceTB/SmolLM2-135M-Instruct"},
        {"target": "./SmolLM2-135M-Instruct"},
        {"target": "SmolLM2-135M-Instruct.Q8_0.gguf"},
    ],
)
def test_other_copies_and_engines_do_not_get_the_bundled_draft(given: dict[str, Any]) -> None:
    assert settings_for_up(given, None).draft.model == "lookup"


def test_a_target_alone_picks_its_draft_and_gamma() -> None:
    settings = settings_for_up({"target": "Llama-3.1-8B-Instruct"}, None)
    assert settings.target.model == "meta-llama/Llama-3.1-8B-Instruct"
    assert settings.draft.model == "meta-llama/Llama-3.2-1B-Instruct"
    assert settings.serve.draft_tokens == 3


def test_what_is_said_wins_over_the_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tandem.yml"
    file.write_text("draft: {model: facebook/opt-125m, threads: 7}\nserve: {draft_tokens: 2}\n")
    settings = settings_for_up({"target": "facebook/opt-1.3b"}, file)
    assert (settings.draft.model, settings.draft.threads, settings.serve.draft_tokens) == ("facebook/opt-125m", 7, 2)
    monkeypatch.setenv("TANDEM_DRAFT", "opt-350m")
    assert settings_for_up({"target": "facebook/opt-1.3b"}, file).draft.model == "facebook/opt-350m"
    assert settings_for_up({"draft": "lookup", "draft_tokens": "4"}, file).serve.draft_tokens == 4


def test_ports_move_the_addresses_with_them() -> None:
    settings = settings_for_up({"port": "1", "draft_port": "2", "target_port": "3"}, None)
    assert (settings.serve.port, settings.draft.port, settings.target.port) == (1, 2, 3)
    assert settings.serve.target_urls == ["http://127.0.0.1:3"]
    assert settings.serve.draft_urls == ["http://127.0.0.1:2"]


def test_one_flag_sets_both_workers() -> None:
    settings = settings_for_up({"device": "cpu", "batch_invariant": True}, None)
    assert settings.draft.device == settings.target.device == "cpu"
    assert settings.draft.batch_invariant
    assert settings.target.batch_invariant


def test_a_child_started_with_the_arguments_arrives_at_the_same_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tandem.yml"
    file.write_text("log_level: warning\nserve: {max_choices: 3}\ntarget: {slots: 5}\n")
    monkeypatch.setenv("TANDEM_DTYPE", "bfloat16")
    given = {"target": "Qwen3-32B", "batch_invariant": True, "port": "1234", "target_threads": "2"}
    settings = settings_for_up(given, file)
    models: dict[Role, Any] = {"serve": ServeSettings, "draft": DraftSettings, "target": TargetSettings}
    received: dict[Role, Any] = {}

    for service in services(settings, file):
        role, *arguments = service.command[3:]
        monkeypatch.setattr("tandem.cli._settings", lambda role, model, given, config: received.update({role: given}))
        for name in ("run_gateway", "run_draft_worker", "run_target_worker"):
            monkeypatch.setattr(f"tandem.services.{name}", lambda settings: None)
        result = CliRunner().invoke(app, [role, *arguments])
        assert result.exit_code == 0, result.output

    for role, expected in (("serve", settings.serve), ("draft", settings.draft), ("target", settings.target)):
        assert load(role, models[role], flags=received[role], file=file).settings == expected


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"port": "9000", "draft_port": "9000"}, "--draft-port: 9000 is the port of --port already"),
        ({"target_port": "8001"}, "--target-port: 8001 is the port of --draft-port already"),
        ({"host": "0.0.0.0", "port": "8002"}, "--target-port: 8002 is the port of --port already"),
    ],
)
def test_one_port_for_two_processes_is_refused(given: dict[str, str], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        settings_for_up(given, None)
    assert settings_for_up({"host": "127.0.0.2", "port": "8002"}, None).serve.port == 8002


def test_one_port_for_two_ends_with_code_2_and_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["tandem", "up", "--port", "9000", "--draft-port", "9000"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("tandem: wrong setting: --draft-port: 9000")
