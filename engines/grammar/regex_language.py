"""A regular expression with look-around as a deterministic automaton, state by state.

Thompson's construction, simulated in sets of threads. A look-ahead is a duty that its thread takes along: a set of
threads of the look-ahead's own, which must come to match (or must not, for a negative one) for the thread to count.
That makes the automaton an alternating one (Chandra, Kozen, Stockmeyer, "Alternation", 1981), and its states
deterministic once duties are part of them. A look-behind is followed from the start of the text beside everything else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from engines.grammar.charsets import CharSet, contains
from engines.grammar.errors import GrammarError
from engines.grammar.regex_syntax import ANYTHING, Alt, Chars, Look, Regex, Repeat, Seq

MAX_THREADS = 400
_END = 0  # the place in a program where the expression has matched the whole text
_ACCEPT = 1  # where a look-around has matched, whatever follows

# (place, duties); a duty is (negative, threads).
Thread = tuple[int, frozenset[tuple[bool, frozenset["Thread"]]]]
Threads = frozenset[Thread]
State = tuple[Threads, tuple[Threads, ...]]
_NO_DUTIES: frozenset[tuple[bool, Threads]] = frozenset()
_MATCHED: Threads = frozenset({(_ACCEPT, _NO_DUTIES)})


@dataclass(slots=True)
class _Place:
    """One of: a character to the next place; several places to go on at; a look-around before the next place."""

    charset: CharSet | None = None
    after: list[int] = field(default_factory=list)
    ahead: int | None = None  # where a look-ahead begins
    behind: int | None = None  # the number of a look-behind
    negative: bool = False


class RegexLanguage:
    """engines.grammar.automata.Language of the texts in which the expression matches somewhere (as `pattern` has it).

    `whole`: of the texts that it matches from end to end. Raises GrammarError for a look-ahead within a look-behind.
    """

    def __init__(self, tree: Regex, *, whole: bool = False) -> None:
        self._places = [_Place(), _Place()]
        self._behinds: list[int] = []  # where each look-behind begins; those inside of it come before it
        self._within_behind = False
        self._first = self._add(tree if whole else Seq((ANYTHING, tree, ANYTHING)), _END)
        self.charsets: list[CharSet] = list({p.charset for p in self._places if p.charset is not None})

    def start(self) -> State:
        behinds, flags = self._follow_behinds([frozenset() for _ in self._behinds])
        return self._closure([(self._first, _NO_DUTIES)], flags), behinds

    def step(self, state: State, point: int) -> State | None:
        behinds, flags = self._follow_behinds([frozenset(self._moved(each, point)) for each in state[1]])
        threads = self._advance(state[0], point, flags)
        return (threads, behinds) if threads else None

    def accepts(self, state: State) -> bool:
        return _holds_at_end(state[0])

    # The program

    def _place(self, place: _Place) -> int:
        if len(self._places) > 200_000:
            raise GrammarError("is too long once its counts are written out")
        self._places.append(place)
        return len(self._places) - 1

    def _add(self, node: Regex, after: int) -> int:
        """Adds what matches `node` and goes on at `after`; returns where it begins."""
        if isinstance(node, Chars):
            return self._place(_Place(node.charset, [after]))
        if isinstance(node, Seq):
            for part in reversed(node.parts):
                after = self._add(part, after)
            return after
        if isinstance(node, Alt):
            return self._place(_Place(after=[self._add(part, after) for part in node.parts]))
        if isinstance(node, Repeat):
            return self._add_repeat(node, after)
        return self._add_look(node, after)

    def _add_repeat(self, node: Repeat, after: int) -> int:
        if node.most is None:
            loop = self._place(_Place())
            self._places[loop].after = [self._add(node.part, loop), after]
            start = loop
        else:
            start = after
            for _ in range(node.most - node.least):
                start = self._place(_Place(after=[self._add(node.part, start), after]))
        for _ in range(node.least):
            start = self._add(node.part, start)
        return start

    def _add_look(self, node: Look, after: int) -> int:
        if node.ahead:
            if self._within_behind:
                raise GrammarError("has a look-ahead, $ or \\b within a look-behind, which is not supported")
            return self._place(_Place(after=[after], ahead=self._add(node.part, _ACCEPT), negative=node.negative))
        outer, self._within_behind = self._within_behind, True
        begins = self._add(node.part, _ACCEPT)
        self._within_behind = outer
        self._behinds.append(begins)
        return self._place(_Place(after=[after], behind=len(self._behinds) - 1, negative=node.negative))

    # The simulation

    def _follow_behinds(self, moved: list[Threads]) -> tuple[tuple[Threads, ...], list[bool]]:
        """Each look-behind may begin anywhere, so also here. Which of them have just matched."""
        followed: list[Threads] = []
        flags: list[bool] = []
        for begins, threads in zip(self._behinds, moved, strict=True):
            here = self._closure([*threads, (begins, _NO_DUTIES)], flags, keep_all=True)
            flags.append((_ACCEPT, _NO_DUTIES) in here)
            followed.append(here - _MATCHED)
        return tuple(followed), flags

    def _moved(self, threads: Threads, point: int) -> Iterable[Thread]:
        """Threads without duties after a character, before their closure."""
        for place, duties in threads:
            charset = self._places[place].charset
            if charset is not None and contains(charset, point):
                yield self._places[place].after[0], duties

    def _advance(self, threads: Threads, point: int, flags: list[bool]) -> Threads:
        moved: list[Thread] = []
        for place, duties in threads:
            charset = self._places[place].charset
            if place == _ACCEPT:
                target = _ACCEPT
            elif charset is not None and contains(charset, point):
                target = self._places[place].after[0]
            else:
                continue
            left: list[tuple[bool, Threads]] | None = []
            for negative, inner in duties:
                left = _with_duty(left, negative, self._advance(inner, point, flags))
            if left is not None:
                moved.append((target, frozenset(left)))
        return self._closure(moved, flags)

    def _closure(self, threads: Iterable[Thread], flags: list[bool], *, keep_all: bool = False) -> Threads:
        """All places that are reached without a character; what look-aheads there demand becomes a duty."""
        waiting = list(threads)
        seen = set(waiting)
        found: set[Thread] = set()
        while waiting:
            thread = waiting.pop()
            index, duties = thread
            place = self._places[index]
            if index in (_END, _ACCEPT) or place.charset is not None:
                found.add(thread)
                continue
            after: frozenset[tuple[bool, Threads]] = duties
            if place.behind is not None and flags[place.behind] == place.negative:
                continue
            if place.ahead is not None:
                inner = self._closure([(place.ahead, _NO_DUTIES)], flags)
                left = _with_duty(list(duties), place.negative, inner)
                if left is None:
                    continue
                after = frozenset(left)
            for target in place.after:
                if (target, after) not in seen:
                    seen.add((target, after))
                    waiting.append((target, after))
            if len(seen) > MAX_THREADS * 50:
                raise GrammarError("can be read in too many ways")
        return frozenset(found) if keep_all else _without_needless(found)


def _with_duty(
    duties: list[tuple[bool, Threads]] | None, negative: bool, inner: Threads
) -> list[tuple[bool, Threads]] | None:
    """The duties with one more; None if it has failed. One that is fulfilled is gone."""
    if duties is None:
        return None
    matched = (_ACCEPT, _NO_DUTIES) in inner
    if matched or not inner:
        return duties if matched != negative else None
    return [*duties, (negative, inner)]


def _without_needless(threads: set[Thread]) -> Threads:
    """Without threads that another one at the same place, with fewer duties, makes needless."""
    by_place: dict[int, list[frozenset[tuple[bool, Threads]]]] = {}
    for place, duties in threads:
        by_place.setdefault(place, []).append(duties)
    kept = frozenset(
        (place, duties)
        for place, group in by_place.items()
        for duties in group
        if len(group) == 1 or not any(other < duties for other in group)
    )
    if len(kept) > MAX_THREADS:
        raise GrammarError("can be read in too many ways")
    return kept


def _holds_at_end(threads: Threads) -> bool:
    return any(
        place in (_END, _ACCEPT) and all(_holds_at_end(inner) != negative for negative, inner in duties)
        for place, duties in threads
    )
