"""All sessions of a worker, and the one call each may have in flight (docs/wire.md has the rules).

A session is a cache, never the truth: whatever is missing or disagrees is answered with ContextMismatch, and the
gateway sends the context again from 0. Everything here runs on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from basics.names import MAX_UNDER_WAY
from protocol.errors import (
    BadRequest,
    ContextMismatch,
    DeadlineExceeded,
    NotFollowed,
    NotReady,
    StaleRound,
    WireError,
)
from protocol.messages import SequenceRequest
from serving.tasks import let_go
from worker.calls import Call, same_question
from worker.session import Session

S = TypeVar("S")

MOST_HELD = MAX_UNDER_WAY - 1
"""Calls of a session that wait for the verdict before them."""


class SessionTable(Generic[S]):
    """All sessions of a worker, least recently used first, bounded in number and in ids held; and their calls."""

    def __init__(
        self,
        new_state: Callable[[], S],
        on_drop: Callable[[Session[S]], None],
        max_sessions: int,
        max_tokens: int,
        idle_seconds: float = math.inf,
    ) -> None:
        """`on_drop` is called with every session that is deleted, evicted or, unused for `idle_seconds`, expired."""
        self._new_state = new_state
        self._on_drop = on_drop
        self._max_sessions = max_sessions
        self._max_tokens = max_tokens
        self._idle_seconds = idle_seconds
        self._sweep: asyncio.TimerHandle | None = None
        self._sessions: OrderedDict[str, Session[S]] = OrderedDict()
        self._calls: set[Call] = set()
        self.tokens = 0
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, key: str) -> Session[S] | None:
        return self._sessions.get(key)

    async def start(
        self,
        request: SequenceRequest,
        work: Callable[[Session[S]], Coroutine[Any, Any, Any]],
        takes_over: bool = False,
    ) -> Call:
        """Begin `work` on the request's session once its context is read, or join the equal call in flight.

        A call of an older round is cancelled and waited for; with `takes_over`, one of the same round too. One that is
        being cancelled because its callers left is waited for, then `work` begins: a retry may come that early. The
        caller must go on to `result`. Raises StaleRound, ContextMismatch, BadRequest (another request under the same
        round), DeadlineExceeded.
        """
        session = self._session_for(request)
        if request.round < session.latest_round:
            raise StaleRound(f"round {session.latest_round} has been seen", "round")
        session.latest_round = request.round
        give_up = time.monotonic() + request.deadline_ms / 1000
        while (call := session.call) is not None:
            same = call.request.round == request.round and not takes_over
            if same and call.alive:
                if not (same_question(call.request, request) and session.holds(request.context)):
                    raise BadRequest("another request of this round is in flight", "round")
                return call
            call.overtake("a newer call of this session overtook it")
            await asyncio.wait({call.task}, timeout=max(0.0, give_up - time.monotonic()))
            if not call.task.done():
                raise DeadlineExceeded("the session's previous call did not end in time")
            if request.round < session.latest_round:
                raise StaleRound(f"round {session.latest_round} has been seen", "round")
            if session.key is not None and self._sessions.get(session.key) is not session:
                raise ContextMismatch("the session was deleted", "session_id")
        try:
            session.read(request.context)
        except WireError:
            if session.key is not None and not session.ids:
                self._sessions.pop(session.key, None)
            raise
        return self._begin(session, request, work)

    def follow(
        self, request: SequenceRequest, follows: int, work: Callable[[Session[S]], Coroutine[Any, Any, Any]]
    ) -> Call:
        """Hold a call until the session's round `follows` has ended, then begin `work`; the context is not read.

        Nothing is cancelled for it. That round may be one that is held itself: a session holds a chain of calls, each
        of which follows the one before it, MOST_HELD at most. An equal call is joined; another takes the place of what
        follows the same round. The caller must go on to `result`, which raises NotFollowed if the round was not
        answered, or another came after it.
        """
        session = self._sessions.get(request.session_id or "")
        chain = [call for call in session.held if call.alive] if session is not None else []
        for call in (*chain, session.call if session is not None else None):
            if call is not None and call.alive and same_question(call.request, request):
                return call
        rounds = [call.request.round for call in chain]
        length = rounds.index(follows) + 1 if follows in rounds else 0
        known = session is not None and session.cache_salt == request.cache_salt
        if session is None or not known or not (length or session.latest_round == follows):
            raise NotFollowed(f"round {follows} is not the session's latest", "follows")
        if length >= MOST_HELD:
            raise NotFollowed(f"{MOST_HELD} verifications are waiting already", "follows")
        for call in chain[length:]:
            call.end(NotFollowed("another call took its place", "follows"))
        before = chain[length - 1] if length else None
        task = asyncio.get_running_loop().create_task(self._hold(session, request, follows, work, before))
        call = Call(request, task)
        session.held.append(call)
        self._calls.add(call)

        def ended(task: asyncio.Task[Any]) -> None:
            self._calls.discard(call)
            if call in session.held:
                session.held.remove(call)
            let_go(task)

        task.add_done_callback(ended)
        return call

    async def _hold(
        self,
        session: Session[S],
        request: SequenceRequest,
        follows: int,
        work: Callable[[Session[S]], Coroutine[Any, Any, Any]],
        before: Call | None,
    ) -> Any:
        """`before`: the held call whose round it follows."""
        give_up = time.monotonic() + request.deadline_ms / 1000
        while True:
            waits_for = before if before is not None else session.call if session.latest_round == follows else None
            if waits_for is None:
                break
            await asyncio.wait({waits_for.task}, timeout=max(0.0, give_up - time.monotonic()))
            if not waits_for.task.done() or time.monotonic() >= give_up:
                raise DeadlineExceeded("the round that it follows did not end in time", "deadline_ms")
            if before is not None and before.error() is not None:
                raise NotFollowed(f"round {follows} brought no verdict", "follows")
            before = None
            await asyncio.sleep(0)  # a call that has waited for the same goes first
        if self._sessions.get(session.key or "") is not session or session.latest_round != follows:
            raise NotFollowed(f"round {follows} was not the session's last", "follows")
        session.held = [call for call in session.held if call.task is not asyncio.current_task()]
        session.latest_round = request.round
        return await self.result(self._begin(session, request, work))

    async def result(self, call: Call) -> Any:
        """The call's answer. Cancelling the last that waits for it cancels the call. Raises what the work raises.

        If the call was cancelled and the caller was not, a WireError gives the reason.
        """
        call.waiters += 1
        try:
            return await asyncio.shield(call.task)
        except asyncio.CancelledError:
            if call.task.cancelled() and not _is_cancelled():
                raise call.cancelled_by() from None
            raise
        finally:
            self.leave(call)
            del call  # an error's traceback has this frame, and the call has the error: a cycle

    def leave(self, call: Call) -> None:
        """A waiter leaves; the last to leave cancels the call."""
        call.waiters -= 1
        if call.waiters == 0 and not call.task.done():
            call.abandoned = True
            call.task.cancel()

    async def delete(self, key: str, patience: float = 5.0) -> bool:
        """Forget a session; its call in flight is cancelled and waited for. False if there was none."""
        session = self._sessions.pop(key, None)
        if session is None:
            return False
        self._forget(session)
        if session.call is not None:
            call = session.call
            call.overtake("the session was deleted")
            await asyncio.wait({call.task}, timeout=patience)
        return True

    async def close(self, patience: float) -> None:
        """Give running calls `patience` seconds to end, then cancel them: their waiters get NotReady."""
        self._idle_seconds = math.inf
        if self._sweep is not None:
            self._sweep.cancel()
        if self._calls:
            await asyncio.wait([call.task for call in self._calls], timeout=patience)
        if late := list(self._calls):
            for call in late:
                call.end(NotReady("the worker is shutting down"))
            await asyncio.wait([call.task for call in late], timeout=1.0)

    def _session_for(self, request: SequenceRequest) -> Session[S]:
        key = request.session_id
        if key is None:
            return Session(None, request.cache_salt, self._new_state())
        session = self._sessions.get(key)
        if session is not None and session.cache_salt != request.cache_salt:
            if session.call is not None:
                raise BadRequest("the session in flight has another cache_salt", "cache_salt")
            del self._sessions[key]
            self._forget(session)
            session = None
        if session is None:
            session = self._sessions[key] = Session(key, request.cache_salt, self._new_state())
        self._sessions.move_to_end(key)
        self._expire_later()
        return session

    def _begin(
        self, session: Session[S], request: SequenceRequest, work: Callable[[Session[S]], Coroutine[Any, Any, Any]]
    ) -> Call:
        task = asyncio.get_running_loop().create_task(work(session))
        call = session.call = Call(request, task)
        length = len(session.ids)
        self._calls.add(call)
        self._trim()

        def ended(task: asyncio.Task[Any]) -> None:
            self._calls.discard(call)
            session.call = None
            session.used = time.monotonic()
            let_go(task)
            abandoned = task.cancelled() and call.ended_by is None and len(session.ids) == length
            session.answered |= not abandoned
            if session.key is not None and self._sessions.get(session.key) is session:
                self._count(session)
                if not session.answered:
                    # Its only caller left before the first answer and relies on none of it; the session's deletion may
                    # have overtaken this call.
                    self._forget(self._sessions.pop(session.key))
                self._trim()

        task.add_done_callback(ended)
        return call

    def _count(self, session: Session[S]) -> None:
        self.tokens += len(session.ids) - session.counted
        session.counted = len(session.ids)

    def _forget(self, session: Session[S]) -> None:
        self.tokens -= session.counted
        session.counted = 0
        self._on_drop(session)

    def _expire_later(self) -> None:
        if self._sweep is None and self._sessions and self._idle_seconds < math.inf:
            self._sweep = asyncio.get_running_loop().call_later(self._idle_seconds / 4, self._expire)

    def _expire(self) -> None:
        """Forget the sessions that were not used for long: whoever should have deleted them is gone."""
        self._sweep = None
        latest = time.monotonic() - self._idle_seconds
        for key in [key for key, one in self._sessions.items() if one.call is None and one.used <= latest]:
            self._forget(self._sessions.pop(key))
            self.evictions += 1
        self._expire_later()

    def _trim(self) -> None:
        """Evict, least recently used first, what exceeds the bounds; never a session with a call in flight."""
        excess = len(self._sessions) > self._max_sessions or self.tokens > self._max_tokens
        while excess:
            key = next((key for key, session in self._sessions.items() if session.call is None), None)
            if key is None:
                return
            self._forget(self._sessions.pop(key))
            self.evictions += 1
            excess = len(self._sessions) > self._max_sessions or self.tokens > self._max_tokens


def _is_cancelled() -> bool:
    """Whether who runs this is being cancelled itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
