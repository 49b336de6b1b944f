"""Lines of the log, for people and for machines."""

from __future__ import annotations

import json
import subprocess
import sys

SCRIPT = """
import logging, sys
from serving.logs import set_up_logging
from serving.request_id import REQUEST_ID
set_up_logging("info", sys.argv[1])
log = logging.getLogger("some.library")
log.info("before %s", "any request")
REQUEST_ID.set("r-1")
log.warning("within", extra={"tokens": 3, "color_message": "said again"})
log.info("about another", extra={"request_id": "r-2"})
log.debug("too fine")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("failed")
"""


def logged(form: str) -> str:
    done = subprocess.run([sys.executable, "-c", SCRIPT, form], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    return done.stderr


def test_json_lines() -> None:
    before, within, other, failed = [json.loads(line) for line in logged("json").splitlines()]
    assert (before["event"], before["level"], before["logger"]) == ("before any request", "info", "some.library")
    assert "request_id" not in before
    assert (within["request_id"], within["tokens"], within["level"]) == ("r-1", 3, "warning")
    assert "color_message" not in within
    assert other["request_id"] == "r-2"
    assert "ZeroDivisionError" in failed["exception"]


def test_lines_for_people() -> None:
    text = logged("console")
    assert "before any request" in text
    assert "request_id=r-1" in text
    assert "tokens=3" in text
    assert "ZeroDivisionError" in text
    assert "too fine" not in text
    assert "\x1b[" not in text  # no colours unless a terminal is attached
