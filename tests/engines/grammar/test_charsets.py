"""Sets of characters: Unicode's properties, and the parts that tell sets apart."""

from __future__ import annotations

import pytest
import regex

from engines.grammar.charsets import ANY, complement, contains, partition, property_set


@pytest.mark.parametrize("name", ["L", "Lu", "Script=Greek", "Extended_Pictographic", "P"])
def test_properties_are_those_of_the_regex_package(name: str) -> None:
    pattern = regex.compile(rf"\p{{{name}}}")
    charset = property_set(name)
    for point in range(0, 0x20000, 31):
        if contains(ANY, point):
            assert contains(charset, point) == (pattern.match(chr(point)) is not None)


def test_a_partition_tells_apart_what_the_sets_do() -> None:
    sets = [((48, 57),), ((53, 70),), complement(((60, 60),))]
    parts = partition(sets)
    for charset in sets:
        for part in parts:
            inside = {contains(charset, point) for low, high in part for point in (low, (low + high) // 2, high)}
            assert len(inside) == 1
    assert sum(high - low + 1 for part in parts for low, high in part) == 0x110000 - 0x800
