"""Which token ids each slot holds keys and values for, and which slot a sequence gets."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from basics.prefix import shared_prefix

_MIN_COPY = 8
"""Shorter prefixes are as soon computed as copied."""
_LITTLE = 64


@dataclass(eq=False, slots=True)
class Slot:
    """One slot of the runner. Keys and values for `ids` are valid, in order; what lies behind them is not.

    They may go on beyond the sequence, into drafts that were rejected: the next job compares ids anyway.

    `owner` is the session that used it last and still lives; `pinned` while a job runs on it. Of the ids the first
    `read`, so far as there are as many, were read as a prompt; the others were generated, or drafted.
    """

    index: int
    ids: list[int] = field(default_factory=list)
    salt: str | None = None
    owner: int | None = None
    pinned: bool = False
    last_used: float = 0.0
    read: int = 0

    def note_read(self, start: int, prompt: int) -> None:
        """Tokens are fed from `start` on, the first `prompt` of them as a prompt: all before these were, too."""
        self.read = start + prompt if prompt else min(self.read, start)


class SlotCache:
    """Hands out slots with as much of the wanted prefix in them as can be had. Used by the loop's thread alone."""

    def __init__(
        self,
        num_slots: int,
        copy: Callable[[int, int, int], None],
        hold_seconds: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
        reusable: Callable[[int, int], int] = lambda slot, length: length,
        reads_apart: bool = False,
    ) -> None:
        """`copy(source, destination, length)` copies keys and values between slots, by index. `reusable(slot, length)`:
        how much of that prefix a slot really spares whoever goes on behind it (ModelRunner.reusable).

        `reads_apart`: keys and values of what was read as a prompt have other last bits than those of the same tokens
        generated, so each is taken for its like alone.

        A living session keeps its slot for `hold_seconds` after each use, unless no other session waits for one.
        """
        self.slots = [Slot(index) for index in range(num_slots)]
        self._copy = copy
        self._hold_seconds = hold_seconds
        self._clock = clock
        self._reusable = reusable
        self._reads_apart = reads_apart
        self._owned: dict[int, Slot] = {}
        self.evictions = 0

    def owns(self, owner: int | None) -> bool:
        """Whether the session still has the slot it used last. Safe to ask from any thread."""
        return owner in self._owned

    @property
    def filled(self) -> int:
        """Slots that hold anything. Safe to ask from any thread."""
        return sum(bool(slot.ids) for slot in self.slots)

    @property
    def available(self) -> int:
        """Slots that a sequence without one could get now. Safe to ask from any thread."""
        return len(self._free())

    def held(self, ids: Sequence[int], salt: str | None, prompt: int = 0) -> int:
        """Length of the longest prefix of `ids` that a slot holds, and that may be reused where the first `prompt` are
        to be read as one."""
        return self._best_match(ids, salt, prompt)[1]

    def acquire(
        self, ids: Sequence[int], salt: str | None, owner: int | None, usable: int, kept: int = 0, prompt: int = 0
    ) -> Slot | None:
        """Pin a slot for a sequence; its `ids` are then the longest prefix of the first `usable` that could be had.

        The first `prompt` of `ids` are to be read as a prompt.

        In this order: the session's own slot; the slot with the longest common prefix, taken over if that prefix
        is most of what it holds and no living session owns it, otherwise copied from; the least recently used one that
        may be had. None if every slot, but for `kept` of them, is pinned or held for a session.
        """
        own = self._owned.get(owner) if owner is not None else None
        if own is None and self.available <= kept:
            return None
        target: Slot | None
        if own is not None and not own.pinned:
            own_length = self._match(own, ids, prompt) if own.salt == salt else 0
            # A running stream's own slot: hardly anything to gain elsewhere.
            if own_length + _LITTLE >= len(ids):
                return self._pin(own, salt, owner, min(own_length, usable))
            best, length = self._best_match(ids, salt, prompt)
            if best is None or own_length + _MIN_COPY > length:
                return self._pin(own, salt, owner, min(own_length, usable))
            target = own
        else:
            best, length = self._best_match(ids, salt, prompt)
            target = self._evictable()
        if best is not None and not best.pinned and best.owner is None and 2 * length >= len(best.ids):
            return self._pin(best, salt, owner, min(length, usable))
        if target is None:
            return None
        length = min(length, usable)
        if target.ids and target is not best and target is not own:
            self.evictions += 1
        if best is not None and best is not target:
            if length < _MIN_COPY:
                length = 0
            else:
                self._copy(best.index, target.index, length)
                target.ids[:] = best.ids[:length]
                target.read = best.read
        return self._pin(target, salt, owner, length)

    def release(self, slot: Slot, was_idle: bool = False) -> None:
        """The job on it has ended; what the slot holds stays for others to use.

        An idle job does not prolong its session's hold on the slot.
        """
        slot.pinned = False
        if not was_idle:
            slot.last_used = self._clock()

    def disown(self, owner: int) -> None:
        """The session is gone: any sequence may take its slot, or reuse the prefix in it."""
        slot = self._owned.pop(owner, None)
        if slot is not None:
            slot.owner = None

    def _best_match(self, ids: Sequence[int], salt: str | None, prompt: int) -> tuple[Slot | None, int]:
        best, length = None, 0
        for slot in self.slots:
            if slot.salt == salt and slot.ids and slot.ids[0] == ids[0]:
                match = self._match(slot, ids, prompt)
                if match > length:
                    best, length = slot, match
        return best, length

    def _match(self, slot: Slot, ids: Sequence[int], prompt: int) -> int:
        length = shared_prefix(slot.ids, ids)
        if self._reads_apart and slot.read != prompt:
            length = min(length, slot.read, prompt)
        return self._reusable(slot.index, length)

    def _free(self) -> list[Slot]:
        now = self._clock()
        return [
            slot
            for slot in self.slots
            if not slot.pinned and (slot.owner is None or now - slot.last_used >= self._hold_seconds)
        ]

    def _evictable(self) -> Slot | None:
        """The slot to evict: an empty one, then the least recently used, the ownerless first."""
        return min(
            self._free(), key=lambda slot: (slot.owner is not None, bool(slot.ids), slot.last_used), default=None
        )

    def _pin(self, slot: Slot, salt: str | None, owner: int | None, length: int) -> Slot:
        if slot.owner is not None and slot.owner != owner:
            del self._owned[slot.owner]
        if owner is not None:
            previous = self._owned.get(owner)
            if previous is not None and previous is not slot:
                previous.owner = None
            self._owned[owner] = slot
        slot.owner = owner
        slot.salt = salt
        slot.pinned = True
        del slot.ids[self._reusable(slot.index, length) :]
        return slot
