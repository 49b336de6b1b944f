"""Sets of characters as sorted, disjoint ranges of code points, both ends included. Surrogates are no characters."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import regex

CharSet = tuple[tuple[int, int], ...]

LAST = 0x10FFFF
ANY: CharSet = ((0, 0xD7FF), (0xE000, LAST))
DIGITS: CharSet = ((0x30, 0x39),)
WORD: CharSet = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
# ECMA-262's WhiteSpace and LineTerminator.
SPACE: CharSet = (
    (0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029),
    (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
)  # fmt: skip
LINE_ENDS: CharSet = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))


def union(*sets: CharSet) -> CharSet:
    """The union."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(part for each in sets for part in each):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(high, merged[-1][1])
        else:
            merged.append((low, high))
    return tuple(merged)


def intersection(a: CharSet, b: CharSet) -> CharSet:
    """The intersection."""
    pairs = ((max(p[0], q[0]), min(p[1], q[1])) for p in a for q in b)
    return union(tuple(pair for pair in pairs if pair[0] <= pair[1]))


def complement(charset: CharSet) -> CharSet:
    """The complement."""
    gaps: list[tuple[int, int]] = []
    start = 0
    for low, high in charset:
        if start < low:
            gaps.append((start, low - 1))
        start = high + 1
    if start <= LAST:
        gaps.append((start, LAST))
    return intersection(tuple(gaps), ANY)


def contains(charset: CharSet, point: int) -> bool:
    """Whether a code point is in it."""
    return any(low <= point <= high for low, high in charset)


def partition(charsets: Iterable[CharSet]) -> list[CharSet]:
    """The coarsest partition of all characters of which every one of `charsets` is a union; no part is empty."""
    distinct = sorted(set(charsets))
    starts = sorted({0, 0xD800, 0xE000} | {edge for each in distinct for low, high in each for edge in (low, high + 1)})
    parts: dict[tuple[bool, ...], list[tuple[int, int]]] = {}
    for index, start in enumerate(starts):
        end = starts[index + 1] - 1 if index + 1 < len(starts) else LAST
        if start <= LAST and contains(ANY, start):
            parts.setdefault(tuple(contains(each, start) for each in distinct), []).append((start, end))
    return [union(tuple(part)) for part in parts.values()]


@lru_cache(maxsize=64)
def property_set(name: str) -> CharSet:
    r"""The characters of a Unicode property, as `\p{name}` has it. Raises ValueError for an unknown one."""
    try:
        pattern = regex.compile(rf"\p{{{name}}}+")
    except regex.error as error:
        raise ValueError(f"unknown Unicode property {name[:40]!r}") from error
    everything = "".join(chr(point) for low, high in ANY for point in range(low, high + 1))
    runs = []
    for match in pattern.finditer(everything):
        low, high = ord(everything[match.start()]), ord(everything[match.end() - 1])
        runs.append((low, high))
    return intersection(tuple(runs), ANY)
