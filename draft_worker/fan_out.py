"""Which outcomes of a verification are likeliest, by what was measured of drafts and guesses (docs/lookahead.md)."""

from __future__ import annotations

from collections.abc import Sequence

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
