"""A prompt that several jobs share is read once: a job that arrives while another one reads it waits and copies it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from basics.prefix import shared_prefix
from engines.runtime.slots import SlotCache

if TYPE_CHECKING:
    from engines.runtime.jobs import Job
    from engines.runtime.runs import Run

_WORTH_WAITING = 64
"""Tokens that waiting must save: reading fewer takes hardly longer than the pass that a job would wait for."""


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """A prefix of `length` tokens that `reader` is still reading."""

    reader: Run
    length: int

    @property
    def goes_on(self) -> bool:
        """False once the slot holds the prefix, or if the reader will not get to its end."""
        return self.reader.held < self.length <= self.reader.reads_to


def worth_waiting_for(job: Job[Any], active: Iterable[Run], slots: SlotCache) -> SharedPrefix | None:
    """The longest prefix of the job's that a running job is reading, if that is much more than any slot holds now.

    A reader starts from the best slot there was, so it is rarely behind another slot.
    """
    readers = [run for run in active if run.job.salt == job.salt and run.context_left >= _WORTH_WAITING]
    readings = [SharedPrefix(run, min(shared_prefix(run.job.ids, job.ids), run.reads_to)) for run in readers]
    longest = max(readings, key=lambda reading: reading.length, default=None)
    if longest is None or longest.length - slots.held(job.ids, job.salt, job.prompt) < _WORTH_WAITING:
        return None
    return longest
