"""Which outcomes of a verification are likeliest, by what was measured of drafts and guesses (docs/lookahead.md)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

from draft_worker.outcomes import BONUS, Guess

MOST_GUESSES = 8
"""At one place."""
_FADING = 0.98
_STRENGTH = 6.0
_FIRST_RATES = (0.4, 0.15, 0.08, 0.05, 0.03, 0.02, 0.02, 0.01)


class GuessRates:
    """How often the target's own token was the first, second, … guess; the latest places count most.

    A place is *left* where a drafted token was not accepted; the other kind is the place after a whole draft.
    """

    def __init__(self) -> None:
        self._seen = {True: 0.0, False: 0.0}
        self._right = {left: [0.0] * MOST_GUESSES for left in (True, False)}

    def observe(self, left: bool, rank: int | None) -> None:
        """The target's token was the guess of this rank, or none of them."""
        self._seen[left] = self._seen[left] * _FADING + 1.0
        right = self._right[left]
        for place in range(MOST_GUESSES):
            right[place] = right[place] * _FADING + (place == rank)

    def rates(self, left: bool) -> list[float]:
        seen = self._seen[left]
        return [
            (right + _STRENGTH * first) / (seen + _STRENGTH)
            for right, first in zip(self._right[left], _FIRST_RATES, strict=True)
        ]


def likeliest(chances: Sequence[float], rates: GuessRates, count: int) -> list[tuple[float, Guess]]:
    """The `count` likeliest outcomes with their probabilities, the likeliest first.

    `chances[i]`: that the first i + 1 drafted tokens are all accepted. By these rates and nothing else: under
    `probabilistic` what is prepared at a place must not follow from what was drawn after it (docs/exactness.md).
    """
    reached = [1.0, *chances]
    after_left, after_all = rates.rates(True), rates.rates(False)
    found = [(reached[-1] * rate, Guess(BONUS, rank)) for rank, rate in enumerate(after_all)]
    for place, (here, on) in enumerate(zip(reached, chances, strict=False)):
        found += [((here - on) * rate, Guess(place, rank)) for rank, rate in enumerate(after_left)]
    found.sort(key=lambda entry: -entry[0])
    return found[:count]


def worths(usual: int, one: float, flight: float, chances: Sequence[float], pace: float) -> list[float]:
    """Seconds that the first, second, … prepared token of a draft saves, if the draft is used.

    Each of the first `usual` tokens, which would be drawn otherwise, saves a pass (`one`) and its share of what a whole
    draft saves besides (`flight`). A token beyond is sent because it is there: it saves the time of a token, `pace`, if
    all up to it are right (`chances`).
    """
    found: list[float] = []
    for place, chance in enumerate(chances):
        found.append(one + flight / usual if place < usual else min(chance * pace, found[-1] if found else math.inf))
    return found


