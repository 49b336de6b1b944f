"""What is seen: the answer as it comes, its drafts in colour, figures in the last line while it does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from tandem.chat.answer import Piece, Progress

STYLES = {"draft": "green", "target": "bold yellow", "bonus": "underline cyan", "plain": ""}
"""By the origin of a token; each differs in more than its colour."""
LEGEND = (
    ("draft", "accepted draft token"),
    ("target", "the target's own, in place of a rejected one"),
    ("bonus", "the target's own after a draft accepted whole"),
    ("plain", "nothing was drafted"),
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_PATIENCE = 8  # times a second that the last lines are drawn anew


def harmless(text: str) -> str:
    """What a model writes is no command to the terminal: control characters are shown as U+FFFD."""
    return _CONTROL.sub("\ufffd", text.replace("\r\n", "\n"))


class Screen:
    """Standard output. On a terminal the last lines of an answer are redrawn; elsewhere text is written as it comes."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False, soft_wrap=True)

    def say(self, text: str, style: str = "dim") -> None:
        self.console.print(Text(harmless(text), style=style))

    def fail(self, text: str) -> None:
        """To a terminal beside the rest; otherwise to standard error, since standard output may be kept."""
        console = self.console if self.console.is_terminal else Console(stderr=True, highlight=False, soft_wrap=True)
        console.print(Text(f"tandem chat: {harmless(text)}", style="red"))

    def legend(self) -> None:
        for origin, meaning in LEGEND:
            self.console.print(Text.assemble(("■ ", STYLES[origin]), (meaning, STYLES[origin])))

    @contextmanager
    def answering(self, progress: Progress, show_drafts: bool) -> Iterator[Answering]:
        """While an answer comes. What was shown of it stays, however that ends."""
        answering = Answering(self.console, progress, show_drafts)
        with answering.running():
            yield answering


class Answering:
    """One answer's lines. Finished ones are printed for good, so that only the last few are ever redrawn."""

    def __init__(self, console: Console, progress: Progress, show_drafts: bool) -> None:
        self._console = console
        self._progress = progress
        self._show = show_drafts
        self._open = Text()
        self._live: Live | None = None
        self._began = False

    @contextmanager
    def running(self) -> Iterator[None]:
        if not self._console.is_terminal:
            try:
                yield
            finally:
                if self._began:
                    self._console.file.write("\n")
                self._console.file.flush()
            return
        live = Live(get_renderable=self._render, console=self._console, refresh_per_second=_PATIENCE, transient=True)
        with live:
            self._live = live
            try:
                yield
            finally:
                self._flush(len(self._open))
                self._open = Text()

    def write(self, pieces: list[Piece]) -> None:
        open_ = self._open.copy()  # the other thread may be drawing the one there is
        for piece in pieces:
            self._began = True
            text = harmless(piece.text)
            if self._live is None:
                self._console.file.write(text)
                continue
            style = "dim italic" if piece.thought else ""
            if self._show:
                style = f"{style} {STYLES.get(piece.origin, '')}".strip()
            open_.append(text, style=style)
        self._open = open_
        if self._live is None:
            self._console.file.flush()
        else:
            self._flush(self._settled())

    def _settled(self) -> int:
        """How much of the open text is whole lines, or more than may be redrawn."""
        end = self._open.plain.rfind("\n") + 1
        room = self._console.width * max(1, self._console.height - 4)
        if len(self._open) - end > room:
            end = max(end, self._open.plain.rfind(" ", end, end + room) + 1) or len(self._open)
        return end

    def _flush(self, end: int) -> None:
        if end == 0:
            return
        done, self._open = self._open[:end], self._open[end:]
        if done.plain.endswith("\n"):
            done = done[:-1]
        self._console.print(done, soft_wrap=True)

    def _render(self) -> RenderableType:
        return Group(self._open, Text(self._progress.line(), style="dim", no_wrap=True, overflow="ellipsis"))
