"""What passes take by the tokens in them: what is the same for each, and what every token adds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_MOST_TOKENS = 64
"""Larger passes are left out of the line: a processor may be at its limit there."""
_LEAST_KNOWN = 8
"""Tokens of the largest pass that has to be known for the line to say anything: on CPUs the first few rows cost more
than those after them, as products over one or two of them are computed otherwise."""
_SMOOTHING = 0.1
_OUTLIER = 3.0


@dataclass(slots=True)
class _Size:
    """Passes of about one size: their usual tokens and seconds."""

    tokens: float
    seconds: float
    seen: int = 1

    def observe(self, tokens: int, seconds: float) -> None:
        self.seen += 1
        weight = max(_SMOOTHING, 1.0 / self.seen)
        self.tokens += weight * (tokens - self.tokens)
        self.seconds += weight * (min(seconds, _OUTLIER * self.seconds) - self.seconds)


class PassSeconds:
    """A straight line through what was measured at the start, scaled by what passes take now.

    The line is not fitted anew to passes of sizes that were measured: those of a steady load all have about as many
    tokens, which says nothing of what fewer would take. Sizes that were not, as of a slow model, for which there was no
    time, are learned from the passes that come.
    """

    def __init__(self, measured: Mapping[int, float]) -> None:
        """`measured`: seconds of a pass by its tokens."""
        self._sizes = {
            tokens.bit_length(): _Size(tokens, seconds)
            for tokens, seconds in measured.items()
            if tokens <= _MOST_TOKENS
        }
        self._measured = frozenset(self._sizes)
        self._scale = 1.0
        self._fit()

    def observe(self, tokens: int, seconds: float) -> None:
        """A pass; one that took more than three times what was expected counts as that."""
        size = tokens.bit_length()
        expected = self._fixed + self._per_token * tokens
        if size in self._measured or tokens > _MOST_TOKENS:
            if expected > 0.0:
                found = min(seconds / expected, _OUTLIER * self._scale)
                self._scale += _SMOOTHING * (found - self._scale)
        elif self._measured:
            seconds /= self._scale
            if (known := self._sizes.get(size)) is not None:
                known.observe(tokens, seconds)
            else:
                self._sizes[size] = _Size(tokens, seconds)
            self._fit()

    @property
    def known(self) -> bool:
        """Whether passes are known of so many tokens that the line can be relied on."""
        return any(size.tokens >= _LEAST_KNOWN for size in self._sizes.values())

    @property
    def fixed(self) -> float:
        return self._scale * self._fixed

    @property
    def per_token(self) -> float:
        return self._scale * self._per_token

    def _fit(self) -> None:
        sizes = self._sizes.values()
        count = max(1, len(sizes))
        mean_tokens = sum(size.tokens for size in sizes) / count
        mean_seconds = sum(size.seconds for size in sizes) / count
        spread = sum((size.tokens - mean_tokens) ** 2 for size in sizes)
        both = sum((size.tokens - mean_tokens) * (size.seconds - mean_seconds) for size in sizes)
        self._per_token = max(0.0, both / spread) if spread else 0.0
        self._fixed = max(0.0, mean_seconds - self._per_token * mean_tokens)
