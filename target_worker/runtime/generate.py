"""Plain decoding inside the engine: each token is sent as soon as it is drawn, or with those drawn shortly after it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from engines.channel import Channel
from engines.drawing import Limits, RequestSampling
from engines.runtime.jobs import Feed, Job, Seat, Steps, Wait, prompt_of
from protocol.messages import GenerateRequest, TokenLogprob, VerifyResponse, VerifyTimings
from target_worker.logprobs import reported_logprobs
from target_worker.runtime.verify import timings
from target_worker.strategies.verdicts import Cut, cut_after_stop
from target_worker.verification import respond

if TYPE_CHECKING:
    from engines.grammar.state import GrammarState


def generate_job(
    request: GenerateRequest,
    ids: list[int],
    owner: int | None,
    limits: Limits,
    rounds: Channel[VerifyResponse],
    emitted: list[int],
    stall_seconds: float,
    grammar: GrammarState | None = None,
    gather_seconds: float = 0.0,
) -> Job[None]:
    """The job that puts a checked request's rounds into `rounds` and their tokens into `emitted`, which is empty.

    It fails if the rounds stay unread for `stall_seconds`. `gather_seconds`: see `Gathered`.
    """

    def steps(seat: Seat) -> Steps[None]:
        drawing = RequestSampling(request, ids, limits, grammar)
        gathered = Gathered(request, rounds, gather_seconds)
        feed = ids[seat.length :]
        try:
            while True:
                if not rounds.has_room():
                    yield Wait(rounds.has_room, stall_seconds)
                next_place = drawing.after([emitted])
                root = len(feed) - 1
                passed = yield Feed(feed, root, rows=next_place.rows, allowed=next_place.allowed, divisible=root)
                assert passed is not None
                token = passed.drawn.tokens[0]
                cut = cut_after_stop([token], 0, drawing.stops, drawing.room - len(emitted))
                emitted.append(token)
                logprobs = None
                if request.logprobs is not None:
                    logprobs = reported_logprobs(passed.logits, [token], request.logprobs)
                gathered.add(cut, logprobs, seat.cached_tokens, timings(passed.timings, 0.0))
                if cut.stop_reason is not None:
                    return
                feed = [token]
        finally:
            gathered.send()  # what was drawn before an error, too

    return Job(ids, request.cache_salt, owner, len(ids) - 1, steps, prompt=prompt_of(request))


class Gathered:
    """Tokens on their way out, in rounds of as many as come without one of them being held for more than `seconds`.

    A round costs worker, gateway and client more than a millisecond of computing, taken from the cores that a model on
    a CPU needs itself: more than a tenth of a small one's token. The first token is sent at once; whether the next
    would come in time is told by the time that the last one took.
    """

    def __init__(
        self,
        request: GenerateRequest,
        rounds: Channel[VerifyResponse],
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._request = request
        self._rounds = rounds
        self._seconds = seconds
        self._clock = clock
        self._drawn = self._first = -float("inf")
        self._waiting: list[tuple[Cut, list[TokenLogprob] | None, int, VerifyTimings]] = []

    def add(self, cut: Cut, logprobs: list[TokenLogprob] | None, cached_tokens: int, took: VerifyTimings) -> None:
        """One token, drawn just now."""
        self._waiting.append((cut, logprobs, cached_tokens, took))
        now = self._clock()
        step, self._drawn = now - self._drawn, now
        if len(self._waiting) == 1:
            self._first = now
        if cut.stop_reason is not None or now + step - self._first > self._seconds:
            self.send()

    def send(self) -> None:
        """What waits, as one round."""
        if not self._waiting:
            return
        cuts, logprobs, cached, times = zip(*self._waiting, strict=True)
        self._waiting = []
        answer = respond(
            self._request,
            replace(cuts[-1], token_ids=[token_id for cut in cuts for token_id in cut.token_ids]),
            logprobs=[entry for entries in logprobs for entry in entries or ()] if logprobs[0] is not None else None,
            cached_tokens=cached[0],
            timings=_together(times) if len(times) > 1 else times[0],
        )
        self._rounds.put(answer)


def _together(times: tuple[VerifyTimings, ...]) -> VerifyTimings:
    """Of several passes one after another; rows and sessions are the last one's."""
    return times[-1].model_copy(
        update={
            name: sum(getattr(one, name) for one in times)
            for name in ("queue_ms", "forward_ms", "sample_ms", "total_ms")
        }
    )
