"""The command line as its user sees it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from config.roles import ROLES
from tandem import __version__
from tandem.cli import app
from testing.patience import PATIENCE

ROOT = Path(__file__).parents[2]


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TANDEM_")}
    return subprocess.run(
        [sys.executable, "-m", "tandem", *arguments],
        cwd=ROOT,
        env={**environ, **variables},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.mark.parametrize("command", ["up", "serve", "draft", "target", "doctor", "chat", "version"])
def test_every_command_explains_itself(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.output


def test_every_setting_but_the_secrets_is_a_flag() -> None:
    for role, model in ROLES.items():
        text = " ".join(CliRunner().invoke(app, [role, "--help"]).output.split())
        for name, field in model.model_fields.items():
            flag = f"--{name.replace('_', '-')}"
            assert (f"{flag} " in text or f"{flag}," in text) == ("SecretStr" not in str(field.annotation)), flag
    assert "--port INTEGER" in text
    assert "1 to 65535, env TANDEM_TARGET_PORT, default 8002" in text
    assert "auto|float32|bfloat16|float16" in text


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "sys.argv = ['tandem', 'up', '--help']\n"
        "from tandem.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'transformers', 'numpy', 'fastapi', 'uvicorn', 'httpx'} & sys.modules.keys()))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert result.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("arguments", "variables", "expected"),
    [
        (["target", "--port", "0"], {}, "--port: "),
        (["up", "--draft-port", "99999"], {}, "--draft-port: "),
        (["up", "--dtype", "int3"], {}, "--dtype: "),
        (["serve"], {"TANDEM_SERVE_PORT": "many"}, "TANDEM_SERVE_PORT: "),
        (["up", "--config", "/no/such/file.yml"], {}, "--config: cannot read /no/such/file.yml"),
        (["doctor"], {"TANDEM_CONFIG": "/no/such/file.yml"}, "TANDEM_CONFIG: cannot read /no/such/file.yml"),
        (
            ["serve", "--port", "18765", "--api-key-file", "/no/such/keys"],
            {},
            "--api-key-file: cannot read /no/such/keys",
        ),
        (
            ["serve", "--port", "18765", "--target-urls", "https://a:1"],
            {"TANDEM_SERVE_WORKER_CA_FILE": "/no/such/ca"},
            "TANDEM_SERVE_WORKER_CA_FILE: cannot read /no/such/ca",
        ),
    ],
)
def test_a_wrong_setting_is_one_clear_line(arguments: list[str], variables: dict[str, str], expected: str) -> None:
    result = run(*arguments, **variables)
    assert result.returncode == 2
    assert result.stdout == ""
    [line] = result.stderr.splitlines()
    assert line.startswith(f"tandem: wrong setting: {expected}")


@pytest.mark.parametrize("command", ["serve", "draft", "target"])
def test_a_taken_port_is_one_clear_line(command: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = run(command, "--port", str(port))
    assert (result.returncode, result.stdout) == (1, "")
    [line] = result.stderr.splitlines()
    assert line.startswith(f"tandem: port {port} on 127.0.0.1 cannot be used (Address already in use)")


def test_the_version() -> None:
    asked = CliRunner().invoke(app, ["--version"])
    assert asked.exit_code == 0
    assert asked.output == CliRunner().invoke(app, ["version"]).output == f"tandem {__version__}\n"


def test_an_unknown_flag_is_refused() -> None:
    result = run("up", "--drafft", "lookup")
    assert result.returncode == 2
    assert "--drafft" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_unknown_variable_is_told() -> None:
    result = run("version", TANDEM_THRADS="2")
    assert result.returncode == 0
    assert "TANDEM_THRADS: no such variable; did you mean TANDEM_THREADS?" in result.stderr
