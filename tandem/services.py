"""Runs one service in this process: its app under uvicorn."""

from __future__ import annotations

import ipaddress
import logging

import uvicorn
from fastapi import FastAPI

from config.roles import DraftSettings, ServeSettings, TargetSettings

logger = logging.getLogger("tandem")


def run_gateway(settings: ServeSettings) -> None:
    """Serve until a signal comes."""
    from server.app import create_app
    from server.fleet import Backend

    _set_up_logging(settings.log_level)
    if not (settings.api_keys or settings.api_key_file):
        warn_if_public(settings.host, "the gateway", "set TANDEM_SERVE_API_KEYS or --api-key-file")
    app = create_app(settings, Backend(settings))
    _serve(app, settings.host, settings.port, settings.drain_seconds)


def run_draft_worker(settings: DraftSettings) -> None:
    """Serve until a signal comes."""
    from draft_worker.app import create_app

    _set_up_worker(settings)
    _serve(create_app(settings), settings.host, settings.port, settings.drain_timeout_ms / 1000)


def run_target_worker(settings: TargetSettings) -> None:
    """Serve until a signal comes."""
    from target_worker.app import create_app

    _set_up_worker(settings)
    _serve(create_app(settings), settings.host, settings.port, settings.drain_timeout_ms / 1000)


def warn_if_public(host: str, what: str, remedy: str) -> None:
    """A loud warning where others can reach a service that asks nobody for a key."""
    if not is_loopback(host):
        logger.warning("%s listens on %s and asks for no key: whoever can reach it may use it; %s", what, host, remedy)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it. A name other than localhost counts as public."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _set_up_worker(settings: DraftSettings | TargetSettings) -> None:
    _set_up_logging(settings.log_level)
    if not settings.worker_token:
        warn_if_public(settings.host, "this worker", "set TANDEM_WORKER_TOKEN, here and on the gateway")


def _set_up_logging(level: str) -> None:
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs a line for every request


def _serve(app: FastAPI, host: str, port: int, drain_seconds: float) -> None:
    uvicorn.run(
        app,
        host=host,
        port=port,
        log_config=None,  # uvicorn's loggers go the way of all others
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=max(1, round(drain_seconds)),
    )
