"""Regular languages as deterministic automata, combined with and, or and not.

An expression combines named languages. Its automaton is their product, built state by state, trimmed to the states
from which a text can still end, and merged (Moore's partition refinement). Bounds: MAX_STATES, and the
time of limits.check_time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from engines.grammar.charsets import ANY, CharSet, intersection, partition
from engines.grammar.errors import GrammarError
from engines.grammar.limits import check_time

MAX_STATES = 4_000
"""After merging; twice as many while building."""


class Language(Protocol):
    """A deterministic automaton given by its rules. `charsets` are all the sets of characters that it distinguishes."""

    @property
    def charsets(self) -> Sequence[CharSet]: ...

    def start(self) -> Hashable: ...

    def step(self, state: Any, point: int) -> Hashable | None:
        """The state after a character, None if no text with this beginning is in the language."""
        ...

    def accepts(self, state: Any) -> bool: ...


@dataclass(frozen=True, slots=True)
class Atom:
    """A language by its name."""

    kind: str
    value: Hashable = None


@dataclass(frozen=True, slots=True)
class And:
    parts: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Or:
    parts: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Not:
    part: Expr


Expr = Atom | And | Or | Not


@dataclass(frozen=True, slots=True)
class Automaton:
    """State 0 is the start. `edges[state]` maps a target to the characters that lead there. No states: no texts."""

    edges: tuple[Mapping[int, CharSet], ...]
    accepting: frozenset[int]


def atoms(expr: Expr) -> list[Atom]:
    """Every language that the expression names, once, in order."""
    if isinstance(expr, Atom):
        return [expr]
    parts = [expr.part] if isinstance(expr, Not) else expr.parts
    return list(dict.fromkeys(atom for part in parts for atom in atoms(part)))


def evaluate(expr: Expr, truth: Callable[[Atom], bool | None]) -> bool | None:
    """Three-valued: None if it depends on atoms whose truth is None."""
    if isinstance(expr, Atom):
        return truth(expr)
    if isinstance(expr, Not):
        inner = evaluate(expr.part, truth)
        return None if inner is None else not inner
    decisive = isinstance(expr, Or)
    values = [evaluate(part, truth) for part in expr.parts]
    if decisive in values:
        return decisive
    return None if None in values else not decisive


def matches(expr: Expr, language: Callable[[Atom], Language], text: str) -> bool:
    """Whether a text is in the language of the expression."""

    def takes(atom: Atom) -> bool:
        known = language(atom)
        state: Hashable | None = known.start()
        for character in text:
            if state is None:
                return False
            state = known.step(state, ord(character))
        return state is not None and known.accepts(state)

    return bool(evaluate(expr, takes))


def build(expr: Expr, language: Callable[[Atom], Language], alphabet: CharSet = ANY) -> Automaton:
    """The least automaton of the expression over an alphabet. Raises GrammarError if it is too large."""
    names = atoms(expr)
    known = [language(atom) for atom in names]
    index = {atom: place for place, atom in enumerate(names)}
    parts = partition(charset for each in known for charset in each.charsets)
    symbols = [symbol for symbol in (intersection(part, alphabet) for part in parts) if symbol]
    points = [symbol[0][0] for symbol in symbols]

    def hopeless(state: tuple[Hashable | None, ...]) -> bool:
        return evaluate(expr, lambda atom: None if state[index[atom]] is not None else False) is False

    def accepts(state: tuple[Hashable | None, ...]) -> bool:
        def truth(atom: Atom) -> bool:
            place = index[atom]
            return state[place] is not None and known[place].accepts(state[place])

        return bool(evaluate(expr, truth))

    first: tuple[Hashable | None, ...] = tuple(each.start() for each in known)
    numbers = {first: 0}
    order = [first]
    table: list[list[int]] = []
    for state in order:
        row = []
        for point in points:
            after = tuple(
                None if part is None else each.step(part, point) for each, part in zip(known, state, strict=True)
            )
            if hopeless(after):
                row.append(-1)
                continue
            if after not in numbers:
                numbers[after] = len(order)
                order.append(after)
            row.append(numbers[after])
        table.append(row)
        check_time()
        if len(order) > 2 * MAX_STATES:
            raise GrammarError("combines patterns, formats, lengths or values into too large an automaton")
    return _least(table, [accepts(state) for state in order], symbols)


def _least(table: list[list[int]], accepting: list[bool], symbols: list[CharSet]) -> Automaton:
    alive = _alive(table, accepting)
    if not alive[0]:
        return Automaton((), frozenset())
    rows = [[target if target >= 0 and alive[target] else -1 for target in row] for row in table]
    block = [int(end) for end in accepting]
    count = 0
    while True:
        keys: dict[tuple[int, ...], int] = {}
        # The start's block comes first, and so keeps number 0.
        block = [
            keys.setdefault((block[state], *(-1 if t < 0 else block[t] for t in rows[state])), len(keys))
            if alive[state]
            else -1
            for state in range(len(rows))
        ]
        if len(keys) == count:
            break
        count = len(keys)
    if count > MAX_STATES:
        raise GrammarError(f"takes an automaton of more than {MAX_STATES} states")
    edges: list[dict[int, list[tuple[int, int]]]] = [{} for _ in range(count)]
    seen: set[int] = set()
    for state, row in enumerate(rows):
        if not alive[state] or block[state] in seen:
            continue
        seen.add(block[state])
        for symbol, target in zip(symbols, row, strict=True):
            if target >= 0:
                edges[block[state]].setdefault(block[target], []).extend(symbol)
    merged = tuple({target: _joined(parts) for target, parts in each.items()} for each in edges)
    return Automaton(merged, frozenset(block[state] for state, end in enumerate(accepting) if end and alive[state]))


def _joined(parts: list[tuple[int, int]]) -> CharSet:
    joined: list[tuple[int, int]] = []
    for low, high in sorted(parts):
        if joined and low == joined[-1][1] + 1:
            joined[-1] = joined[-1][0], high
        else:
            joined.append((low, high))
    return tuple(joined)


def _alive(table: list[list[int]], accepting: list[bool]) -> list[bool]:
    before: list[set[int]] = [set() for _ in table]
    for state, row in enumerate(table):
        for target in row:
            if target >= 0:
                before[target].add(state)
    alive = list(accepting)
    waiting = [state for state, end in enumerate(accepting) if end]
    while waiting:
        for state in before[waiting.pop()]:
            if not alive[state]:
                alive[state] = True
                waiting.append(state)
    return alive
