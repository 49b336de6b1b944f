"""A worker whose model's passes last a stated time, and so stand in for those of a larger model, or a slower machine.

    SLOW_PASS_MS=200 python -m testing.slow_worker target --model FILE --port 9000

A pass that is over sooner sleeps for the rest of the time, its processor free for others; one that takes longer is
left as it is. The passes that are timed at the start last as long, so that planners know them. With SLOW_ROW_MS each
row beyond the first takes so much longer; workers with the same file as SLOW_DEVICE have their passes one at a time, as
models that share a device do.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tandem import services
from tandem.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from engines.runtime.rows import Row
    from engines.runtime.runner import ModelRunner

VARIABLE = "SLOW_PASS_MS"
_set_up = services._set_up_worker


def _set_up_slowly(settings: Any) -> None:
    _set_up(settings)
    from engines.runtime import engine  # imports torch, which must find its environment set up

    measure = engine.measure_step_seconds

    def slowed(
        runner: ModelRunner,
        repeats: int = 3,
        clock: Callable[[], float] = time.perf_counter,
        budget: float = engine.MEASURING_SECONDS,
    ) -> dict[int, float]:
        """Each runner is measured once, before it serves anybody."""
        slow = _lasting(runner.forward, float(os.environ[VARIABLE]) / 1e3)
        runner.forward = slow  # type: ignore[method-assign, assignment]
        return measure(runner, repeats, clock, budget)

    engine.measure_step_seconds = slowed


def _lasting(
    forward: Callable[[Sequence[Row]], list[Tensor]], seconds: float
) -> Callable[[Sequence[Row]], list[Tensor]]:
    each = float(os.environ.get("SLOW_ROW_MS", "0")) / 1e3

    def slow(rows: Sequence[Row]) -> list[Tensor]:
        with _device():
            until = time.perf_counter() + seconds + each * (sum(len(row.token_ids) for row in rows) - 1)
            found = forward(rows)
            time.sleep(max(0.0, until - time.perf_counter()))
            return found

    return slow


@contextmanager
def _device() -> Iterator[None]:
    """Held alone by one pass of all workers on it."""
    file = os.environ.get("SLOW_DEVICE")
    if file is None:
        yield
        return
    with open(file, "a") as device:
        fcntl.flock(device, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    services._set_up_worker = _set_up_slowly
    main()
