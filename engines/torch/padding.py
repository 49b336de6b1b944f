"""How many rows the passes of bitwise mode are filled up to, where a processor's products need it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

MOST_PADDING = 16
"""Past it the passes that are tried would all be filled up to one size, and show nothing."""


@dataclass(frozen=True, slots=True)
class Padding:
    """Passes get at least `least` rows, and a multiple of `multiple`; each attention's queries a multiple of
    `attention`. All ones: nothing is padded."""

    least: int = 1
    multiple: int = 1
    attention: int = 1

    def rows(self, count: int) -> int:
        """What a pass of `count` rows is filled up to; `least` is a multiple of `multiple`."""
        return max(self.least, -(-count // self.multiple) * self.multiple)

    def __str__(self) -> str:
        return f"{self.least}/{self.multiple}/{self.attention}"


def row_paddings(threads: int) -> Iterator[Padding]:
    """All there is to try for linear layers, from the least: each size as the least, then its multiples.

    Sizes are powers of two up to MOST_PADDING, and those of a thread's share: libraries deal the rows out to threads
    (measured for oneDNN's bfloat16 products: a thread computes an odd last row of its share with other code).
    """
    powers = {1, 2, 4}
    while max(powers) < MOST_PADDING:
        powers.add(2 * max(powers))
    for size in sorted(powers | {power * threads for power in (1, 2, 4)}):
        yield Padding(least=size)
        if size > 1:
            yield Padding(least=size, multiple=size)
