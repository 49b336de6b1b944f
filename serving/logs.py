"""How all three services log: one line an event, for people (console) or for machines (json)."""

from __future__ import annotations

import logging
import sys
from typing import Any, Literal

import structlog

from serving.request_id import REQUEST_ID

LogFormat = Literal["console", "json"]

_QUIET = ("httpx", "httpcore", "opentelemetry")
"""Libraries that would log a line for every request."""


def set_up_logging(level: str, form: LogFormat) -> None:
    """Everything that is logged in this process, by whatever library, goes to standard error in one form.

    `level` is a name such as "info".
    """
    shared: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _add_request,
        structlog.stdlib.ExtraAdder(),
        _drop_colours,
    ]
    if form == "json":
        ends: list[Any] = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        ends = [
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
        ]
    handler = logging.StreamHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *ends],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def _add_request(logger: Any, method: str, event: dict[str, Any]) -> dict[str, Any]:
    """Which request the line is about. A line that gives `request_id` itself overrides it."""
    if request_id := REQUEST_ID.get():
        event["request_id"] = request_id
    return event


def _drop_colours(logger: Any, method: str, event: dict[str, Any]) -> dict[str, Any]:
    """uvicorn passes its messages twice, the second time coloured for terminals."""
    event.pop("color_message", None)
    return event
