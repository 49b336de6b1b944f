"""A verification that is sent while the one before it is under way (docs/lookahead.md)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from protocol.messages import Alternative, VerifyRequest, VerifyResponse
from server.fleet.checks import check_verify
from server.fleet.failures import BadAnswer, WorkerFailure
from server.rounds.context import RequestContext, WorkerSession
from server.rounds.draft import Draft
from server.rounds.draft_side import DraftSide
from server.rounds.padded_rows import cut

log = logging.getLogger(__name__)

Prepare = Callable[[], Awaitable[list[Alternative]]]
"""What the verdict under way may be, each with its draft; none if there is nothing to send. Never raises."""


def preparing(
    drafts: DraftSide, until: float, least: int, most: int, drafting: asyncio.Task[Draft] | None = None
) -> Prepare:
    """Asks the draft worker once `drafting` is over, and waits until then at most; drafts of `least` to `most` tokens.

    `until` is on time.perf_counter's clock.
    """

    async def prepare() -> list[Alternative]:
        if drafting is not None:
            await asyncio.wait({drafting})
        found = await drafts.prepared(until - time.perf_counter())
        return [
            Alternative(token_ids=one.token_ids, candidate=cut(one.candidate, most))
            for one in (prepared.alternative for prepared in found if prepared.at_least(least))
        ]

    return prepare


class Flight:
    """What follows the session's round under way: sent once it is prepared, held by the target until that verdict.

    Whatever fails here costs what was to be gained: an ordinary round does the same.
    """

    def __init__(
        self,
        context: RequestContext,
        session: WorkerSession,
        prepare: Prepare,
        max_tokens: int,
        seconds: float,
        vocabulary_size: int,
    ) -> None:
        self._context = context
        self.session = session
        self._length = len(context.sequence)
        self._follows = session.round
        self._max_tokens = max_tokens
        self._seconds = seconds
        self._vocabulary_size = vocabulary_size
        self._message: VerifyRequest | None = None
        self._task = context.background.start(self._send(prepare))

    @property
    def sent(self) -> bool:
        return self._message is not None

    def alternative(self) -> Alternative | None:
        """The one that came true: to be asked when the verdict has been appended to the sequence, and nothing else."""
        came = self._context.sequence.since(self._length)
        alternatives = self._message.alternatives if self._message is not None else []
        return next((one for one in alternatives if one.token_ids == came), None)

    async def answer(self, alternative: Alternative) -> VerifyResponse | None:
        """The verdict on the alternative that came true; None if the target has none to give."""
        await asyncio.wait({self._task})
        failed = self._task.cancelled() or self._task.exception() is not None  # the task's owner logs the reason
        answer = self._task.result() if not failed else None
        asked = self._message.following(alternative) if self._message is not None else None
        if answer is None or asked is None or self._message is None:
            return None
        try:
            if answer.candidate != self._message.alternatives.index(alternative):
                raise BadAnswer("follows an alternative that did not come true")
            answer = answer.model_copy(update={"candidate": 0})
            check_verify(asked, answer, self._vocabulary_size)
        except BadAnswer as failure:
            self.session.worker.failed(failure)
            return None
        return answer

    def cancel(self) -> None:
        """End it: the request is over, or the call that it follows has failed."""
        self._task.cancel()

    async def _send(self, prepare: Prepare) -> VerifyResponse | None:
        alternatives = await prepare()
        request, session = self._context.request, self.session
        if not alternatives or len(self._context.sequence) != self._length or session.round != self._follows:
            return None  # the verdict is there already
        session.round += 1
        fields = session.fields(self._max_tokens, self._seconds)
        self._message = VerifyRequest(
            **{**fields, "context": self._context.sequence.context(self._length)},
            follows=self._follows,
            alternatives=alternatives,
            strategy=request.speculation.strategy,
            acceptance_threshold=request.speculation.acceptance_threshold,
            logprobs=request.logprobs,
            log_decisions=request.log_decisions,
        )
        try:
            return await session.worker.client.verify(self._message, self._seconds, self._vocabulary_size)
        except WorkerFailure as failure:
            log.debug("round %d was not verified ahead: %s", self._message.round, failure.message)
            return None
