"""A real Chromium without a window, driven over its DevTools protocol."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
from websockets.sync.client import ClientConnection, connect

from testing.patience import PATIENCE

_NAMES = ("chromium", "chromium-browser", "google-chrome")


def chromium() -> str | None:
    """The browser's path; None if there is none."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


class Page:
    """One tab. `problems` are what the page's scripts complained of, and what the browser refused to load."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._number = 0
        self.problems: list[str] = []
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """A command of the protocol, and its result."""
        self._number += 1
        self._connection.send(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            message = json.loads(self._connection.recv(timeout=PATIENCE))
            self._note(message)
            if message.get("id") == self._number:
                assert "error" not in message, f"{method}: {message.get('error')}"
                return message["result"]

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """The value of an expression in the page; promises are awaited."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, condition: str, seconds: float = PATIENCE) -> None:
        """Waits for an expression to become true."""
        give_up = time.monotonic() + seconds
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < give_up, f"{condition} did not come true"
            time.sleep(0.05)

    def press(self, key: str, **more: Any) -> None:
        """A key, as a person's keyboard sends it."""
        codes = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowRight": 39, "ArrowLeft": 37}
        text = {"text": "\r"} if key == "Enter" else {}
        common = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key], **more}
        self.call("Input.dispatchKeyEvent", type="keyDown", **common, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text: str) -> None:
        """Into whatever has the focus."""
        self.call("Input.insertText", text=text)

    def window(self, width: int, height: int, dark: bool = False) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, path: Path) -> None:
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _note(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.problems.append(str(params["exceptionDetails"]))
        if message.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")


@contextmanager
def browser(path: str, profile: Path) -> Iterator[Callable[[], Page]]:
    """A running browser with a profile of its own; what is given opens a new tab."""
    process = subprocess.Popen(
        [
            path,
            "--headless=new",
            "--no-sandbox",  # not available to a container's root; only local pages are opened
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--remote-debugging-port=0",
            f"--user-data-dir={profile}",
            "about:blank",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    connections: list[ClientConnection] = []
    try:
        port = _port(process, profile / "DevToolsActivePort")

        def tab() -> Page:
            made = httpx.put(f"http://127.0.0.1:{port}/json/new?about:blank", timeout=PATIENCE, trust_env=False).json()
            connections.append(connect(made["webSocketDebuggerUrl"], max_size=None, proxy=None))
            return Page(connections[-1])

        yield tab
    finally:
        for connection in connections:
            with suppress(Exception):
                connection.close()
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(PATIENCE)


def _port(process: subprocess.Popen[bytes], file: Path) -> int:
    give_up = time.monotonic() + PATIENCE
    while time.monotonic() < give_up:
        if process.poll() is not None:
            raise RuntimeError(f"the browser ended with {process.returncode}")
        with suppress(OSError, ValueError, IndexError):
            return int(file.read_text().splitlines()[0])
        time.sleep(0.05)
    raise RuntimeError("the browser did not report its address")
