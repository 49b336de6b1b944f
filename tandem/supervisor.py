"""Starts several processes, waits until each is ready, watches them, and stops them all together."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from rich.console import Console

from basics.machine import available_cores
from tandem.addresses import listening_fault, service_url
from tandem.processes import DRAIN_SECONDS, Child, stop_all
from tandem.progress import Progress

if TYPE_CHECKING:
    import httpx

POLL_SECONDS = 0.2
_STARTING_POLL_SECONDS = 0.1
# For running requests to end; if a process has died, most of them cannot.
DRAIN_SECONDS_AFTER_A_DEATH = 1.0
# Beyond the drain, for all processes to end.
GRACE_SECONDS = 5.0
SAME_SIGNAL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ChildService:
    """One process to run and the address of its /ready; `port_flag` is the flag that moves it elsewhere.

    `waits_for` is shown until it is ready, if that is clearer to a person than what /ready reports.
    """

    label: str
    host: str
    port: int
    port_flag: str
    command: tuple[str, ...]
    waits_for: str | None = None


class StartFailure(Exception):
    """The set cannot run (on); the message has the reason."""


class Supervisor:
    def __init__(
        self,
        services: Sequence[ChildService],
        console: Console,
        *,
        log_dir: Path | None = None,
        show_all: bool = False,
        drain_seconds: float = DRAIN_SECONDS,
        grace_seconds: float = GRACE_SECONDS,
        cores: int | None = None,
    ) -> None:
        """`cores`: so many start at once, the first services first (None: as many as there are). Until a process
        answers, imports keep one of them busy; more at once would only delay the first, which takes longest."""
        self._services = services
        self._cores = cores or available_cores()
        self._console = console
        self._log_dir = log_dir
        self._show_all = show_all
        self._drain_seconds = drain_seconds
        self._grace_seconds = grace_seconds
        self._progress = Progress(console, [service.label for service in services])
        self._children: list[Child] = []
        self._stop = threading.Event()
        self._hurry = threading.Event()
        self._stopped_at = 0.0

    def run(self, ready_timeout: float, announce: Callable[[], None]) -> int:
        """Until SIGINT, SIGTERM, SIGHUP (0: a wanted end) or a process's death (1). `announce` is called once ready."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        try:
            self._start()
            if self._until_ready(ready_timeout):
                # Until now it was no news that one service missed another.
                for child in self._children:
                    child.show_warnings = True
                announce()
                while not self._stop.wait(POLL_SECONDS):
                    self._check_alive()
            self._console.print("Stopping …")
            return 0
        except (StartFailure, OSError) as error:
            self._console.print(f"tandem: {error}", markup=False, soft_wrap=True)
            self._drain_seconds = min(self._drain_seconds, DRAIN_SECONDS_AFTER_A_DEATH)
            return 1
        finally:
            # The gateway, started last, first: running requests end while their workers still live.
            drain = self._drain_seconds
            stop_all(self._children[::-1], drain, drain + self._grace_seconds, self._hurry)

    @contextmanager
    def running(self, ready_timeout: float) -> Iterator[None]:
        """All of them ready within, and ended after, whatever happens; signals are the caller's.

        Raises StartFailure, and OSError if a process can't be started.
        """
        try:
            self._start()
            self._until_ready(ready_timeout)
            yield
        finally:
            drain = self._drain_seconds
            stop_all(self._children[::-1], drain, drain + self._grace_seconds, self._hurry)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """The first signal stops the set; one that comes later stops waiting for it.

        Not one that comes at once: `make` passes on a signal that its process group, so this process, got already.
        """
        if self._stop.is_set() and time.monotonic() - self._stopped_at > SAME_SIGNAL_SECONDS:
            self._hurry.set()
        if not self._stop.is_set():
            self._stopped_at = time.monotonic()
            self._stop.set()

    def _start(self) -> None:
        for service in self._services:
            refuse_taken_port(service)
        if self._log_dir:
            self._log_dir.mkdir(parents=True, exist_ok=True)
        self._start_more(answering=0)

    def _start_more(self, answering: int) -> None:
        """Start the next ones, if there are cores for them. `answering`: of those that were started."""
        for service in self._services[len(self._children) : answering + self._cores]:
            log_file = self._log_dir / f"{service.label}.log" if self._log_dir else None
            child = Child(
                service.label,
                service.command,
                environment=os.environ,
                show=self._progress.note,
                show_all=self._show_all,
                log_file=log_file,
            )
            self._children.append(child)

    def _until_ready(self, timeout: float) -> bool:
        """True once all are ready, False if a signal came first."""
        import httpx  # now that the processes have been started: the longest of them import for seconds

        deadline = time.monotonic() + timeout
        waiting = {service.label: service for service in self._services}
        answering: set[str] = set()
        with self._progress, httpx.Client(timeout=2.0, trust_env=False) as client:
            while waiting and not self._stop.wait(_STARTING_POLL_SECONDS):
                self._check_alive()
                if time.monotonic() > deadline:
                    raise StartFailure(f"not ready after {timeout:g} seconds: {', '.join(waiting)}")
                for service in self._services[: len(self._children)]:
                    if (label := service.label) not in waiting:
                        continue
                    answers, is_ready, detail = readiness(client, service)
                    self._progress.show(label, "ready" if is_ready else detail, done=is_ready)
                    if answers:
                        answering.add(label)
                    if is_ready:
                        del waiting[label]
                self._start_more(len(answering))
                for service in self._services[len(self._children) :]:
                    self._progress.show(service.label, "waits for a free core")
        return not waiting

    def _check_alive(self) -> None:
        for child in self._children:
            if child.exit_code() is not None:
                raise StartFailure(child.obituary())


def readiness(client: httpx.Client, service: ChildService) -> tuple[bool, bool, str]:
    """Whether it answers, whether it is ready, and if not what it reports to be doing."""
    import httpx

    try:
        answer = client.get(f"{service_url(service.host, service.port)}/ready")
    except httpx.HTTPError:
        return False, False, "starting: Python imports its libraries, and compiles them the first time"
    if answer.status_code == 200:
        return True, True, "ready"
    try:
        return True, False, service.waits_for or str(answer.json()["detail"])
    except (ValueError, LookupError, TypeError):
        return True, False, f"not ready (HTTP {answer.status_code})"


def refuse_taken_port(service: ChildService) -> None:
    """Raises StartFailure, before anything is loaded, if the port cannot be used."""
    if fault := listening_fault(service.host, service.port):
        raise StartFailure(
            f"port {service.port} on {service.host}, for the {service.label}, cannot be used "
            f"({fault}): free it, or choose another with {service.port_flag}"
        )
