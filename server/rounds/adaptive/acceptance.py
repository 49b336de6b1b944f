"""How likely the target accepts the draft's token at each position, given that it accepted those before."""

from __future__ import annotations

from basics.names import MAX_DRAFT_TOKENS

_FIRST_GUESS = 0.7


class Acceptance:
    """Beta posteriors by position, older rounds fading.

    The prior of a position is `prior`'s estimate of it (an Acceptance over many requests), or without one the rate of
    the position before it; it counts as much as `strength` rounds. Positions for which a drafter had no token
    count as not accepted: what is estimated is the yield of asking.
    """

    def __init__(self, fading: float, strength: float, prior: Acceptance | None = None) -> None:
        self._fading = fading
        self._strength = strength
        self._prior = prior
        self._reached = [0.0] * MAX_DRAFT_TOKENS
        self._accepted = [0.0] * MAX_DRAFT_TOKENS
        self._fill_sum = self._fill_weight = 0.0
        self.rounds = 0

    def observe(self, asked: int, drafted: int, accepted: int) -> None:
        """One round: γ asked for, the length of what came, and how much of it was accepted.

        A round that asked for nothing (a drafter that chooses chose γ = 0) teaches nothing.
        """
        if asked < 1:
            return
        self.rounds += 1
        self._fill_sum = self._fill_sum * self._fading + drafted / asked
        self._fill_weight = self._fill_weight * self._fading + 1.0
        for position in range(min(asked, accepted + 1)):
            self._reached[position] = self._reached[position] * self._fading + 1.0
            self._accepted[position] = self._accepted[position] * self._fading + (position < accepted)

    def rates(self, count: int) -> list[float]:
        """For positions 0 to count - 1."""
        priors = self._prior.rates(count) if self._prior is not None else None
        rates: list[float] = []
        for position in range(count):
            if priors is not None:
                mean = priors[position]
            else:
                mean = rates[-1] if rates else _FIRST_GUESS
            pseudo = self._strength
            rates.append((self._accepted[position] + pseudo * mean) / (self._reached[position] + pseudo))
        return rates

    def fill(self) -> float:
        """How much of what was asked for came, 0 to 1."""
        mean = self._prior.fill() if self._prior is not None else 1.0
        return (self._fill_sum + self._strength * mean) / (self._fill_weight + self._strength)

    def expected_tokens(self, count: int) -> list[float]:
        """Tokens a round emits, the target's own included, for γ = 0, 1, …, count."""
        expected = [1.0]
        chain = 1.0
        for rate in self.rates(count):
            chain *= rate
            expected.append(expected[-1] + chain)
        return expected
