"""vLLM's processes must not outlive the worker that started them, however it ends: kill -9 included.

vLLM's engine process does not look whether its parent is still there. So the worker leaves its process id in the
environment, which all its processes inherit, and whatever of ours runs in them (a logits processor, a worker
extension) looks for it once a second.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress

import psutil

_VARIABLE = "TANDEM_VLLM_OWNER"
_SECONDS = 1.0


def announce_owner() -> None:
    """In the worker, before it starts vLLM."""
    os.environ[_VARIABLE] = str(os.getpid())


def end_with_owner() -> None:
    """In one of vLLM's processes: end it, and the engine process above it, once the worker is gone."""
    named = os.environ.get(_VARIABLE)
    if named is None or int(named) == os.getpid():
        return
    watching = (int(named), os.getppid())
    threading.Thread(target=_watch, args=watching, name="tandem-owner", daemon=True).start()


def _watch(owner: int, parent: int) -> None:
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(owner)
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            time.sleep(_SECONDS)
    if parent != owner and os.getppid() == parent:
        os.kill(parent, signal.SIGKILL)  # this is an executor's process; what started it is vLLM's engine process
    os._exit(1)
