"""`tandem chat`: a real gateway and workers, and the command with a pipe or a terminal for its input."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import StringIO
from pathlib import Path

import httpx
import pytest
from rich.console import Console

from tandem.chat.answer import Piece, Progress
from tandem.chat.screen import Screen, harmless
from tandem.chat.server import ChatError, ChatServer
from testing.in_process import Stack, running_stack
from testing.patience import PATIENCE, eventually
from testing.tiny_models import make_tiny_model

ROOT = Path(__file__).parents[2]
KEY = "a-key"


@pytest.fixture(scope="module")
def stack(bitwise: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A target that drafts for itself: every draft token is accepted."""
    model = make_tiny_model(tmp_path_factory.mktemp("chat") / "tiny", layers=1)
    with running_stack(model, model, api_keys=[KEY], draft_tokens=3) as running:
        yield running


def command(*arguments: str, key: str = KEY) -> tuple[list[str], dict[str, str]]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TANDEM_")}
    if key:
        environ["TANDEM_API_KEY"] = key
    return [sys.executable, "-m", "tandem", "chat", *arguments], environ


def piped(url: str, *lines: str, key: str = KEY) -> subprocess.CompletedProcess[str]:
    words, environ = command("--url", url, key=key)
    return subprocess.run(
        words,
        cwd=ROOT,
        env=environ,
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


class Terminal:
    """A chat in a pseudo-terminal of its own, which Ctrl-C reaches as it does a person's."""

    def __init__(self, url: str, home: Path, *arguments: str) -> None:
        words, environ = command("--url", url, *arguments)
        environ |= {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40", "XDG_STATE_HOME": str(home)}
        self._master, slave = pty.openpty()

        def take_terminal() -> None:
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            words, cwd=ROOT, env=environ, stdin=slave, stdout=slave, stderr=slave, preexec_fn=take_terminal
        )
        os.close(slave)
        self._unread = ""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def until(self, pattern: str) -> str:
        """Reads until what has come since the last match matches; returns that."""
        give_up = time.monotonic() + PATIENCE
        while (found := re.search(pattern, self._unread)) is None:
            assert time.monotonic() < give_up, f"{pattern!r} did not come, but {self._unread[-2000:]!r}"
            if select.select([self._master], [], [], 0.2)[0]:
                self._unread += os.read(self._master, 65536).decode(errors="replace")
        got, self._unread = self._unread[: found.end()], self._unread[found.end() :]
        return got

    def until_again(self, text: str, pattern: str) -> str:
        """Types `text` again until something comes: CPython's readline notices a Ctrl-C that came between its prompt
        and its wait for keys only with the next key."""
        for _ in range(10):
            self.type(text)
            if select.select([self._master], [], [], 3.0)[0]:
                break
        return self.until(pattern)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)
        os.close(self._master)


@contextmanager
def terminal(url: str, home: Path, *arguments: str) -> Iterator[Terminal]:
    opened = Terminal(url, home, *arguments)
    try:
        yield opened
    finally:
        opened.close()


def test_the_text_is_the_servers_with_drafts_and_without(stack: Stack) -> None:
    asked = {"seed": 5, "temperature": 0.7, "max_tokens": 24, "messages": [{"role": "user", "content": "Sing."}]}
    headers = {"authorization": f"Bearer {KEY}"}
    body = {"model": stack.model, **asked}
    answer = httpx.post(f"{stack.url}/v1/chat/completions", json=body, headers=headers, timeout=PATIENCE).json()
    expected = harmless(answer["choices"][0]["message"]["content"])
    lines = ["/set seed 5", "/set temperature 0.7", "/set max_tokens 24", "/draft 3"]

    def drafted() -> bool:
        told = piped(stack.url, *lines, "Sing.", "/stats", "/plain", "/retry", "/stats")
        assert (told.returncode, told.stderr) == (0, "")
        assert told.stdout.count(expected) == 2
        first, second = re.findall(r"tokens: (.*)", told.stdout)
        assert re.fullmatch(r"\d+ plain", second)
        return "draft" in first and "bonus" in first

    eventually(drafted, "an answer whose drafts were in time")


