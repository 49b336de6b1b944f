"""A prompt that several jobs share is read once: who comes while another job reads it waits until it can be copied."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engines.torch.slots import SlotCache, shared_prefix

if TYPE_CHECKING:
    from engines.torch.jobs import Job
    from engines.torch.runs import Run

_WORTH_WAITING = 64
"""Tokens that waiting must save: reading fewer takes little more than the pass that is waited for."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A prefix of `length` tokens that `reader` is about to have read."""

    reader: Run
    length: int

    @property
    def goes_on(self) -> bool:
        """False once the slot holds the prefix, and where what the reader still feeds will not bring it there."""
        seat = self.reader.seat
        return seat is not None and seat.length < self.length <= seat.length + self.reader.context_left


def worth_waiting_for(job: Job[Any], active: Iterable[Run], slots: SlotCache) -> Reading | None:
    """The longest prefix of the job's that a running job is reading, if that is much more than any slot holds now.

    The reader is as far as any other slot, so that waiting for it takes no longer than reading the same tokens.
    """
    readers = [run for run in active if run.job.salt == job.salt and run.context_left >= _WORTH_WAITING]
    if not readers:
        return None
    held = slots.held(job.ids, job.salt)
    found: Reading | None = None
    for run in readers:
        assert run.seat is not None
        most = min(run.seat.length + run.context_left, job.usable)
        if run.seat.length >= held and most - held >= _WORTH_WAITING:
            length = min(shared_prefix(run.job.ids, job.ids), most)
            if length - held >= _WORTH_WAITING and (found is None or length > found.length):
                found = Reading(run, length)
    return found
