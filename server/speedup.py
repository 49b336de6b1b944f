"""What speculation gains: measured seconds a token with drafts, against the same target's without."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from server.backend import Round

_HALF_LIFE = 2048
_LEAST_TOKENS = 16


@dataclass(slots=True)
class _Pace:
    """Seconds and tokens, of which those from `_HALF_LIFE` tokens ago count half."""

    seconds: float = 0.0
    tokens: float = 0.0

    def add(self, seconds: float, tokens: int) -> None:
        kept = 0.5 ** (tokens / _HALF_LIFE)
        self.seconds = self.seconds * kept + seconds
        self.tokens = self.tokens * kept + tokens

    @property
    def known(self) -> bool:
        return self.tokens >= _LEAST_TOKENS and self.seconds > 0


class SpeedUps(Collector):
    """`tandem_estimated_speedup`, for each pair of which both paces are known.

    Plain decoding is measured in requests without speculation and in those stretches that the adaptive planner decodes
    plainly, for all pairs of a target together. Rounds whose draft failed count as speculative: they took their time.
    """

    def __init__(self) -> None:
        self._plain: dict[str, _Pace] = {}
        self._speculative: dict[tuple[str, str], _Pace] = {}

    def observe(self, round: Round, pair: str, kept: int) -> None:
        """A round that read no prompt, and of its tokens those that count. `pair` is how the metrics call its pair."""
        if round.speculative:
            pace = self._speculative.setdefault((round.target, pair), _Pace())
        else:
            pace = self._plain.setdefault(round.target, _Pace())
        pace.add(round.timings.total / 1000, kept)

    def collect(self) -> Iterable[Metric]:
        gauge = GaugeMetricFamily(
            "tandem_estimated_speedup", "Plain over speculative seconds a token, as measured lately", labels=["pair"]
        )
        for (target, pair), speculative in self._speculative.items():
            plain = self._plain.get(target)
            if plain is not None and plain.known and speculative.known:
                ratio = (plain.seconds / plain.tokens) / (speculative.seconds / speculative.tokens)
                gauge.add_metric([pair], ratio)
        return [gauge]