def laid_out(
    outcomes: Sequence[tuple[float, Guess]],
    planned: int,
    worth: Sequence[float],
    most: int,
    seconds: Callable[[int], float],
    time: float,
    drawing: Callable[[int], float],
    known: bool = False,
    chains: bool = False,
    abreast: int = 1,
) -> list[Guess]:
    """How many tokens to prepare for each of the outcomes; those that get none are left out.

    `most` in all, for an outcome one for each entry of `worth`, which are the seconds that it saves, and one at
    least. `seconds`: of a pass by its rows; `drawing`: of that many tokens in a row. Either a tree of several
    outcomes, or the likeliest token after the whole draft alone, which grows on where the draft stands: that takes
    a row a pass, of the draft only its last token, and leaves the draft's keys where they are. On a GPU, where rows
    are free, it is the tree; on a CPU often the chain. A tree's first pass is over the draft, for what follows it;
    if the places before that are `known`, their outcomes grow in it already. An engine that draws `chains` goes back
    after the likeliest token to where other known outcomes leave the draft, and draws on there, one after the other;
    or, if it can draw several `abreast`, for as many at once, as many tokens each.
    """
    one = max(seconds(1), 1e-6)
    again = seconds(planned + 1)
    trees = [
        _tree(outcomes, planned, worth[:most], most, cache(seconds), time - again, known, whole)
        for whole in (False, True)
    ]

    def saves(tree: list[tuple[float, Guess]]) -> float:
        """If none of its outcomes comes, the draft has to be read again before anything is drawn."""
        missed = 1.0 - sum(chance for chance, _ in tree)
        return sum(chance * sum(worth[: guess.tokens]) for chance, guess in tree) - missed * max(0.0, again - one)

    tree = max(trees, key=saves)
    saved = saves(tree)
    for chance, guess in outcomes:
        if guess.place == BONUS and (guess.rank == 0 or not chains):
            tokens = min(len(worth), most)
            while tokens > 1 and drawing(1 + tokens) > time:  # the guess is drawn too
                tokens -= 1
            alone = chance * sum(worth[:tokens]) if drawing(1 + tokens) <= time else 0.0
            others = [outcome for outcome in outcomes if outcome[1] != guess] if chains and known else []
            if abreast > 1:
                together = others[: min(abreast, most // tokens) - 1] if alone else []
                in_turn = [(chance, replace(guess, tokens=tokens, in_turn=True)) for chance, guess in together]
            else:
                in_turn = _in_turn(others, worth, most - tokens, time - drawing(1 + tokens), drawing)
            more = sum(chance * sum(worth[: guess.tokens]) for chance, guess in in_turn)
            if abreast == 1:  # then it has to be read again that the draft was accepted, if it was
                more -= chance * (again - one)
            if alone + max(0.0, more) > saved:
                rest = [guess for _, guess in in_turn] if more > 0.0 else []
                return [replace(guess, tokens=tokens, in_turn=chains), *rest]
            break
    return [guess for _, guess in tree]


def _in_turn(
    outcomes: Sequence[tuple[float, Guess]],
    worth: Sequence[float],
    most: int,
    left: float,
    drawing: Callable[[int], float],
) -> list[tuple[float, Guess]]:
    """Outcomes to be prepared one after the other: the next token always to the one where a second brings most."""
    depths = [0] * len(outcomes)
    for _ in range(most):
        costs = [drawing(depth + 1) - (drawing(depth) if depth else 0.0) for depth in depths]
        growing = [index for index, depth in enumerate(depths) if depth < len(worth) and costs[index] <= left]
        if not growing:
            break
        best = max(growing, key=lambda index: outcomes[index][0] * worth[depths[index]] / max(costs[index], 1e-9))
        left -= costs[best]
        depths[best] += 1
    return [
        (chance, replace(guess, tokens=depth, in_turn=True))
        for (chance, guess), depth in zip(outcomes, depths, strict=True)
        if depth
    ]


def _tree(
    outcomes: Sequence[tuple[float, Guess]],
    planned: int,
    worth: Sequence[float],
    most: int,
    seconds: Callable[[int], float],
    left: float,
    known: bool,
    whole: bool,
) -> list[tuple[float, Guess]]:
    """The next token always goes to the outcome where a second of preparing brings most, as long as all fits.

    `whole`: the likeliest outcome comes first, with all its tokens. For what is added to passes at little cost can take
    the time of the last one.
    """
    places = [planned if guess.place == BONUS else guess.place for _, guess in outcomes]
    firsts = [0 if known and guess.place != BONUS else 1 for _, guess in outcomes]
    """The pass in which an outcome gets its first token."""
    depths = [0] * len(outcomes)
    rows = [planned + 1]
    """Of each pass: the first has all of the draft, others what of it follows the first place where a branch leaves it;
    and the branches' tokens, fed anew."""
    lowest = planned

    def cost(index: int) -> float:
        """Of one token more."""
        depth, turn, more = depths[index], firsts[index] + depths[index], max(0, lowest - places[index])
        found = sum(seconds(count + more) - seconds(count) for count in rows[1:]) if more else 0.0
        if turn >= len(rows):
            return found + seconds(depth + 1 + planned - min(lowest, places[index]))
        fed = rows[turn] + (more if turn else 0)
        return found + seconds(fed + depth + 1) - seconds(fed)

    growing = list(range(len(outcomes)))
    for count in range(most):
        costs = {index: max(cost(index), 1e-9) for index in growing}
        fitting = [index for index in growing if costs[index] <= left]
        growing = fitting if fitting or count else growing
        if not growing:
            break
        best = max(growing, key=lambda index: outcomes[index][0] * worth[depths[index]] / costs[index])
        if whole and 0 in growing:
            best = 0
        left -= costs[best]
        more = max(0, lowest - places[best])
        lowest -= more
        rows[1:] = [fed + more for fed in rows[1:]]
        turn = firsts[best] + depths[best]
        if turn == len(rows):
            rows.append(planned - lowest)
        depths[best] += 1
        rows[turn] += depths[best]
        if depths[best] == len(worth):
            growing.remove(best)
    return [
        (chance, replace(guess, tokens=depth)) for (chance, guess), depth in zip(outcomes, depths, strict=True) if depth
    ]
