"""The chat itself: read a line, obey it or have it answered, until the end of the input."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from tandem.chat.answer import Progress
from tandem.chat.commands import COMMANDS, obey
from tandem.chat.conversation import Conversation
from tandem.chat.screen import Screen
from tandem.chat.server import ChatError, ChatServer

HISTORY = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "tandem" / "chat_history"
_HISTORY_LINES = 1000


class Chat:
    """`failed`: whether the last answer could not be had, which is the exit code of a chat whose input is a file."""

    def __init__(self, server: ChatServer, screen: Screen, conversation: Conversation, show_drafts: bool) -> None:
        self.screen = screen
        self.conversation = conversation
        self.show_drafts = show_drafts
        self.last = Progress()
        self.failed = False
        self._server = server

    def run(self, interactive: bool) -> None:
        """Until Ctrl-D, /quit or the end of the input."""
        while True:
            try:
                line = _read_line("> " if interactive else "")
                if line.startswith("/"):
                    obey(self, line)
                elif line.strip():
                    self.answer(line)
            except KeyboardInterrupt:
                self.screen.say("\n(Ctrl-D or /quit ends the chat)")
            except EOFError:
                return

    def answer(self, question: str) -> None:
        """Ask, and show what comes. An answer that Ctrl-C stops counts as it is; one that fails was never asked for."""
        self.conversation.ask(question)
        self.last = progress = Progress()
        try:
            with (
                self.screen.answering(progress, self.show_drafts) as answering,
                contextlib.closing(self._server.stream(self.conversation.body())) as chunks,
            ):
                for chunk in chunks:
                    answering.write(progress.take(chunk))
        except KeyboardInterrupt:
            self.conversation.answered(progress.text)
            self.screen.say(f"(stopped) {progress.line()}")
        except ChatError as error:
            self.conversation.take_back()
            self.failed = True
            self.screen.fail(f"{error}")
        else:
            self.conversation.answered(progress.text)
            self.failed = False
            ended = " · cut by max_tokens or the context" if progress.finish_reason == "length" else ""
            self.screen.say(progress.line() + ended)


def _read_line(prompt: str) -> str:
    """One line, or several of which all but the last end with a backslash. Raises EOFError."""
    lines: list[str] = []
    while True:
        line = input(prompt if not lines else "… " if prompt else "")
        if not line.endswith("\\"):
            return "\n".join([*lines, line])
        lines.append(line[:-1])


@contextlib.contextmanager
def _remembered(path: Path) -> Iterator[None]:
    """Prompts of earlier chats, with the arrow keys; commands with Tab. Where there is no readline, nothing of it."""
    try:
        import readline
    except ImportError:
        yield
        return

    def complete(text: str, state: int) -> str | None:
        found = [f"/{name}" for name in COMMANDS if f"/{name}".startswith(text)] if text.startswith("/") else []
        return found[state] if state < len(found) else None

    readline.set_completer(complete)
    readline.set_completer_delims(" ")
    readline.parse_and_bind("tab: complete")
    readline.set_history_length(_HISTORY_LINES)
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))  # what was asked is nobody else's to read
            readline.write_history_file(path)


def run_chat(
    url: str,
    *,
    api_key: str | None = None,
    model: str | None = None,
    system: str | None = None,
    show_drafts: bool = False,
    history: Path | None = HISTORY,
) -> int:
    """Chat with the gateway at `url`. The exit code: 1 if it can't be reached, or the last answer failed."""
    screen = Screen()
    interactive = sys.stdin.isatty()
    try:
        server = ChatServer(url, api_key)
        names = server.models()
        if model is not None and model not in names:
            raise ChatError(f"{model} is not served here: {', '.join(names)}")
        conversation = Conversation(model or names[0], system)
    except ChatError as error:
        Screen(Console(stderr=True, highlight=False, soft_wrap=True)).fail(f"{error}")
        return 1
    chat = Chat(server, screen, conversation, show_drafts)
    with contextlib.closing(server), _remembered(history) if interactive and history else contextlib.nullcontext():
        if interactive:
            screen.say(f"{conversation.model} at {server.url}; /help lists the commands")
            if show_drafts:
                screen.legend()
        chat.run(interactive)
    return int(chat.failed and not interactive)
