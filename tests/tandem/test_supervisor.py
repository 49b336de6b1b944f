"""Real processes: started, watched, and stopped together whatever happens."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from testing.patience import PATIENCE, eventually

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Up:
    """A running Supervisor over stand-ins, one for each mode."""

    def __init__(
        self,
        *modes: str,
        ready_timeout: float = PATIENCE,
        grace: float = 5.0,
        ports: list[int] | None = None,
        cores: int = 3,
    ):
        self.ports = ports or [free_port() for _ in modes]
        names = ("target", "draft", "gateway")
        specs = [f"{name}:{port}:{mode}" for name, port, mode in zip(names, self.ports, modes, strict=False)]
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "supervise.py"), str(ready_timeout), str(grace), *specs],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "CORES": str(cores)},
        )
        self.family: list[psutil.Process] = []

    def until_announced(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "announced\n"
        self.family = psutil.Process(self.process.pid).children(recursive=True)

    def child(self, name: str) -> psutil.Process:
        port = str(self.ports[("target", "draft", "gateway").index(name)])
        return next(process for process in self.family if port in process.cmdline())

    def finish(self) -> tuple[int, str]:
        """The exit code and what it said on stderr."""
        _, said = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, said

    def assert_nothing_is_left(self) -> None:
        eventually(lambda: not any(map(is_alive, self.family)), f"none of {self.family} is left behind")


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def started() -> Iterator[list[Up]]:
    ups: list[Up] = []
    yield ups
    for up in ups:
        up.process.kill()
        up.process.communicate(timeout=PATIENCE)
        up.assert_nothing_is_left()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_all_and_leaves_nothing(started: list[Up], number: signal.Signals) -> None:
    up = Up("ready", "ready", "ready")
    started.append(up)
    up.until_announced()
    assert len(up.family) == 3
    up.process.send_signal(number)
    code, said = up.finish()
    assert code == 0
    up.assert_nothing_is_left()
    assert "loud line" in said
    assert "quiet line" not in said
    assert "early warning" not in said, "before all are ready that one misses another is no news"


def test_kill_9_leaves_nothing_not_even_a_childs_child(started: list[Up]) -> None:
    up = Up("family", "ready", "ready")
    started.append(up)
    up.until_announced()
    assert len(up.family) == 4
    up.process.kill()
    up.assert_nothing_is_left()


def test_a_child_that_dies_while_loading_is_named_with_its_reason(started: list[Up]) -> None:
    up = Up("loading", "dies", "loading")
    started.append(up)
    code, said = up.finish()
    assert code == 1
    assert "the draft process ended with exit code 3" in said
    assert "no such model: nowhere" in said


@pytest.mark.parametrize(("cores", "begun"), [(1, ["target"]), (2, ["target", "draft"])])
def test_no_more_start_at_once_than_there_are_cores(started: list[Up], cores: int, begun: list[str]) -> None:
    up = Up("silent", "silent", "silent", ready_timeout=5.0, cores=cores)
    started.append(up)
    code, said = up.finish()
    assert code == 1
    assert "not ready after 5 seconds: target, draft, gateway" in said
    assert [name for name in ("target", "draft", "gateway") if f"{name:8}| ERROR loud line" in said] == begun


def test_the_next_one_starts_once_the_first_answers(started: list[Up]) -> None:
    up = Up("loading", "ready", "ready", ready_timeout=10.0, cores=1)
    started.append(up)
    _, said = up.finish()
    assert "not ready after 10 seconds: target\n" in said
    assert "gateway | ERROR loud line" in said


def test_a_traceback_is_shown_whole(started: list[Up]) -> None:
    up = Up("loading", "raises")
    started.append(up)
    code, said = up.finish()
    assert code == 1
    shown = said.split("tandem: the draft process")[0]
    assert "Traceback (most recent call last)" in shown
    assert "LookupError: no such thing" in shown


def test_a_gateway_whose_drain_is_over_is_told_to_end_its_streams_and_not_killed(started: list[Up]) -> None:
    up = Up("ready", "ready", "drains", grace=PATIENCE)
    started.append(up)
    up.until_announced()
    up.process.send_signal(signal.SIGTERM)
    code, said = up.finish()
    assert code == 0
    assert "ended the streams" in said


@pytest.mark.parametrize("name", ["target", "draft", "gateway"])
def test_a_child_that_is_killed_later_ends_the_others(started: list[Up], name: str) -> None:
    up = Up("ready", "ready", "ready")
    started.append(up)
    up.until_announced()
    up.child(name).kill()
    code, said = up.finish()
    assert code == 1
    assert f"the {name} process was killed by SIGKILL" in said
    up.assert_nothing_is_left()


def test_a_stubborn_child_is_killed_after_the_grace(started: list[Up]) -> None:
    up = Up("stubborn", "ready", grace=0.5)
    started.append(up)
    up.until_announced()
    up.process.send_signal(signal.SIGINT)
    assert up.finish()[0] == 0
    up.assert_nothing_is_left()


def test_a_second_signal_does_not_wait_for_the_grace(started: list[Up]) -> None:
    up = Up("stubborn", grace=3600.0)
    started.append(up)
    up.until_announced()

    # As often as it takes: a second signal right after the first counts as the same one.
    def ended() -> bool:
        if not is_alive(up.family[0]):  # nor is a signal sent then: it would end a supervisor that is about to exit
            return True
        up.process.send_signal(signal.SIGINT)
        return False

    eventually(ended, "a second signal ends even what is stubborn")
    assert up.finish()[0] == 0


def test_what_does_not_get_ready_is_named(started: list[Up]) -> None:
    up = Up("loading", "ready", ready_timeout=6.0)
    started.append(up)
    code, said = up.finish()
    assert code == 1
    assert "reading weights" in said
    assert "not ready after 6 seconds: target" in said
    up.assert_nothing_is_left()


def test_a_taken_port_is_refused_before_anything_starts(started: list[Up]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = int(taken.getsockname()[1])
        up = Up("ready", "ready", ports=[free_port(), port])
        started.append(up)
        code, said = up.finish()
    assert code == 1
    assert f"port {port} on 127.0.0.1, for the draft" in said
    assert "--draft-port" in said
    assert "loud line" not in said, "something was started"
