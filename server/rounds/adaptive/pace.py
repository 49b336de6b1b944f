"""How fast rounds are whose drafts the worker chose, all together."""

from __future__ import annotations

_PRIOR_ROUNDS = 3.0


class Pace:
    """Tokens and seconds of rounds, older ones fading; `prior` counts as much as three rounds."""

    def __init__(self, fading: float, prior: Pace | None = None) -> None:
        self._fading = fading
        self._prior = prior
        self._rounds = self._tokens = self._seconds = 0.0

    def observe(self, tokens: int, seconds: float) -> None:
        if self._prior is not None:
            self._prior.observe(tokens, seconds)
        self._rounds = self._rounds * self._fading + 1.0
        self._tokens = self._tokens * self._fading + tokens
        self._seconds = self._seconds * self._fading + seconds

    def seconds_a_token(self, plain: float) -> float:
        """Half of plain decoding's while nothing is known."""
        tokens, seconds = self._tokens, self._seconds
        prior = self._prior
        if prior is None or not prior._rounds:
            return (seconds + _PRIOR_ROUNDS * plain) / (tokens + 2.0 * _PRIOR_ROUNDS)
        weight = _PRIOR_ROUNDS / prior._rounds
        return (seconds + weight * prior._seconds) / (tokens + weight * prior._tokens)
