"""Which outcomes of a verification are likeliest, by what was measured of drafts and guesses (docs/lookahead.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

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


def laid_out(
    outcomes: Sequence[tuple[float, Guess]],
    planned: int,
    each: int,
    most: int,
    seconds: Callable[[int], float],
    time: float,
) -> list[Guess]:
    """How many tokens to prepare for each of the outcomes, the likeliest first; those that get none are left out.

    The next token always goes to the outcome where a second of preparing brings most, as long as all fits into `time`;
    `most` in all, `each` for an outcome, and one at least. `seconds`: of a pass by its rows, taken to be linear. Where
    rows cost next to nothing all outcomes grow together; where they cost much the likeliest gets all its tokens first.
    """
    a_row = max(1e-9, (seconds(planned + 9) - seconds(planned + 1)) / 8)
    a_pass = max(seconds(1) - a_row, 1e-6)
    left = time - a_pass - a_row * (planned + 1)
    depths = [0] * len(outcomes)
    passes, lowest = 0, planned

    def cost(index: int) -> float:
        """Of one token more: the branch's tokens are fed anew, and the draft from where the first branch leaves it."""
        place, depth = outcomes[index][1].place, depths[index] + 1
        place = planned if place == BONUS else place
        found = a_row * depth
        if depth > passes:
            found += a_pass + a_row * (planned - min(lowest, place))
        return found + a_row * max(0, lowest - place) * passes

    open_ = list(range(len(outcomes)))
    for count in range(most):
        costs = {index: cost(index) for index in open_}
        open_ = [index for index in open_ if not count or costs[index] <= left]
        if not open_:
            break
        best = max(open_, key=lambda index: outcomes[index][0] / costs[index])
        left -= costs[best]
        depths[best] += 1
        passes = max(passes, depths[best])
        lowest = min(lowest, planned if outcomes[best][1].place == BONUS else outcomes[best][1].place)
        if depths[best] == each:
            open_.remove(best)
    return [replace(guess, tokens=depth) for (_, guess), depth in zip(outcomes, depths, strict=True) if depth]
