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
    threading.Thread(target=_watch, args=(int(named), os.getppid()), name="tandem-owner", daemon=True).start()


def _watch(owner: int, parent: int) -> None:
    while _is_there(owner):
        time.sleep(_SECONDS)
    if parent != owner and os.getppid() == parent:
        os.kill(parent, signal.SIGKILL)  # an executor's worker process: what started it is vLLM's engine process
    os._exit(1)


def _is_there(process: int) -> bool:
    """Whether it runs; one that has ended and waits to be collected does not."""
    try:
        with open(f"/proc/{process}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False
