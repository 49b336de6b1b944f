"""Tandem finds its own packages where the working directory or PYTHONPATH holds others of the same names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tandem
from tandem.up import services
from tandem.up_flags import settings_for_up
from testing.patience import PATIENCE

ROOT = Path(__file__).parents[2]
SHADOW = 'raise ImportError("somebody\'s own " + __file__)\n'


@pytest.fixture(params=["modules", "packages", "folders"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Somebody's folder: everything but `tandem` itself, which `python -m tandem` could not tell from Tandem."""
    for name in tandem.PACKAGES:
        if name == "tandem":
            continue
        if request.param == "modules":
            (tmp_path / f"{name}.py").write_text(SHADOW)
        else:
            (tmp_path / name).mkdir()
        if request.param == "packages":
            (tmp_path / name / "__init__.py").write_text(SHADOW)
    return tmp_path


def run(command: list[str], cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("TANDEM_", "PYTHON"))}
    return subprocess.run(
        command, cwd=cwd, env=environ | variables, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def child(role: str) -> list[str]:
    """The command by which `tandem up` starts this role, with --help in place of its settings."""
    place = ("target", "draft", "serve").index(role)
    command = list(services(settings_for_up({}, None), None)[place].command)
    return [*command[: command.index(role) + 1], "--help"]


@pytest.mark.parametrize("path", ["directory", "PYTHONPATH"])
@pytest.mark.parametrize("role", ["target", "serve"])
def test_children_start(role: str, path: str, folder: Path) -> None:
    (folder / "tandem.py").write_text(SHADOW)
    variables = {"PYTHONPATH": str(folder)} if path == "PYTHONPATH" else {}
    done = run(child(role), folder, **variables)
    assert done.returncode == 0, done.stderr
    assert "--port" in done.stdout


@pytest.mark.parametrize("path", ["directory", "PYTHONPATH"])
def test_the_command_line_starts(path: str, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """`python -m tandem` of what is installed, in the folder or with it on PYTHONPATH."""
    cwd = folder if path == "directory" else tmp_path_factory.mktemp("elsewhere")
    variables = {"PYTHONPATH": str(folder)} if path == "PYTHONPATH" else {}
    done = run([sys.executable, "-m", "tandem", "up", "--help"], cwd, **variables)
    assert done.returncode == 0, done.stderr
    assert "--target" in done.stdout


SPAWN = """
import json, multiprocessing, sys
from importlib import import_module
import tandem

def places(names):
    return {name: import_module(name).__file__ for name in names}

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(json.dumps(pool.apply_async(places, [tandem.PACKAGES]).get(40)))
"""


def test_spawned_processes_find_them_too(folder: Path) -> None:
    """As vLLM's engine core is started."""
    (folder / "program.py").write_text(SPAWN)
    done = run([sys.executable, "program.py"], folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {name: str(tandem.ROOT / name / "__init__.py") for name in tandem.PACKAGES}


def test_the_main_file_does_nothing_in_a_spawned_process(tmp_path: Path) -> None:
    program = f"import runpy; runpy.run_path({str(ROOT / 'tandem' / '__main__.py')!r}, run_name='__mp_main__')"
    assert run([sys.executable, "-c", program], tmp_path).stdout == ""


def test_vllms_plug_in_lets_the_proposers_package_be_found(folder: Path) -> None:
    """What vLLM does in each of its processes, then the import of the name in docs/vllm.md."""
    entry = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["vllm.general_plugins"]
    module, function = entry["tandem"].split(":")
    program = f"import {module}; {module}.{function}(); import engines.vllm; print(engines.vllm.__file__)"
    done = run([sys.executable, "-c", program], folder)
    assert done.stdout.strip() == str(tandem.ROOT / "engines" / "vllm" / "__init__.py"), done.stderr


def test_the_path_stays_as_it_is_where_nothing_is_in_the_way(tmp_path: Path) -> None:
    program = (
        "import sys; before = list(sys.path); import tandem; root = str(tandem.ROOT)\n"
        "sys.exit(sys.path != before + [root] * (root not in before))"
    )
    assert run([sys.executable, "-P", "-c", program], tmp_path).returncode == 0


def test_a_checkout_runs_its_own_packages(tmp_path: Path) -> None:
    """Whatever checkout the environment has installed: links to the packages stand for another checkout."""
    for name in tandem.PACKAGES:
        (tmp_path / name).mkdir()
        for source in (ROOT / name).rglob("*.py"):
            copy = tmp_path / source.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(source.read_bytes())
    program = "import tandem, tandem.up, config; print(tandem.up.ROOT, config.__file__)"
    done = run([sys.executable, "-c", program], tmp_path)
    assert done.stdout.split() == [str(tmp_path), str(tmp_path / "config" / "__init__.py")], done.stderr


def test_the_packages_are_those_that_are_shipped() -> None:
    found = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]["include"]
    assert sorted(name.removesuffix("*") for name in found) == sorted(tandem.PACKAGES)
