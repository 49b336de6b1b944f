"""The ids before a position, without a copy of the context for every drafted position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload


class History(Sequence[int]):
    """The first `length` ids of `context`, which must not change meanwhile, then `tail`."""

    __slots__ = ("_context", "_length", "_tail")

    def __init__(self, context: list[int], length: int, tail: Sequence[int] = ()) -> None:
        self._context = context
        self._length = length
        self._tail = tail

    def __len__(self) -> int:
        return self._length + len(self._tail)

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> list[int]: ...

    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step == 1:
                tail = self._tail[max(0, start - self._length) : max(0, stop - self._length)]
                return [*self._context[start : min(stop, self._length)], *tail]
            return [*self._context[: self._length], *self._tail][index]
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._context[index] if index < self._length else self._tail[index - self._length]
