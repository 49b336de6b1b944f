"""Plain decoding inside the engine: a token a round, each round sent as soon as it is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engines.channel import Channel
from engines.drawing import Limits, RequestSampling
from engines.runtime.jobs import Feed, Job, Seat, Steps, Wait
from protocol.messages import GenerateRequest, VerifyResponse
from target_worker.logprobs import reported_logprobs
from target_worker.runtime.verify import timings
from target_worker.strategies.verdicts import cut_after_stop
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
) -> Job[None]:
    """The job that puts a checked request's rounds into `rounds` and their tokens into `emitted`, which is empty.

    It fails if the rounds stay unread for `stall_seconds`.
    """

    def steps(seat: Seat) -> Steps[None]:
        drawing = RequestSampling(request, ids, limits, grammar)
        feed = ids[seat.length :]
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
            took = timings(passed.timings, 0.0)
            rounds.put(respond(request, cut, logprobs=logprobs, cached_tokens=seat.cached_tokens, timings=took))
            if cut.stop_reason is not None:
                return
            feed = [token]

    return Job(ids, request.cache_salt, owner, len(ids) - 1, steps)
