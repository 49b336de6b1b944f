"""A gateway over real sockets, with the workers' half played from a script."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from api_doubles import Running, ScriptedBackend, Start

from config.gateway import GatewayConfig
from server.app import create_app
from serving.connection import HttpConnection
from serving.runner import KEEP_ALIVE_SECONDS
from testing.patience import PATIENCE

_TLS = ssl.create_default_context()  # loading it takes longer than a test


@pytest.fixture(scope="session")
def start_session() -> Iterator[Start]:
    yield from _starter()


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a gateway: `start(backend, **settings)`. All are stopped after the test."""
    yield from _starter()


def _starter() -> Iterator[Start]:
    servers: list[tuple[uvicorn.Server, threading.Thread]] = []
    client = httpx.Client(timeout=PATIENCE, verify=_TLS)

    def start(backend: ScriptedBackend | None = None, **settings: Any) -> Running:
        backend = backend or ScriptedBackend()
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        app = create_app(GatewayConfig(**settings), backend)
        config = uvicorn.Config(
            app,
            http=HttpConnection,
            log_level="warning",
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=1,
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        servers.append((server, thread))
        running = Running(
            f"http://127.0.0.1:{listener.getsockname()[1]}", backend, client, server.server_state.connections
        )
        running.get("/health")  # the backlog holds it until the server accepts
        return running

    yield start
    client.close()
    for server, _ in servers:
        server.should_exit = True
    for _, thread in servers:
        thread.join(PATIENCE)


@pytest.fixture(scope="session")
def gateway(start_session: Start) -> Running:
    """One gateway for all tests that do not change what it does."""
    return start_session()


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tandem's own, built from a copy of what git knows."""
    root = Path(__file__).parents[3]
    copy, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=root, check=True, capture_output=True).stdout.decode().split("\0"):
        if name and (root / name).is_file() and not name.startswith(("tests/", "benchmarks/")):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / name, copy / name)
    program = "import setuptools.build_meta as b, sys; print(b.build_wheel(sys.argv[1]))"
    subprocess.run(
        [sys.executable, "-c", program, str(out)], cwd=copy, check=True, capture_output=True, timeout=PATIENCE
    )
    [built] = out.glob("*.whl")
    return built
