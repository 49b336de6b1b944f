"""How long a request keeps trying when targets fail: pauses, the fleet's budget of retries, the end of patience."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from server.errors import NoTarget, Overloaded
from server.fleet.failures import Busy, WorkerFailure


class RetryBudget:
    """A token bucket: full at first, refilled by `per_success` for each success and `per_second` with time."""

    def __init__(
        self,
        capacity: float = 50.0,
        per_success: float = 0.1,
        per_second: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._capacity = self._tokens = capacity
        self._per_success = per_success
        self._per_second = per_second
        self._clock = clock
        self._updated = clock()

    def success(self) -> None:
        self._tokens = min(self._capacity, self._tokens + self._per_success)

    def take(self) -> bool:
        """Whether one more retry is allowed now."""
        now = self._clock()
        self._tokens = min(self._capacity, self._tokens + (now - self._updated) * self._per_second)
        self._updated = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


log = logging.getLogger(__name__)

_FIRST_BACKOFF = 0.05
_MAX_BACKOFF = 1.0


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds: for one call, and for a target to come (back) before the first token and after it."""

    call: float
    before_first_token: float
    mid_stream: float


class Recovery:
    """One request's. Patience is counted from the first failure, or wait, since the last success.

    `failures` are those since the last success; `begun`: whether a token has come. Raises server.errors.NoTarget or
    Overloaded when patience ends.
    """

    def __init__(self, patience: Patience, budget: RetryBudget) -> None:
        self._patience = patience
        self._budget = budget
        self._give_up: float | None = None
        self.failures: list[WorkerFailure] = []
        self.begun = False

    def succeeded(self) -> None:
        self.begun = True
        self.failures.clear()
        self._give_up = None
        self._budget.success()

    async def before_retry(self, failure: WorkerFailure, others: bool) -> None:
        """Wait until the call may be repeated. `others`: a worker on which it has not failed can be asked next."""
        pause = 0.0
        if not others:
            pause = min(_MAX_BACKOFF, _FIRST_BACKOFF * 2 ** min(len(self.failures) - 1, 8))
            if isinstance(failure, Busy):
                if not self.begun and failure.retry_after > self._patience.before_first_token:
                    raise Overloaded("all target workers are busy", failure.retry_after)
                pause = max(pause, min(failure.retry_after, _MAX_BACKOFF))
        await self._pause(pause)
        while not self._budget.take():
            await self._pause(_FIRST_BACKOFF)

    def check(self) -> None:
        """Raises if patience has ended."""
        now = time.monotonic()
        if self._give_up is None:
            self._give_up = now + (self._patience.mid_stream if self.begun else self._patience.before_first_token)
        if now < self._give_up:
            return
        last = self.failures[-1] if self.failures else None
        if isinstance(last, Busy):
            raise Overloaded("all target workers are busy", last.retry_after)
        if last is None:
            raise NoTarget("no target worker is ready")
        log.warning("no target worker can go on: %s", last.message)  # addresses and causes are not for the client
        raise NoTarget("no target worker can go on")

    async def _pause(self, seconds: float) -> None:
        self.check()
        if seconds > 0.0:
            await asyncio.sleep(seconds * random.uniform(0.5, 1.0))
