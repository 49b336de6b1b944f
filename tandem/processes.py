"""Child processes of `tandem up`: started in sessions of their own, their logs read, stopped whatever happens."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from config.variables import LIFELINE_VARIABLE

DRAIN_SECONDS = 5.0
"""How long `tandem up` lets running streams go on after it was asked to stop."""
_TAIL_LINES = 8
# A level as loggers print it (in capitals, or as JSON's value), or the start of a traceback.
_ERROR = re.compile(r"\b(ERROR|CRITICAL|FATAL)\b|\"level\": ?\"(error|critical)\"|^Traceback ")
_WARNING = re.compile(r"\bWARNING\b|\"level\": ?\"warning\"")


class Child:
    """One started process. Its standard input is the lifeline: see tandem.lifeline."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        show: Callable[[str, str], None],
        show_all: bool,
        log_file: Path | None,
    ) -> None:
        """Starts `command`. Errors in its log, and all of it with `show_all`, go to `show(name, line)`.

        Raises OSError if the command cannot be started or the log file cannot be opened.
        """
        self.name = name
        self._show = show
        self._show_all = show_all
        self.show_warnings = False
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._log = log_file.open("a", encoding="utf-8", buffering=1) if log_file else None
        # A session of its own: the terminal's Ctrl-C reaches `tandem up` alone, which stops each child once.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**environment, LIFELINE_VARIABLE: "stdin", "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read_log, name=f"log of {name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._process.poll()

    def obituary(self) -> str:
        """Why it ended, in a sentence and its last log lines."""
        self._reader.join(timeout=2)
        code = self._process.returncode
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        lines = "".join(f"\n  {self.name} | {line}" for line in self._tail)
        return f"the {self.name} process {how}." + (f" Its last words:{lines}" if lines else " It said nothing.")

    def send(self, signal_number: int) -> None:
        """To its whole process group, engine processes included; one that has ended already is left alone."""
        try:
            os.killpg(self._process.pid, signal_number)
        except (ProcessLookupError, PermissionError):
            return  # nothing of the group is left (macOS answers EPERM for a group of zombies)

    def wait(self, timeout: float) -> bool:
        """Whether it ended within `timeout` seconds."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> None:
        """Release the lifeline and the log."""
        if self._process.stdin:
            self._process.stdin.close()
        self._reader.join(timeout=2)
        if self._log:
            self._log.close()

    def _read_log(self) -> None:
        assert self._process.stdout is not None
        in_traceback = False
        for raw in self._process.stdout:
            line = raw.rstrip("\n")
            self._tail.append(line)
            if self._log:
                self._log.write(raw)
            # A traceback goes on while lines are indented, and ends with the one that names the error.
            if self._show_all or in_traceback or self._is_notable(line):
                self._show(self.name, line)
            in_traceback = line.startswith("Traceback ") or (in_traceback and line.startswith(" "))

    def _is_notable(self, line: str) -> bool:
        return bool(_ERROR.search(line) or (self.show_warnings and _WARNING.search(line)))


def stop_all(children: Sequence[Child], drain_seconds: float, grace_seconds: float, hurry: threading.Event) -> None:
    """SIGTERM to the first; once it has ended to the others; all within `grace_seconds`, then SIGKILL to what is left.

    After `drain_seconds` the first gets a second SIGTERM, on which the gateway ends the streams that still run.
    `hurry` cuts the waits short.
    """
    began = time.monotonic()

    def wait(child: Child, seconds: float) -> bool:
        """`seconds` are counted from the start."""
        while not (ended := child.wait(0.1)) and time.monotonic() < began + seconds and not hurry.is_set():
            pass
        return ended

    for child in children[:1]:
        child.send(signal.SIGTERM)
        if not wait(child, min(drain_seconds, grace_seconds)):
            child.send(signal.SIGTERM)
            wait(child, grace_seconds)
    for child in children[1:]:
        child.send(signal.SIGTERM)
    for child in children[1:]:
        wait(child, grace_seconds)
    for child in children:
        child.send(signal.SIGKILL)  # also to what the process left behind in its group
        child.wait(5)
        child.close()
