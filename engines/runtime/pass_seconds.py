"""What passes take by the tokens in them: what is the same for each, and what every token adds."""

from __future__ import annotations

from collections.abc import Mapping

_MOST_TOKENS = 64
"""Larger passes are left out of the line: a processor may be at its limit there."""
_SMOOTHING = 0.1
_OUTLIER = 3.0


class PassSeconds:
    """A straight line through what was measured at the start, scaled by what passes take now.

    The line itself is not fitted anew: passes of a steady load all have about as many tokens, which says nothing of
    what fewer would take.
    """

    def __init__(self, measured: Mapping[int, float]) -> None:
        """`measured`: seconds of a pass by its tokens."""
        points = [(tokens, seconds) for tokens, seconds in measured.items() if tokens <= _MOST_TOKENS]
        count = max(1, len(points))
        mean_tokens = sum(tokens for tokens, _ in points) / count
        mean_seconds = sum(seconds for _, seconds in points) / count
        spread = sum((tokens - mean_tokens) ** 2 for tokens, _ in points)
        both = sum((tokens - mean_tokens) * (seconds - mean_seconds) for tokens, seconds in points)
        self._per_token = max(0.0, both / spread) if spread else 0.0
        self._fixed = max(0.0, mean_seconds - self._per_token * mean_tokens)
        self._scale = 1.0

    def observe(self, tokens: int, seconds: float) -> None:
        """A pass; one that took more than three times what was expected counts as that."""
        expected = self._fixed + self._per_token * tokens
        if expected > 0.0:
            found = min(seconds / expected, _OUTLIER * self._scale)
            self._scale += _SMOOTHING * (found - self._scale)

    @property
    def fixed(self) -> float:
        return self._scale * self._fixed

    @property
    def per_token(self) -> float:
        return self._scale * self._per_token
