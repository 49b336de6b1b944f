"""What `tandem up` shows while its processes get ready: a live line each, or plain lines without a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from types import TracebackType

from rich.console import Console
from rich.progress import Progress as Bars
from rich.progress import SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column

_SILENT_SECONDS = 15.0
"""Without a terminal, and so without a live clock, a state that lasts is told again after each of these."""


class Progress:
    """One state a service. `note` prints a log line beside it at any time, from any thread."""

    def __init__(self, console: Console, names: Iterable[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._began = clock()
        self._states = dict.fromkeys(names, "")
        self._told = dict.fromkeys(self._states, self._began)
        state = TextColumn("{task.fields[state]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis"))
        columns = (SpinnerColumn(finished_text="✓"), TextColumn("{task.fields[name]:8}"), TimeElapsedColumn(), state)
        self._bars = Bars(*columns, console=console, transient=True)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            for name in self._states:
                self._tasks[name] = self._bars.add_task("", total=1, name=name, state="starting")
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def show(self, name: str, state: str, *, done: bool = False) -> None:
        if name in self._tasks:
            self._bars.update(self._tasks[name], state=state, completed=int(done))
        elif state != self._states[name]:
            self._print(name, state)
        elif self._clock() - self._told[name] >= _SILENT_SECONDS:
            self._print(name, f"{state} ({self._clock() - self._began:.0f} s so far)")
        self._states[name] = state

    def _print(self, name: str, line: str) -> None:
        self._told[name] = self._clock()
        self._console.print(f"{name:8} {line}", markup=False, soft_wrap=True)

    def note(self, name: str, line: str) -> None:
        self._console.print(f"{name:8}| {line}", markup=False, soft_wrap=True)
