"""What the doctor found."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from tandem.payoff import Costs, Payoff


@dataclass(slots=True)
class Check:
    """One thing checked. `ok` is None if it is neither right nor wrong."""

    name: str
    ok: bool | None
    detail: str


@dataclass(slots=True)
class PromptResult:
    """A prompt answered with and without speculation, tokens a second after the first token."""

    kind: str
    plain: float
    speculative: float
    acceptance_rate: float
    acceptance_length: float
    coverage: float
    same_text: bool
    drafters: dict[str, int] = field(default_factory=dict)
    """Accepted draft tokens by the drafter they came from."""

    @property
    def speed_up(self) -> float | None:
        return self.speculative / self.plain if self.plain and self.speculative else None


@dataclass(slots=True)
class Report:
    checks: list[Check] = field(default_factory=list)
    round_trips_ms: dict[str, float] = field(default_factory=dict)
    draft_tokens: int = 0
    costs: Costs | None = None
    prompts: list[PromptResult] = field(default_factory=list)
    verdicts: dict[str, Payoff] = field(default_factory=dict)
    lookahead: str | None = None
    """Whether drafting while the target verifies pays."""
    flights: str | None = None
    """Whether verifications pay that are sent before the last verdict is back."""

    @property
    def healthy(self) -> bool:
        return all(check.ok is not False for check in self.checks)

    def add(self, name: str, ok: bool | None, detail: str) -> None:
        self.checks.append(Check(name, ok, detail))

    def as_json(self) -> str:
        verdicts = {kind: {**asdict(verdict), "pays": verdict.pays} for kind, verdict in self.verdicts.items()}
        prompts = [{**asdict(result), "speed_up": result.speed_up} for result in self.prompts]
        report = {**asdict(self), "verdicts": verdicts, "prompts": prompts, "healthy": self.healthy}
        return json.dumps(report, indent=2, ensure_ascii=False)
