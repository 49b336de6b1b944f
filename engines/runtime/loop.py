"""The loop that owns a model: each tick gathers whatever waits into one forward pass (continuous batching).

Jobs wait for a slot in a bounded queue, then run as generators (engines/runtime/jobs.py). A tick admits jobs, plans a
pass, runs it, draws tokens for all of it at once and lets each job take its next step. What goes wrong with one job is
answered to that job alone.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from engines.running_model import OnPass
from engines.runtime.jobs import Job, Passed, Seat
from engines.runtime.passes import Passes
from engines.runtime.plan import PromptBudget
from engines.runtime.returns import Returns
from engines.runtime.runner import Chains, ModelRunner
from engines.runtime.runs import Piece, Run, plan
from engines.runtime.slots import SlotCache
from engines.runtime.waiting import Waiting
from protocol.errors import DeadlineExceeded, EngineFailure, NotReady, QueueFull, WireError

logger = logging.getLogger(__name__)
T = TypeVar("T")

_POLL_SECONDS = 0.02
"""How often deadlines, held slots and waiting jobs are looked at while nothing can be fed."""
_END_TIMEOUT_SECONDS = 30.0


class EngineLoop:
    """One thread, one model. `start` it, `run` jobs on it from an event loop, `shutdown` when done."""

    def __init__(
        self,
        runner: ModelRunner,
        slots: SlotCache,
        max_queue: int,
        prefill_chunk: int,
        on_pass: OnPass = lambda sessions, tokens, seconds: None,
        chains: Chains | None = None,
        on_death: Callable[[str], None] = lambda reason: None,
        step_seconds: Mapping[int, float] | None = None,
    ) -> None:
        """`prefill_chunk` is the most prompt tokens a pass carries; `chains` and `on_pass`: engines.runtime.passes.

        `on_death(reason)` is called if the loop itself failed and serves no more. With `step_seconds`, what passes take
        by tokens, a pass may wait for sessions that are about to come back (engines/runtime/returns.py).
        """
        self._runner = runner
        self.slots = slots
        self._pace = PromptBudget(prefill_chunk, step_seconds)
        self._passes = Passes(runner, chains, self._pace, on_pass)
        self.draws_chains = chains is not None
        self.chains_apart = chains.apart if chains is not None else 0
        self.longest_apart = chains.longest_apart if chains is not None else 0
        self._on_death = on_death
        self._returns = Returns(self._pace.passes) if step_seconds else None
        self._turn = 0
        self._waiting = Waiting(slots, max_queue)
        self._active: list[Run] = []
        self._disowned: deque[int] = deque()
        self._closing = self._aborting = False
        self._signalled = False
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._main, name="tandem-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def running(self) -> int:
        """Jobs on a slot, without idle ones."""
        return sum(not run.ended and not run.job.idle for run in self._active)

    @property
    def waiting(self) -> int:
        """Jobs without one, idle ones left out."""
        return sum(not run.ended and not run.job.idle for run in self._waiting)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    async def run(self, job: Job[T], deadline: float) -> T:
        """The job's result. `deadline` is on time.monotonic's clock, inf for none.

        Cancelling takes effect by the next tick. When this returns or raises, nothing of the job runs any more, so that
        its ids may be changed. Raises QueueFull and NotReady before any work, DeadlineExceeded, EngineFailure, and
        whatever WireError the job raises.
        """
        if time.monotonic() >= deadline:
            raise _too_late()
        run = self._submit(job, deadline)
        try:
            async with asyncio.timeout(None if deadline == float("inf") else max(0.0, deadline - time.monotonic())):
                result: T = await asyncio.shield(run.future)
                return result
        except TimeoutError:
            raise _too_late() from None
        finally:
            if not run.future.done():
                run.cancelled = True
                self.wake()
                await _ended(run.future)
            del run  # an error's traceback has this frame, and the run's future has the error: a cycle

    def disown(self, owner: int) -> None:
        """The session with this serial is gone: its slot is free for others."""
        self._disowned.append(owner)
        self.wake()

    def wake(self) -> None:
        """Have the loop look again: something that a job waits for may have happened."""
        with self._wake:
            self._signalled = True
            self._wake.notify()

    def shutdown(self, timeout: float) -> None:
        """Take no more jobs, give those there are `timeout` seconds, then fail what is left and stop the thread."""
        with self._wake:
            self._closing = True
        self.wake()
        if self._thread.ident is not None:
            self._thread.join(timeout)
            self._aborting = True
            self.wake()
            self._thread.join(_END_TIMEOUT_SECONDS)

    def _submit(self, job: Job[Any], deadline: float) -> Run:
        run = Run(job, deadline)
        with self._wake:
            if self._closing:
                raise NotReady("the worker is shutting down")
            self._waiting.submit(run)
        run.events.call_soon(self._hand_over)
        return run

    def _hand_over(self) -> None:
        self._waiting.hand_over()
        self.wake()

    # What follows runs on the loop's own thread.

    def _main(self) -> None:
        try:
            # Draws and verdicts run on torch, whatever computes the logits.
            with torch.inference_mode():
                while self._tick():
                    pass
        except Exception:
            logger.exception("the engine's loop failed")
            self._on_death("the engine's loop failed")
        finally:
            with self._wake:
                self._closing = True
                left = [*self._waiting, *self._active]
            for run in left:
                self._end(run, NotReady("the worker has shut down"))

    def _tick(self) -> bool:
        """Do what there is to do, or wait for something. False when the loop is to end."""
        self._drop()
        self._admit()
        self._resume()
        pieces = plan(self._active, self._pace, self._turn)
        if pieces and self._others_awaited(pieces):
            return True
        if pieces:
            self._turn += 1
            for run, outcome in self._passes.run(pieces):
                if isinstance(outcome, EngineFailure):
                    self._end(run, outcome)
                else:
                    self._step(run, outcome)
            self._active = [run for run in self._active if not run.ended]
            return True
        with self._wake:
            busy = bool(self._active) or self._waiting.queued
            if self._closing and not busy and (self._aborting or not self._waiting.submitted):
                return False
            if not self._signalled:
                self._wake.wait(_POLL_SECONDS if busy else None)
            self._signalled = False
        return True

    def _others_awaited(self, pieces: Sequence[Piece]) -> bool:
        """Waits a moment if others that are about to come should share the pass; it has to be planned anew then."""
        if self._returns is None:
            return False
        if not any(piece.is_prompt or piece.run.job.idle for piece in pieces):
            seconds = self._returns.wait(time.monotonic(), len(pieces))
            if seconds > 0.0:
                with self._wake:
                    if not self._signalled:
                        self._wake.wait(seconds)
                    self._signalled = False
                return True
        self._returns.passed()
        return False

    def _drop(self) -> None:
        """End what was cancelled or is past its deadline, waiting or running."""
        now = time.monotonic()
        for run in [*self._waiting, *self._active]:
            if run.cancelled:
                self._end(run)
            elif self._aborting:
                self._end(run, NotReady("the worker is shutting down"))
            elif now >= run.deadline:
                self._end(run, _too_late())
            elif run.job.idle and (self._closing or (run.seat is None and not self.slots.owns(run.job.owner))):
                self._end(run, QueueFull("there is other work"))
        self._waiting.forget_ended()
        self._active = [run for run in self._active if not run.ended]

    def _admit(self) -> None:
        """Begin the jobs for which there is a slot."""
        while self._disowned:
            owner = self._disowned.popleft()
            self.slots.disown(owner)
            if self._returns is not None:
                self._returns.forget(owner)
        self._seat()
        if self._waiting.wants_slot and (idle := [run for run in self._active if run.job.idle]):
            for run in idle:
                self._end(run, QueueFull("there is other work"))
            self._active = [run for run in self._active if not run.ended]
            self._seat()

    def _seat(self) -> None:
        for run, slot in self._waiting.admit(self._active):
            self._active.append(run)
            if self._returns is not None and run.job.owner is not None and not run.job.idle:
                self._returns.came(run.job.owner, run.since)
            run.seat = Seat(slot, self._runner)
            run.steps = run.job.steps(run.seat)
            self._step(run, None)

    def _resume(self) -> None:
        """Continue jobs that waited for something other than the model."""
        now = time.monotonic()
        for run in self._active:
            if run.wait is None or run.ended:
                continue
            if run.wait.ready():
                self._step(run, None)
            elif now - run.since >= run.wait.timeout:
                self._end(run, DeadlineExceeded("the stream was left unread for too long"))
        self._active = [run for run in self._active if not run.ended]

    def _step(self, run: Run, value: Passed | None) -> None:
        """Let a job go on to its next feed, its end or its error."""
        assert run.steps is not None
        try:
            step = run.steps.send(value)
        except StopIteration as stop:
            self._end(run, result=stop.value)
        except WireError as error:
            self._end(run, error.with_traceback(None))  # else it would have this frame, and the run its future
        except Exception:
            logger.exception("a job failed")
            self._end(run, EngineFailure("the engine could not serve this request"))
        else:
            run.take(step)

    def _end(self, run: Run, error: WireError | None = None, result: Any = None) -> None:
        """Free the job's slot and resolve what its caller awaits."""
        if run.ended:
            return
        run.ended = True
        if self._returns is not None and error is None and run.job.owner is not None and not run.job.idle:
            self._returns.left(run.job.owner, time.monotonic(), run.tokens)
        run.feed = run.wait = None
        if run.steps is not None:
            run.steps.close()
        if run.seat is not None:
            self.slots.release(run.seat.slot, was_idle=run.job.idle)
        if not run.events.is_closed():
            run.events.call_soon_threadsafe(_resolve, run.future, error, result)


def _resolve(future: asyncio.Future[Any], error: WireError | None, result: Any) -> None:
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


def _too_late() -> DeadlineExceeded:
    return DeadlineExceeded("the deadline passed before the work was done", "deadline_ms")


async def _ended(future: asyncio.Future[Any]) -> None:
    """Wait for the loop to let go of a job, however often the waiting is cancelled; bounded, as a pass might hang."""
    give_up = time.monotonic() + _END_TIMEOUT_SECONDS
    while not future.done() and (left := give_up - time.monotonic()) > 0:
        try:
            await asyncio.wait({future}, timeout=left)
        except asyncio.CancelledError:
            continue
