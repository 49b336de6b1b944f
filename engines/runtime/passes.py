"""Runs the pieces that a tick planned: by static passes if those will do, by an ordinary one for the rest."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator

from engines.running_model import OnPass
from engines.runtime.chained import Chained, draw_chains, is_chain, is_context, read_contexts, shortened
from engines.runtime.jobs import Passed
from engines.runtime.plan import PromptBudget
from engines.runtime.runner import Chains, ModelRunner
from engines.runtime.runs import Piece, Run
from engines.sampling.batch import draw_batch
from protocol.errors import EngineFailure

logger = logging.getLogger(__name__)

StaticWork = Callable[[Chains, list[Piece]], Chained]
RunOutcome = tuple[Run, Passed | EngineFailure]


class Passes:
    """Runs pieces on one model, draws for all of them at once, and keeps account of what slots hold and of time."""

    def __init__(self, runner: ModelRunner, chains: Chains | None, pace: PromptBudget, on_pass: OnPass) -> None:
        """`chains`, over the same model and memory, draws the feeds that may be drawn as one; None: token by token."""
        self._runner = runner
        self._chains = chains
        self._pace = pace
        self._on_pass = on_pass

    def run(self, pieces: list[Piece]) -> Iterator[RunOutcome]:
        """The outcome of each run whose feed is done, pass by pass. Never raises: a failure is an outcome too."""
        if self._chains is not None:
            pieces = shortened(self._chains, pieces)
            chained = [piece for piece in pieces if is_chain(self._chains, piece)]
            contexts = [piece for piece in pieces if is_context(piece)]
            pieces = [piece for piece in pieces if piece not in chained and piece not in contexts]
            yield from self._static(draw_chains, self._chains, chained)
            yield from self._static(read_contexts, self._chains, contexts)
        yield from self._ordinary(pieces)

    def _static(self, work: StaticWork, chains: Chains, pieces: list[Piece]) -> Iterator[RunOutcome]:
        """The work that these pieces need in place of an ordinary pass."""
        if not pieces:
            return
        try:
            done = work(chains, pieces)
        except Exception:
            logger.exception("a static pass failed")
            yield from _failed(pieces)
            return
        self._note(done.fed, done.seconds, 0.0)
        for piece, passed in done.results():
            yield piece.run, passed

    def _ordinary(self, pieces: list[Piece]) -> Iterator[RunOutcome]:
        if not pieces:
            return
        began = time.perf_counter()
        try:
            logits = self._runner.forward([piece.row for piece in pieces])
        except Exception:
            logger.exception("a forward pass failed")
            yield from _failed(pieces)
            return
        forwarded = time.perf_counter()
        whole = [(piece, rows) for piece, rows in zip(pieces, logits, strict=True) if piece.whole]
        drawing = [(rows, piece.feed) for piece, rows in whole if piece.feed.rows]
        drawn = iter(draw_batch(drawing))
        sampled = time.perf_counter()
        self._note(pieces, forwarded - began, sampled - forwarded)
        tokens = sum(len(piece.row.token_ids) for piece in pieces)
        for piece, rows in whole:
            draws = next(drawn) if piece.feed.rows else None
            if isinstance(draws, EngineFailure):
                yield piece.run, draws
            else:
                yield piece.run, Passed(rows, draws, piece.run.timings(tokens, len(pieces)))

    def _note(self, pieces: list[Piece], forward: float, sample: float) -> None:
        """Keep account of what each slot holds now, and of the time it took."""
        for piece in pieces:
            run, row = piece.run, piece.row
            piece.seat.slot.note_read(row.start, row.prompt)
            if row.parents is None:
                piece.seat.slot.ids.extend(row.token_ids)
            else:
                # The pass used the slot's memory from `start` on as scratch.
                del piece.seat.slot.ids[row.start :]
                piece.seat.fed_tree(piece.feed, run.fed)
            run.fed += len(row.token_ids)
            run.forward_seconds += forward
            if piece.whole:
                run.tokens = len(row.token_ids)
                run.sample_seconds += sample
        tokens = sum(len(piece.row.token_ids) for piece in pieces)
        prompt = sum(len(piece.row.token_ids) for piece in pieces if piece.is_prompt)
        if not all(piece.run.job.idle for piece in pieces):
            self._pace.record(forward, tokens - prompt, prompt)
        self._on_pass(len(pieces), tokens, forward)


def _failed(pieces: list[Piece]) -> Iterator[RunOutcome]:
    for piece in pieces:
        yield piece.run, EngineFailure("the forward pass failed")
