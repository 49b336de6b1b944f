"""Which of the points that a sequence may go back to are kept, of what can't be cut back to any point."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar


class Snapshot(Protocol):
    """What a slot held after `position` tokens."""

    @property
    def position(self) -> int: ...


S = TypeVar("S", bound=Snapshot)


def with_snapshot(kept: Sequence[S], new: S, most: int) -> list[S]:
    """At most `most` of them, by position: of too many, the one between the closest neighbours goes; never the newest,
    nor, where there are more than two, the one before."""
    by_position = {snapshot.position: snapshot for snapshot in (*kept, new)}
    found = [by_position[position] for position in sorted(by_position)]
    if len(found) > most:
        positions = [0, *(snapshot.position for snapshot in found)]
        gaps = [positions[i + 2] - positions[i] for i in range(len(found) - (2 if most > 2 else 1))]
        del found[gaps.index(min(gaps))]
    return found


def latest(kept: Iterable[S], position: int) -> S | None:
    """The last one that was taken at or before `position`."""
    return max((snapshot for snapshot in kept if snapshot.position <= position), key=_position, default=None)


def _position(snapshot: Snapshot) -> int:
    return snapshot.position
