"""Schemas turned into grammars in a process of their own.

That work is Python and may take seconds: in the worker's process it would hold the interpreter's lock, and every other
stream would wait. The process starts with the first schema, is killed when one takes too long, and ends with its owner,
or, if that dies, at the end of its input.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import weakref

from engines.grammar.errors import GrammarError, Overloaded, reason
from engines.grammar.sources import Source, read

MAX_SECONDS = 20.0
"""Of wall time for one grammar; limits.MAX_SCHEMA_SECONDS bounds the CPU time within it."""
START_SECONDS = 20.0
"""More for the first one, since the process starts with it: a second or two, but many on a busy machine."""
MAX_BYTES = 1 << 30
"""The process's address space, if the system can limit it."""
_MAIN = "import sys; sys.path[:] = {path!r}; from engines.grammar.reading_process import main; main()"


class ReadingProcess:
    """May be used from many threads, one at a time in the process. `close` ends it; a later `read` starts a new one."""

    def __init__(self, max_seconds: float = MAX_SECONDS) -> None:
        self._max_seconds = max_seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._finalizer: weakref.finalize[[subprocess.Popen[bytes]], ReadingProcess] | None = None

    def read(self, grammar_type: str, value: str) -> Source:
        """As sources.read. Raises GrammarError, also for one that takes too long or too much memory."""
        if not self._lock.acquire(timeout=self._max_seconds):
            raise Overloaded("waited too long for other grammars to be read; try again later")
        try:
            return self._ask(json.dumps([grammar_type, value]).encode() + b"\n")
        finally:
            self._lock.release()

    def _ask(self, question: bytes) -> Source:
        fresh = self._process
        process = self._started()
        seconds = self._max_seconds + (START_SECONDS if process is not fresh else 0.0)
        overrun = threading.Event()

        def kill() -> None:
            overrun.set()
            process.kill()

        timer = threading.Timer(seconds, kill)
        timer.daemon = True
        timer.start()
        answer = b""
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(question)
                process.stdin.flush()
            answer = process.stdout.readline()
        finally:
            timer.cancel()
            if not answer.endswith(b"\n"):
                self.close()
        if not answer.endswith(b"\n"):
            if overrun.is_set():
                # The process itself ends what takes too much CPU time: this one may have had to wait for a CPU.
                raise Overloaded(f"took more than {seconds:g} s to turn into a grammar; try again later")
            raise Overloaded("the process that reads grammars ended; try again later")
        kind, text, field = json.loads(answer)
        if kind == "error":
            raise GrammarError(text, field or "grammar.value")
        return Source(kind, text)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            # -P and this process's own path: the same packages as here, whatever the directory holds.
            command = [sys.executable, "-P", "-c", _MAIN.format(path=sys.path)]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self._finalizer = weakref.finalize(self, _end, self._process)
        return self._process

    def close(self) -> None:
        """End the process; its waiters get a GrammarError."""
        if self._finalizer is not None:
            self._finalizer()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def main() -> None:
    """The process: a line of JSON in for each grammar, one out, until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the owner decides
    _limit_memory()
    answers = sys.stdout.buffer
    for line in sys.stdin.buffer:
        grammar_type, value = json.loads(line)
        try:
            source = read(grammar_type, value)
            answer = [source.kind, source.text, ""]
        except GrammarError as error:
            answer = ["error", error.message, error.field or ""]
        except MemoryError:
            answer = ["error", "takes too much memory to turn into a grammar", ""]
        except (RuntimeError, ValueError, TypeError) as error:
            answer = ["error", reason(error), ""]
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = MAX_BYTES if hard == resource.RLIM_INFINITY else min(hard, MAX_BYTES)
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
