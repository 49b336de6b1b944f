"""A child of `tandem up` must not outlive it, however it ends: kill -9 included.

The child's standard input is a pipe that only the parent holds open. When it closes, the parent is gone, and the child
ends its own process group, in which its engine's processes are too.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from config.variables import LIFELINE_VARIABLE

GRACE_SECONDS = 10.0


def is_child() -> bool:
    """Whether `tandem up` started this process."""
    return os.environ.get(LIFELINE_VARIABLE) == "stdin"


def hold_on() -> None:
    """End this process with its parent."""
    threading.Thread(target=_end_with_parent, name="lifeline", daemon=True).start()


def _end_with_parent() -> None:
    descriptor = sys.stdin.fileno()
    while os.read(descriptor, 4096):
        pass  # nothing is ever sent on it; only its end means something
    os.killpg(0, signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os.killpg(0, signal.SIGKILL)