def test_what_is_set_is_sent_and_what_is_wrong_is_told(stack: Stack) -> None:
    told = piped(
        stack.url,
        "/set max_tokens 4",
        "/set ignore_eos true",
        "/set temperature hot",
        "/set temperature 9",
        "/set num_candidates many",
        "/set enabled maybe",
        "Hi",
        "/set max_tokens 100000",
        "Hi",
        "/hlep",
        "/set max_tokns 5",
        "/draft 99",
    )
    assert told.returncode == 1  # the last question was refused
    assert "Invalid value for 'temperature': must be a number, not hot; nothing was set" in told.stderr
    assert "Invalid value for 'temperature': must be at most 2, not 9; nothing was set" in told.stderr
    assert (
        "Invalid value for 'speculative.num_candidates': must be an integer, not many; nothing was set" in told.stderr
    )
    assert "Invalid value for 'speculative.enabled': must be true or false, not maybe; nothing was set" in told.stderr
    assert told.stderr.count("the server refused (400)") == 1
    assert "did you mean /help?" in told.stderr
    assert "a request has no field max_tokns: did you mean max_tokens?" in told.stderr
    assert "γ from 1 to 32" in told.stderr
    assert "\n4 tokens" in told.stdout
    assert piped(stack.url, "/draft nobody", "Hi").returncode == 1


def test_a_conversation_is_sent_whole_and_a_reset_forgets_it(stack: Stack) -> None:
    told = piped(stack.url, "/set max_tokens 300", "/set ignore_eos true", "Hi", "Go on", "/reset", "Go on")
    assert "maximum context length" in told.stderr  # 300 tokens of the first answer, and 300 more
    assert told.returncode == 0


@pytest.mark.parametrize(
    ("key", "expected"), [("", "You didn't provide an API key"), ("wrong", "Incorrect API key provided")]
)
def test_a_key_that_is_missing_or_wrong(stack: Stack, key: str, expected: str) -> None:
    told = piped(stack.url, "Hi", key=key)
    assert told.returncode == 1
    assert expected in told.stderr
    assert "--api-key" in told.stderr


def test_no_server() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        told = piped(f"http://127.0.0.1:{unused.getsockname()[1]}", "Hi")
    assert told.returncode == 1
    assert "no server answers" in told.stderr
    assert "tandem up" in told.stderr


