"""Schemas are read in a process of their own, which blocks no one and ends with its owner."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from engines.grammar import reading_process
from engines.grammar.errors import GrammarError
from engines.grammar.reading_process import ReadingProcess
from engines.grammar.sources import read
from testing.patience import PATIENCE, eventually

SCHEMA = '{"type": "object", "properties": {"a": {"type": "string", "maxLength": 5}}, "required": ["a"]}'
WITH_READ = (
    "import sys, time; sys.path[:] = {path}; import engines.grammar.reading_process as p; "
    "p.read = lambda *_: {read}; p.main()"
)
LONG = '{"type": "string", "format": "email", "maxLength": 254}'


def test_it_reads_what_is_read_here() -> None:
    reading = ReadingProcess()
    assert reading.read("json_schema", SCHEMA) == read("json_schema", SCHEMA)
    with pytest.raises(GrammarError, match="uniqueItems"):
        reading.read("json_schema", '{"type": "array", "uniqueItems": true}')
    assert reading.read("json_schema", LONG).kind == "ebnf"
    reading.close()


def test_one_that_takes_too_long_is_killed_and_the_next_is_read() -> None:
    reading = ReadingProcess()
    reading.read("json_schema", SCHEMA)
    process = reading._process
    assert process is not None
    reading._max_seconds = 0.0
    with pytest.raises(GrammarError, match="took more than 0 s"):
        reading.read("json_schema", LONG)
    assert process.returncode is not None
    reading._max_seconds = 30.0
    assert reading.read("json_schema", SCHEMA).kind == "ebnf"
    reading.close()


@pytest.mark.skipif(sys.platform != "linux", reason="address space is limited on Linux")
def test_one_that_takes_too_much_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_process, "_MAIN", WITH_READ.format(path="{path!r}", read="bytearray(1 << 32)"))
    reading = ReadingProcess()
    with pytest.raises(GrammarError, match="too much memory"):
        reading.read("json_schema", SCHEMA)


def test_it_ends_with_its_owner() -> None:
    reading = ReadingProcess()
    reading.read("json_schema", SCHEMA)
    process = reading._process
    assert process is not None
    del reading
    assert process.wait(PATIENCE) != 0
    program = (
        "from engines.grammar.reading_process import ReadingProcess; import os\n"
        f"r = ReadingProcess(); r.read('json_schema', {SCHEMA!r}); print(r._process.pid, flush=True)\n"
        "os._exit(1)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    pid = int(done.stdout)
    eventually(lambda: not _runs(pid), "it ends with its owner")


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_closing_frees_waiting_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_process, "_MAIN", WITH_READ.format(path="{path!r}", read="time.sleep(60)"))
    reading = ReadingProcess()
    timer = threading.Timer(0.5, reading.close)
    timer.start()
    with pytest.raises(GrammarError, match="process that reads grammars ended"):
        reading.read("json_schema", SCHEMA)
    timer.join()


def test_it_finds_its_packages_in_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "engines.py").write_text("raise ImportError")
    (tmp_path / "protocol.py").write_text("raise ImportError")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    reading = ReadingProcess()
    assert reading.read("json_schema", SCHEMA).kind == "ebnf"
    reading.close()
