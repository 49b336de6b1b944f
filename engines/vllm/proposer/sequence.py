"""What the proposer remembers of each request: the draft worker's session for it, found again by its token ids."""

from __future__ import annotations

import time
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from protocol.hashing import PrefixHashes

Ids = npt.NDArray[np.int32]

_TAIL = 8


class DraftedSequence:
    """One request's ids, and which of them the draft worker is known to hold."""

    def __init__(self, ids: Ids, num_prompt_tokens: int, cache_salt: str | None) -> None:
        self.num_prompt_tokens = num_prompt_tokens
        self.cache_salt = cache_salt
        self.reading = False
        self.late = False
        """No answer came in time: the worker must catch up with the text before it is asked for drafts again."""
        self.gone = False
        self.drafted: int | None = None
        """How many tokens were proposed to follow it; None before that was asked."""
        self._rests_until = 0.0
        self.restart()
        self._buffer = np.empty(len(ids) + 256, dtype=np.int32)
        self._length = 0
        self.append(ids)

    def restart(self) -> None:
        """Begin a session anew: the worker is not known to hold any of it."""
        self.session_id = uuid4().hex
        self.round = -1
        self.held = 0
        self._hashes = PrefixHashes(self.cache_salt)

    def rest(self, seconds: float) -> None:
        """Ask nothing of the worker for this sequence for a while."""
        self._rests_until = time.monotonic() + seconds

    @property
    def may_ask(self) -> bool:
        return not self.reading and time.monotonic() >= self._rests_until

    @property
    def ids(self) -> Ids:
        return self._buffer[: self._length]

    @property
    def unread(self) -> int:
        """How many of its ids the draft worker has not seen."""
        return self._length - self.held

    def __len__(self) -> int:
        return self._length

    def append(self, ids: Ids) -> None:
        needed = self._length + len(ids)
        if needed > len(self._buffer):
            self._buffer = np.concatenate([self.ids, np.empty(needed, dtype=np.int32)])
        self._buffer[self._length : needed] = ids
        self._length = needed

    def hold(self, length: int) -> None:
        """The worker has read the first `length` ids."""
        self._hashes.extend(self._buffer[len(self._hashes) : length].tolist())
        self.held = length

    def question(
        self, length: int, draft_tokens: int, max_tokens: int, seconds: float, draft_model: str | None, **more: int
    ) -> dict[str, Any]:
        """A DraftRequest (protocol/messages.py) over the first `length` ids; sends those that the worker lacks.

        `more`: fields that not every worker knows.
        """
        self.round += 1
        start = self.held
        return {
            "protocol": 1,
            "session_id": self.session_id,
            "round": self.round,
            "context": {
                "start": start,
                "token_ids": self._buffer[start:length].tolist(),
                "prefix_hash": self._hashes.at(start),
            },
            "num_prompt_tokens": min(self.num_prompt_tokens, length),
            "max_tokens": max_tokens,
            "sampling": {"temperature": 0.0, "seed": 0, "ignore_eos": True},
            "deadline_ms": max(1, int(1000 * seconds)),
            "draft_tokens": draft_tokens,
            "draft_model": draft_model,
            "cache_salt": self.cache_salt,
            **more,
        }


class Sequences:
    """Those of the requests in the engine's batch. vLLM moves requests between rows, so ids identify them.

    `continued`: whether the step before last made one of the last step's sequences. If it did not, the engine may
    have had nothing to do between the two.
    """

    def __init__(self) -> None:
        self.continued = False
        self._found = False
        self._before: dict[tuple[int, bytes], list[DraftedSequence]] = {}
        self._now: dict[tuple[int, bytes], list[DraftedSequence]] = {}

    def find(self, ids: Ids, added: int, cache_salt: str | None = None) -> DraftedSequence:
        """The sequence under this salt that these ids continue by their last `added`, else a new one."""
        known = ids[: len(ids) - added]
        waiting = self._before.get(_key(known), [])
        for index, sequence in enumerate(waiting):
            if sequence.cache_salt == cache_salt and np.array_equal(sequence.ids, known):
                del waiting[index]
                sequence.append(ids[len(known) :])
                self._found = True
                break
        else:
            sequence = DraftedSequence(ids, len(known), cache_salt)
        self._now.setdefault(_key(ids), []).append(sequence)
        return sequence

    def end_step(self) -> list[DraftedSequence]:
        """Call when all rows are looked up: forgets and returns the sequences that none of them continued."""
        gone = [sequence for left in self._before.values() for sequence in left]
        self._before, self._now = self._now, {}
        self.continued, self._found = self._found, False
        return gone


def _key(ids: Ids) -> tuple[int, bytes]:
    return len(ids), ids[-_TAIL:].tobytes()
