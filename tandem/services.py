"""Runs one service in this process: its app under uvicorn."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from basics.names import LOOKUP
from config.roles import DraftSettings, ServeSettings, TargetSettings
from config.settings import UnusableFile
from serving.logs import set_up_logging
from serving.runner import HttpServer, collect_seldom, settle_heap
from serving.tracing import set_up_tracing, stop_tracing
from tandem.addresses import is_loopback, listening_fault

logger = logging.getLogger("tandem")


def run_gateway(settings: ServeSettings) -> None:
    """Serve until a signal comes. Raises UnusableFile for API keys or certificates that cannot be read."""
    _refuse_taken_port(settings.host, settings.port)
    from server.app import create_app
    from server.fleet_backend import Fleet

    set_up_logging(settings.log_level, settings.log_format)
    set_up_tracing("gateway")
    if not (settings.api_keys or settings.api_key_file):
        warn_if_public(settings.host, "the gateway", "set TANDEM_SERVE_API_KEYS or --api-key-file")
    with _file_of("worker_ca_file", settings.worker_ca_file):
        fleet = Fleet(settings)
    with _file_of("api_key_file", settings.api_key_file):
        app = create_app(settings, fleet)
    runner = HttpServer(settings.host, settings.port, settings.drain_seconds)
    try:
        gateway = app.state.gateway
        runner.run(app, end_requests=gateway.background.cancel, begin_drain=gateway.draining.set)
    finally:
        stop_tracing()


@contextmanager
def _file_of(setting: str, path: Path | None) -> Iterator[None]:
    """What goes wrong inside is for want of the file that the setting names. Raises UnusableFile."""
    try:
        yield
    except (OSError, ValueError) as error:
        if path is None:
            raise
        reason = "it is not UTF-8 text" if isinstance(error, ValueError) else error.strerror or str(error)
        raise UnusableFile(setting, f"cannot read {path}: {reason}") from None


def run_draft_worker(settings: DraftSettings) -> None:
    """Serve until a signal comes, or the model cannot be loaded."""
    _refuse_taken_port(settings.host, settings.port)
    _set_up_worker(settings)
    set_up_tracing("draft")
    from draft_worker.app import create_app

    runner = HttpServer(settings.host, settings.port, settings.drain_timeout_ms / 1000)
    try:
        app = create_app(settings, on_failure=runner.fail, on_loaded=settle_heap)
        runner.run(app, begin_drain=app.state.drain)
    finally:
        stop_tracing()


def run_target_worker(settings: TargetSettings) -> None:
    """Serve until a signal comes, or the model cannot be loaded."""
    _refuse_taken_port(settings.host, settings.port)
    _set_up_worker(settings)
    set_up_tracing("target")
    from target_worker.app import create_app

    runner = HttpServer(settings.host, settings.port, settings.drain_timeout_ms / 1000)
    try:
        app = create_app(settings, on_failure=runner.fail, on_loaded=settle_heap)
        runner.run(app, begin_drain=app.state.drain)
    finally:
        stop_tracing()


def warn_if_public(host: str, what: str, remedy: str) -> None:
    """A loud warning if others can reach a service that asks for no key."""
    if not is_loopback(host):
        logger.warning("%s listens on %s and asks for no key: whoever can reach it may use it; %s", what, host, remedy)


def _refuse_taken_port(host: str, port: int) -> None:
    """Ends the process with code 1 and one line, before anything is loaded."""
    if fault := listening_fault(host, port):
        sys.exit(f"tandem: port {port} on {host} cannot be used ({fault}): free it, or choose another with --port")


def _set_up_worker(settings: DraftSettings | TargetSettings) -> None:
    """Logging, the warning, and what torch reads from the environment as it loads: call it before torch is imported."""
    from engines.table import engine_of
    from engines.torch.environment import prepare_environment

    collect_seldom()  # imports make no garbage, and looking for it takes a fifth of their time
    set_up_logging(settings.log_level, settings.log_format)
    if not settings.worker_token:
        warn_if_public(settings.host, "this worker", "set TANDEM_WORKER_TOKEN, here and on the gateway")
    # Beside llama.cpp, whose threads are not OMP_NUM_THREADS, torch only draws, and a second set of threads on the same
    # cores makes that slower: 0.45 ms a token in place of 0.27.
    on_llama_cpp = settings.model != LOOKUP and engine_of(settings) == "llama_cpp"
    if on_llama_cpp:
        from engines.llama_cpp.loading import open_soon, spins

        prepare_environment(1, bool(settings.batch_invariant), spins(settings))
        open_soon(settings)  # beside the imports
    else:
        prepare_environment(settings.threads, bool(settings.batch_invariant))