@pytest.mark.parametrize("url", ["nonsense://x", "127.0.0.1:8000", "http://"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ChatError, match="address"):
        ChatServer(url)


class _Dies(BaseHTTPRequestHandler):
    """Serves a model, and half an answer."""

    def do_GET(self) -> None:
        self._send(b'{"data": [{"id": "half"}]}')

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        event = b'data: {"choices": [{"index": 0, "delta": {"content": "half an ans"}}]}\n\n'
        self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True

    def _send(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


class _Endless(_Dies):
    """Serves an answer that goes on until whoever reads it has left."""

    left = threading.Event()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.end_headers()
        pieces = [{"token": 0, "origin": "target", "text": "la "}]
        made = {"draft_tokens": 0, "tokens": [{"origin": "target"}], "pieces": pieces}
        chunk = {"choices": [{"index": 0, "delta": {"content": "la "}}], "tandem": {"rounds": [made]}}
        try:
            while True:
                self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
                time.sleep(0.01)
        except OSError:
            self.left.set()


class _Worker(_Dies):
    """Answers for what the chat asks as a worker does."""

    def do_GET(self) -> None:
        if self.path == "/metrics":
            self._send(b'# TYPE tandem_target_build_info gauge\ntandem_target_build_info{version="1"} 1.0\n')
        else:
            self.send_error(404)


@contextmanager
def served(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def test_a_worker_in_the_gateways_place() -> None:
    with served(_Worker) as url, pytest.raises(ChatError, match=f"^{url} is a target worker: --url is for the gateway"):
        ChatServer(url).models()


def test_a_server_that_dies_in_mid_answer() -> None:
    with served(_Dies) as url:
        told = piped(url, "Hi")
    assert told.returncode == 1
    assert "half an ans" in told.stdout
    assert re.search("tandem chat: the (connection|server)", told.stderr)


def test_in_a_terminal_drafts_are_coloured(stack: Stack, tmp_path: Path) -> None:
    with terminal(stack.url, tmp_path, "--show-drafts") as chat:
        chat.until("/help lists the commands")
        chat.type("/set ignore_eos true\r/set max_tokens 8\r/draft 3\r")  # it may stop early by chance
        chat.until("γ 3 ")

        def coloured() -> bool:
            chat.type("/reset\rHello\r/stats\r")
            shown = chat.until("seed -?[0-9]+: /set seed")
            accepted, bonus = "\x1b[32m" in shown, "\x1b[4;36m" in shown
            # Copies may be rejected.
            return accepted and bonus and bool(re.search(r"acceptance \d+% \([1-9]\d* of \d+\)", shown))

        eventually(coloured, "an answer whose drafts were in time")
        chat.type("/plain\r/set max_tokens 5\r")
        chat.until("plain decoding.*max_tokens 5")
        chat.type("Hi\r/stats\r")
        plain = chat.until("seed -?[0-9]+: /set seed")
        assert "5 tokens" in plain
        assert "\x1b[32m" not in plain
        chat.until("> ")  # an end that comes before is not readline's
        chat.type("\x04")
        assert chat.process.wait(PATIENCE) == 0
    history = tmp_path / "tandem" / "chat_history"
    assert "Hello" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0


def test_ctrl_c_stops_an_answer_alone(tmp_path: Path) -> None:
    """One that has no end: a model's own may be over before the key comes."""
    _Endless.left.clear()
    with served(_Endless) as url, terminal(url, tmp_path) as chat:
        chat.until("/help lists the commands")
        chat.type("A long one\r")
        chat.until("tokens/s")  # the figures come while the answer does
        chat.type("\x03")
        chat.until(r"\(stopped\) \d+ tokens")
        assert _Endless.left.wait(PATIENCE)
        chat.until("> ")
        chat.until_again("\x03", "Ctrl-D or /quit")  # at the prompt it only says how to leave
        chat.type("/set max_tokens 5\r")
        chat.until("max_tokens 5")
        chat.until("> ")
        chat.type("\x04")
        assert chat.process.wait(PATIENCE) == 0


def test_nothing_a_model_writes_is_a_command_to_the_terminal() -> None:
    hostile = "\x1b]0;title\x07\x1b[31mred\x9b2J\r\u202eback"
    assert harmless(hostile) == "\ufffd]0;title\ufffd\ufffd[31mred\ufffd2J\ufffd\ufffdback"
    out = StringIO()
    console = Console(file=out, force_terminal=True, color_system="truecolor", width=60, legacy_windows=False)
    progress = Progress()
    with Screen(console).answering(progress, show_drafts=True) as answering:
        answering.write([Piece(f"[bold]{hostile}[/bold]\n", "draft"), Piece("own", "target")])
    shown = out.getvalue()
    assert "[bold]" in shown  # no markup of rich's either
    assert "\x1b]0" not in shown
    assert "\x1b[31m" not in shown
    assert "\x1b[1;33mown" in shown


def test_pieces_of_an_answer_and_its_figures() -> None:
    progress = Progress()
    made = {"round": 0, "draft_tokens": 2, "num_candidates": 1}
    tokens = [{"origin": "draft", "source": "lookup"}, {"origin": "target"}]
    pieces = [{"token": 0, "origin": "draft", "text": "a"}, {"token": 1, "origin": "target", "text": "b"}]
    chunk = {
        "choices": [{"delta": {"content": "ab"}, "finish_reason": None}],
        "tandem": {"rounds": [{**made, "tokens": tokens, "pieces": pieces}]},
    }
    assert progress.take(chunk) == [Piece("a", "draft"), Piece("b", "target")]
    assert (progress.tokens, progress.acceptance, progress.draft_tokens, progress.text) == (2, 0.5, 2, "ab")
    assert progress.take({"choices": [{"delta": {"content": "c"}}]}) == [Piece("c")]
    assert progress.take({"choices": [], "usage": {"completion_tokens": 3}}) == []
    assert progress.tokens == 3
