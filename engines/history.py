"""The ids before a position, without a copy of the context for every drafted position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload


class History(Sequence[int]):
    """The first `length` ids of `context`, which must not change meanwhile, then `tail`.

    All three are there to be read: what many positions share need be looked at only once.
    """

    __slots__ = ("context", "length", "tail")

    def __init__(self, context: list[int], length: int, tail: Sequence[int] = ()) -> None:
        self.context = context
        self.length = length
        self.tail = tail

    def __len__(self) -> int:
        return self.length + len(self.tail)

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> list[int]: ...

    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step == 1:
                tail = self.tail[max(0, start - self.length) : max(0, stop - self.length)]
                return [*self.context[start : min(stop, self.length)], *tail]
            return [*self.context[: self.length], *self.tail][index]
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.context[index] if index < self.length else self.tail[index - self.length]
