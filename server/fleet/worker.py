"""One worker as the gateway sees it: its client, what it reported of itself, and whether it may be given work."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from basics.breaker import Breaker
from protocol.worker_info import ModelInfo, TokenizerInfo, Translation
from server.fleet.calls import WorkerCalls
from server.fleet.failures import Busy, Refused, SessionLost, WorkerFailure
from server.fleet.metrics import FleetMetrics
from server.fleet.times import DraftTimes, StepTimes

log = logging.getLogger(__name__)

Role = Literal["target", "draft"]
State = Literal["unknown", "ready", "down", "refused"]

_LATELY_SECONDS = 5.0


class Worker:
    """`info` is what the worker reported when it was last probed; it may be given work while `state` is "ready".

    Of a drafter with another vocabulary than the targets' that translates (`translation` says how), `info` is what it
    is in their ids, and `reported` what it said.
    `refused` means that it answers but must not be used (another vocabulary, another model): `detail` has the reason.
    `streams` counts the requests that use it now; the times are those of all of them.
    """

    def __init__(self, role: Role, client: WorkerCalls, breaker: Breaker, metrics: FleetMetrics) -> None:
        self.role: Role = role
        self.client = client
        self.breaker = breaker
        self.info: ModelInfo | None = None
        self.reported: ModelInfo | None = None
        self.translation: Translation | None = None
        self.tokenizer: TokenizerInfo | None = None
        self.state: State = "unknown"
        self.detail = "not reached yet"
        self.streams = 0
        self.step_times = StepTimes(())
        self.draft_times = DraftTimes(())
        self.ahead_times = DraftTimes(())
        self.look_again = asyncio.Event()
        self._last_ready = -math.inf
        self._missing = False
        self._when_missing: set[Callable[[], None]] = set()
        self._metrics = metrics
        metrics.watch_worker(role, self.url, breaker)

    @property
    def url(self) -> str:
        return self.client.url

    @property
    def usable(self) -> bool:
        return self.state == "ready" and self.breaker.available

    @property
    def lately_ready(self) -> bool:
        """It was ready seconds ago, so it may soon be again: a single lost connection marks a worker as down."""
        return time.monotonic() - self._last_ready < _LATELY_SECONDS

    def introduce(self, info: ModelInfo) -> None:
        """Take in what it reports; what was measured with another model is forgotten."""
        if info != self.reported:
            self.info = self.reported = info
            self.translation = None
            self.step_times = StepTimes(info.step_seconds)
            self.draft_times = DraftTimes(info.step_seconds)
            self.ahead_times = DraftTimes(info.step_seconds, like=self.draft_times)

    def translates(self, target: ModelInfo, translation: Translation) -> None:
        """From now on it drafts in the target's ids."""
        assert self.reported is not None
        able = self.reported.capabilities.model_copy(update={"q": translation.q})
        changes = {"vocabulary": target.vocabulary, "stop_token_ids": target.stop_token_ids, "capabilities": able}
        self.info = self.reported.model_copy(update=changes)
        self.translation = translation

    def set_state(self, state: State, detail: str) -> None:
        if (state, detail) != (self.state, self.detail):
            log.log(
                logging.INFO if state in ("ready", "unknown") else logging.WARNING,
                "%s worker %s is %s: %s",
                self.role,
                self.url,
                state,
                detail,
            )
        if self.state == "ready" or state == "ready":
            self._last_ready = time.monotonic()
        self.state, self.detail = state, detail
        self._missing = self._missing and state != "ready"
        self._metrics.up.labels(self.role, self.url).set(state == "ready")

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Counts a stream on this worker."""
        gauge = self._metrics.streams.labels(self.role, self.url)
        self.streams += 1
        gauge.set(self.streams)
        try:
            yield
        finally:
            self.streams -= 1
            gauge.set(self.streams)

    def missed(self, detail: str) -> None:
        """A probe found it down. (A lost connection also marks it as down, until the next probe.)"""
        self.set_state("down", detail)
        self._missing = True
        for notify in list(self._when_missing):
            notify()

    @contextmanager
    def when_missing(self, notify: Callable[[], None]) -> Iterator[None]:
        """Calls `notify` if the worker is, or meanwhile becomes, one that was probed and is down."""
        self._when_missing.add(notify)
        try:
            if self._missing:
                notify()
            yield
        finally:
            self._when_missing.discard(notify)

    @contextmanager
    def judged(self, proves: bool = True) -> Iterator[None]:
        """Around a call that `breaker.allow` let through: its outcome counts for or against the worker.

        `proves`: whether success shows that the worker is well (reading a context shows little about drafting).
        """
        try:
            yield
        except (Refused, Busy, SessionLost):
            self.breaker.release()  # a proper answer, though not a result
            raise
        except WorkerFailure as failure:
            self.failed(failure)
            raise
        except BaseException:
            self.breaker.release()
            raise
        else:
            if proves:
                self.breaker.success()
            else:
                self.breaker.release()

    def failed(self, failure: WorkerFailure) -> None:
        """Count it against the worker; one that could not be reached gets no work until it is probed."""
        log.warning("%s worker %s failed (%s): %s", self.role, self.url, failure.reason, failure.message)
        self.breaker.failure()
        self.count(failure)
        if failure.lost:
            if self.state == "ready":
                self.set_state("down", failure.message)
            self.look_again.set()

    def count(self, failure: WorkerFailure) -> None:
        self._metrics.failures.labels(self.role, self.url, failure.reason).inc()
