"""One session: the token ids that a worker has seen of a sequence, and how a request's context becomes them."""

from __future__ import annotations

import itertools
import logging
import time
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from basics.prefix import shared_prefix
from protocol.errors import BadRequest, ContextMismatch
from protocol.hashing import PrefixHashes
from protocol.messages import Context, DraftTimings, VerifyTimings
from serving.request_id import REQUEST_ID
from worker.calls import Call

S = TypeVar("S")

logger = logging.getLogger(__name__)
_serials = itertools.count(1)


@dataclass(slots=True)
class Account:
    """What a worker did for one session; one line of the log when the session is dropped.

    Times are milliseconds, summed over the session's rounds. `request_id` is the latest call's.
    """

    request_id: str = ""
    rounds: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    queue_ms: float = 0.0
    forward_ms: float = 0.0
    sample_ms: float = 0.0
    total_ms: float = 0.0

    def add(self, timings: DraftTimings | VerifyTimings, tokens: int = 0, drafted: int = 0, accepted: int = 0) -> None:
        """One round that was answered, from within the call that asked for it."""
        self.request_id = REQUEST_ID.get() or self.request_id
        self.rounds += 1
        self.tokens += tokens
        self.drafted += drafted
        self.accepted += accepted
        self.queue_ms += timings.queue_ms
        self.forward_ms += timings.forward_ms
        self.sample_ms += timings.sample_ms
        self.total_ms += timings.total_ms

    def log(self, role: str, session_id: str | None) -> None:
        """Write the line, unless nothing was done for the session."""
        if not self.rounds:
            return
        fields: dict[str, object] = {"session_id": session_id, "rounds": self.rounds, "drafted": self.drafted}
        if role == "target":
            fields |= {"tokens": self.tokens, "accepted": self.accepted}
        phases = {name: round(getattr(self, name), 1) for name in ("queue_ms", "forward_ms", "sample_ms", "total_ms")}
        logger.info("session done", extra={"request_id": self.request_id, **fields, **phases})


@dataclass(eq=False)
class Session(Generic[S]):
    """What a worker holds of one sequence.

    `ids` are all that it has seen or emitted, changed in place; `state` is the worker's own. `serial` is unique among
    all sessions of the process, unlike `key`, which a deleted session's successor may carry again.
    """

    key: str | None
    cache_salt: str | None
    state: S
    ids: list[int] = field(default_factory=list)
    hashes: PrefixHashes = field(init=False)
    latest_round: int = -1
    call: Call | None = None
    held: list[Call] = field(default_factory=list)
    """Those that wait: the first for the verdict of `call`, each other one for that of the one before it."""

    counted: int = 0
    used: float = field(default_factory=time.monotonic)
    answered: bool = False
    account: Account = field(default_factory=Account)
    _settled: dict[str, int] = field(default_factory=dict)
    serial: int = field(default_factory=lambda: next(_serials))

    def __post_init__(self) -> None:
        self.hashes = PrefixHashes(self.cache_salt)

    def read(self, context: Context) -> None:
        """Make `ids` the context's. Raises ContextMismatch if its prefix is not held, BadRequest if it is empty.

        O(new and dropped ids), but for the comparison of ids sent again.
        """
        start, token_ids = context.start, context.token_ids
        if start > len(self.ids):
            raise ContextMismatch(f"{len(self.ids)} tokens are held, the context starts at {start}", "context.start")
        if self.hashes.at(start) != context.prefix_hash:
            if start == 0:
                raise BadRequest("is not the hash of an empty prefix under this cache_salt", "context.prefix_hash")
            raise ContextMismatch(f"the first {start} tokens held are different", "context.prefix_hash")
        same = shared_prefix(self.ids, token_ids, start)
        kept = start + same
        del self.ids[kept:]
        self.hashes.truncate(kept)
        for who, length in self._settled.items():
            self._settled[who] = min(length, kept)
        self.emit(token_ids[same:])

    def holds(self, context: Context) -> bool:
        """Whether `ids` are the context's already, no more and no less."""
        start, token_ids = context.start, context.token_ids
        if start + len(token_ids) != len(self.ids) or self.hashes.at(start) != context.prefix_hash:
            return False
        return shared_prefix(self.ids, token_ids, start) == len(token_ids)

    def came_after(self, context: Context) -> list[int] | None:
        """The ids held beyond a context that is all before its `start`; None if that is not held."""
        if context.start > len(self.ids) or self.hashes.at(context.start) != context.prefix_hash:
            return None
        return self.ids[context.start :]

    def settle(self, who: str) -> int:
        """How many leading ids are unchanged since the last `settle` of `who`: what it derived from them is valid."""
        unchanged, self._settled[who] = self._settled.get(who, 0), len(self.ids)
        return unchanged

    def supposing(self, length: int, token_ids: list[int], state: S) -> Session[S]:
        """A stand-in for this session as it would be after its first `length` ids and these, with a state of its own.

        What is settled with it is not settled with this one. It can't be read into: it has no hashes.
        """
        ids = self.ids[:length]
        ids += token_ids
        found = Session(self.key, self.cache_salt, state, ids, serial=self.serial)
        found._settled = {who: min(settled, length) for who, settled in self._settled.items()}
        return found

    def emit(self, token_ids: list[int]) -> None:
        """Append ids that this worker adds to the sequence itself."""
        self.ids.extend(token_ids)
        self.hashes.extend(token_ids)
