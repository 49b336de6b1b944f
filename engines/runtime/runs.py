"""Jobs on their way through the loop: what each waits for, and the pieces of them that make up a pass."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engines.runtime.jobs import Feed, Job, PassTimings, Seat, Steps, Wait
from engines.runtime.plan import SHORT_TOKENS, PromptBudget, split_budget
from engines.runtime.read_once import SharedPrefix
from engines.runtime.rows import Row


class Run:
    """One job. `future` belongs to the event loop that submitted it; all else, once queued, to the loop's thread."""

    def __init__(self, job: Job[Any], deadline: float) -> None:
        self.job = job
        self.deadline = deadline
        self.events = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.events.create_future()
        self.future.add_done_callback(lambda future: future.cancelled() or future.exception())
        self.cancelled = False
        self.ended = False
        self.awaits: SharedPrefix | None = None
        self.seat: Seat | None = None
        self.steps: Steps[Any] | None = None
        self.feed: Feed | None = None
        self.goes_on = False
        """It has been fed before, and asks for more."""
        self.wait: Wait | None = None
        self.fed = 0
        self.tokens = 0
        """In the last pass that ended a feed."""
        self.since = time.monotonic()
        self.forward_seconds = 0.0
        self.sample_seconds = 0.0

    def take(self, step: Feed | Wait) -> None:
        """What the job wants next. Its first feed counts as waiting since the job was submitted."""
        if self.feed is not None or self.wait is not None:
            self.goes_on = True
            self.since = time.monotonic()
        self.feed, self.wait = (step, None) if isinstance(step, Feed) else (None, step)
        self.fed = 0
        self.forward_seconds = self.sample_seconds = 0.0

    @property
    def context_left(self) -> int:
        """Tokens of the feed that may still go in chunks."""
        return self.feed.divisible - self.fed if self.feed is not None else 0

    @property
    def tokens_left(self) -> int:
        """Tokens of the feed."""
        return len(self.feed.token_ids) - self.fed if self.feed is not None else 0

    @property
    def held(self) -> int:
        """Tokens that its slot holds."""
        return self.seat.length if self.seat is not None else 0

    @property
    def reads_to(self) -> int:
        """Tokens that its slot will hold once what may go in chunks is fed."""
        return self.held + self.context_left

    def timings(self, rows: int, sessions: int) -> PassTimings:
        total = time.monotonic() - self.since
        queue = max(0.0, total - self.forward_seconds - self.sample_seconds)
        forward, sample = self.forward_seconds, self.sample_seconds
        return PassTimings(queue * 1e3, forward * 1e3, sample * 1e3, total * 1e3, rows, sessions)


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A run's part of a pass; `whole` if nothing of its feed is left to feed after it."""

    run: Run
    feed: Feed
    seat: Seat
    row: Row
    is_prompt: bool
    whole: bool


def plan(active: Sequence[Run], pace: PromptBudget, turn: int) -> list[Piece]:
    """The next pass. `turn` rotates who comes first if the budget does not reach all long prompts.

    Idle jobs are in a pass of their own, once no other job feeds.
    """
    feeding = [run for run in active if run.feed is not None]
    serving = [run for run in feeding if not run.job.idle]
    feeding = serving or feeding
    short = [run for run in feeding if run.context_left <= SHORT_TOKENS]
    if serving:
        short = _first_come(short, pace.enough)
    long = [run for run in feeding if run.context_left > SHORT_TOKENS]
    pieces = [_piece(run, run.context_left, is_prompt=False) for run in short]
    if long:
        first = turn % len(long)
        long = long[first:] + long[:first]
        shares = split_budget([run.context_left for run in long], pace.budget(streams=bool(short)))
        pieces += [_piece(run, share, is_prompt=True) for run, share in zip(long, shares, strict=True) if share]
    return pieces


def _first_come(runs: Sequence[Run], enough: float) -> list[Run]:
    """Those that go on, and of the others, first come, first served, as many as bring `enough` tokens; one at least."""
    if enough == math.inf:
        return list(runs)
    taken = [run for run in runs if run.goes_on]
    tokens = sum(run.tokens_left for run in taken)
    new = sorted((run for run in runs if not run.goes_on), key=lambda run: run.since)
    for place, run in enumerate(new):
        if place and tokens >= enough:
            break
        taken.append(run)
        tokens += run.tokens_left
    return taken


def _piece(run: Run, context_tokens: int, is_prompt: bool) -> Piece:
    feed, seat, fed = run.feed, run.seat, run.fed
    assert feed is not None
    assert seat is not None
    start = seat.length if feed.start is None else feed.start
    prompt = max(0, run.job.prompt - start)
    if context_tokens < run.context_left:
        token_ids = feed.token_ids[fed : fed + context_tokens]
        row = Row(seat.slot.index, start, token_ids, None, len(token_ids), min(prompt, len(token_ids)))
        return Piece(run, feed, seat, row, is_prompt, False)
    parents = feed.parents
    if parents is not None:
        parents = [max(parent - fed, -1) for parent in parents[fed:]]
    token_ids = feed.token_ids[fed:]
    row = Row(seat.slot.index, start, token_ids, parents, feed.logits_from - fed, min(prompt, len(token_ids)))
    return Piece(run, feed, seat, row, is_prompt, True)
