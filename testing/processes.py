"""Real Tandem processes on free ports: started, awaited, faulted by pid, and always ended with their starter."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import httpx
import psutil

from testing.patience import PATIENCE

Role = Literal["target", "draft", "serve"]
ROOT = Path(__file__).resolve().parent.parent
READY_SECONDS = 400.0
_POLL_SECONDS = 0.05
_LOG_TAIL = 4000


def free_port() -> int:
    """A free port of the loopback address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Process:
    """One server process in a process group of its own, its log in a file."""

    def __init__(self, name: str, command: Sequence[str], port: int, log: Path, env: Mapping[str, str]) -> None:
        self.name = name
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.log = log
        self._command = list(command)
        self._env = dict(env)
        self._process = self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            # TANDEM_LIFELINE: the process ends with the pipe on its standard input, even if we are killed.
            return subprocess.Popen(
                self._command,
                cwd=ROOT,
                env=self._env | {"TANDEM_LIFELINE": "stdin"},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_ready(self, timeout: float = READY_SECONDS, path: str = "/ready") -> float:
        """Wait until `path` answers 200; the seconds that took. Raises RuntimeError with the log's end."""
        began = time.monotonic()
        with httpx.Client(timeout=20.0, trust_env=False) as client:
            while time.monotonic() - began < timeout:
                if self._process.poll() is not None:
                    raise RuntimeError(f"{self.name} ended with {self._process.returncode}:\n{self.log_tail()}")
                with suppress(httpx.HTTPError):
                    if client.get(f"{self.url}{path}").status_code == 200:
                        return time.monotonic() - began
                time.sleep(_POLL_SECONDS)
        raise RuntimeError(f"{self.name} is not ready after {timeout:g} s:\n{self.log_tail()}")

    def log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-_LOG_TAIL:]

    def rss(self) -> int:
        """Resident bytes of the process and its children."""
        process = psutil.Process(self.pid)
        return sum(p.memory_info().rss for p in [process, *process.children(recursive=True)])

    def suspend(self) -> None:
        os.killpg(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.killpg(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """As kill -9 does, the whole group; reaped before this returns."""
        if self._process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait(PATIENCE)
        if self._process.stdin is not None:
            self._process.stdin.close()

    def terminate(self) -> None:
        """Send SIGTERM; `wait` returns once it is gone."""
        self._process.terminate()

    def wait(self, timeout: float) -> int:
        """The exit code. Raises subprocess.TimeoutExpired."""
        return self._process.wait(timeout)

    def restart(self) -> None:
        """Start it again, same command, same port. It must have ended."""
        assert self._process.poll() is not None, f"{self.name} still runs"
        self._process = self._start()

    def close(self) -> None:
        """End it with SIGTERM, then with SIGKILL."""
        self.ask_to_end()
        self.reap()

    def ask_to_end(self) -> None:
        """SIGTERM, even if it is suspended; `reap` waits for its end."""
        if self._process.poll() is None:
            self.resume()
            self.terminate()

    def reap(self) -> None:
        """Wait five seconds for its end, then kill it."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(5)
        self.kill()


class Stack:
    """A set of processes that end together, and their logs' folder."""

    def __init__(self, logs: Path | None = None) -> None:
        self.logs = logs or Path(tempfile.mkdtemp(prefix="tandem-logs-"))
        self.logs.mkdir(parents=True, exist_ok=True)
        self.processes: list[Process] = []

    def tandem(self, role: Role, name: str, python: str = sys.executable, **settings: Any) -> Process:
        """`tandem ROLE` with these settings, in the variables that set them; not yet ready. `python`: the interpreter,
        maybe of another environment, which runs this folder's code all the same."""
        return self._role("tandem", role, name, settings, {}, python)

    def slow(
        self,
        role: Role,
        pass_ms: float,
        name: str | None = None,
        row_ms: float = 0.0,
        one_at_a_time: Path | None = None,
        **settings: Any,
    ) -> Process:
        """A worker with these settings whose passes last as long (testing/slow_worker.py): a draft of single passes."""
        if role == "draft":
            settings = {"chains": "off", **settings}  # a chain of several tokens is one call, no slower than it is
        variables = {"SLOW_PASS_MS": str(pass_ms), "SLOW_ROW_MS": str(row_ms)}
        if one_at_a_time is not None:
            variables["SLOW_DEVICE"] = str(one_at_a_time)
        return self._role("testing.slow_worker", role, name or role, settings, variables)

    def module(self, name: str, module: str, *arguments: str, **variables: str) -> Process:
        """`python -m MODULE --host 127.0.0.1 --port PORT ARGUMENTS`, with these variables in its environment."""
        port = free_port()
        command = [sys.executable, "-m", module, "--host", "127.0.0.1", "--port", str(port), *arguments]
        return self._add(name, command, port, variables)

    def target(self, model: str | Path, name: str = "target", python: str = sys.executable, **settings: Any) -> Process:
        return self.tandem("target", name, python, model=model, **settings)

    def draft(self, model: str | Path, name: str = "draft", python: str = sys.executable, **settings: Any) -> Process:
        return self.tandem("draft", name, python, model=model, **settings)

    def gateway(
        self, targets: Sequence[str], drafts: Sequence[str] = (), name: str = "gateway", **settings: Any
    ) -> Process:
        """`tandem serve` before workers at these addresses. It waits for busy ones: 503 after two seconds says more of
        the machine than of Tandem."""
        patient = {"connect_timeout_seconds": 20, "start_timeout_seconds": 120}
        urls = {"target_urls": list(targets), "draft_urls": list(drafts)}
        return self.tandem("serve", name, **{**patient, **urls, **settings})

    def wait_ready(self, timeout: float = READY_SECONDS) -> None:
        for process in self.processes:
            process.wait_ready(timeout)

    def close(self) -> None:
        for process in reversed(self.processes):
            process.ask_to_end()
        for process in reversed(self.processes):  # they were all signalled first, so they end in parallel
            process.reap()
        self.processes.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _role(
        self,
        module: str,
        role: Role,
        name: str,
        settings: Mapping[str, Any],
        more: Mapping[str, str],
        python: str = sys.executable,
    ) -> Process:
        port = free_port()
        command = [python, "-m", module, role, "--host", "127.0.0.1", "--port", str(port)]
        variables = {f"TANDEM_{role}_{field}".upper(): _text(value) for field, value in settings.items()}
        return self._add(name, command, port, {**variables, **more})

    def _add(self, name: str, command: Sequence[str], port: int, variables: Mapping[str, str]) -> Process:
        # The user's own settings must not affect what is measured.
        env = {key: value for key, value in os.environ.items() if not key.startswith("TANDEM_")}
        kept = {key: os.environ[key] for key in ("TANDEM_CACHE",) if key in os.environ}
        process = Process(name, command, port, self.logs / f"{name}.log", env | kept | dict(variables))
        self.processes.append(process)
        return process


def _text(value: Any) -> str:
    if isinstance(value, (list, dict)):
        return json.dumps(value)
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
