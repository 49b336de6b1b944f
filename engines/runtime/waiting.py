"""Jobs on their way to a slot: submitted on the event loop, admitted by the engine's thread."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence

from engines.runtime.read_once import worth_waiting_for
from engines.runtime.runs import Run
from engines.runtime.slots import Slot, SlotCache
from protocol.errors import QueueFull


class Waiting:
    """First come, first served, but for sessions that have their slot, and jobs that await what another one reads."""

    def __init__(self, slots: SlotCache, most: int) -> None:
        """At most `most` jobs wait for a slot."""
        self._slots = slots
        self._most = most
        self._submitted: list[Run] = []
        self._queue: deque[Run] = deque()
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[Run]:
        """All of them, as they are now. From any thread."""
        with self._lock:
            return iter([*self._submitted, *self._queue])

    @property
    def submitted(self) -> bool:
        """Whether jobs are still to be handed over."""
        return bool(self._submitted)

    @property
    def queued(self) -> bool:
        return bool(self._queue)

    @property
    def wants_slot(self) -> bool:
        """Whether a job with a caller needs only a slot to begin."""
        return any(not run.job.idle and run.awaits is None and not run.ended for run in self._queue)

    def submit(self, run: Run) -> None:
        """On the event loop, which is to call `hand_over` once its turn ends. Raises QueueFull."""
        with self._lock:
            # A slot is kept for each job that awaits a prefix, so there are no more of these than slots.
            waiting = sum(queued.awaits is None for queued in self._queue if not queued.job.idle)
            # Jobs just submitted that will find a free slot do not count as waiting.
            submitted = sum(not queued.job.idle for queued in self._submitted)
            waiting += max(0, submitted - self._slots.available)
            if (waiting >= self._most or run.job.idle) and not self._slots.owns(run.job.owner):
                raise QueueFull(f"{waiting} requests are waiting already")
            self._submitted.append(run)

    def hand_over(self) -> None:
        """Queue what was submitted in one turn of the event loop, all at once.

        So the jobs of one batch call share a pass: if each were queued as it comes, a pass could begin with the first
        ones only.
        """
        with self._lock:
            self._queue.extend(run for run in self._submitted if not run.ended)
            self._submitted.clear()

    # What follows is for the engine's thread.

    def forget_ended(self) -> None:
        with self._lock:
            self._queue = deque(run for run in self._queue if not run.ended)

    def admit(self, active: Sequence[Run]) -> Iterator[tuple[Run, Slot]]:
        """Each job that gets a slot, with it; to be begun, and added to `active`, before the next is asked for.

        A job that awaits a prefix keeps its place: those behind it leave a slot for it. Of those that have waited one
        a tick goes on, as running streams would stall while a long prefix is copied for all of them.
        """
        now = time.monotonic()
        kept = 0
        copied = False
        for run in tuple(self._queue):
            if run.cancelled or now >= run.deadline:
                continue  # The loop's next tick ends it.
            waited = run.awaits is not None
            if (waited and copied) or self._awaits_prefix(run, active, kept):
                kept += 1
                continue
            job = run.job
            slot = self._slots.acquire(job.ids, job.salt, job.owner, job.usable, kept, job.prompt)
            if slot is None:
                continue
            copied |= waited
            with self._lock:
                self._queue.remove(run)
            yield run, slot

    def _awaits_prefix(self, run: Run, active: Sequence[Run], kept: int) -> bool:
        """Whether a job that could have a slot should rather wait for what a running one reads."""
        if run.awaits is not None and run.awaits.goes_on:
            return True
        run.awaits = None
        if not self._slots.owns(run.job.owner) and self._slots.available > kept:
            run.awaits = worth_waiting_for(run.job, active, self._slots)
        return run.awaits is not None
