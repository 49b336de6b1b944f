"""What a request's rounds with drafts need beside its target."""

from __future__ import annotations

from dataclasses import dataclass

from server.fleet.times import StepTimes
from server.rounds.adaptive.round import Planner, Times
from server.rounds.draft_side import DraftSide

_PATIENT_SLACK, _SLACK = 0.5, 0.3
"""Seconds to wait beyond what drafts take. One that fails costs its session and what the worker has read, and after a
few the worker is left alone for a second: more than to wait for a moment."""
_FIRST_DRAFT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Speculating:
    """What a request needs for rounds with drafts. `patient`: wait for drafts that are worth less than their wait;
    `depth`: verifications may be under way at a time, if more than one, some sent before the last verdict is back."""

    drafts: DraftSide
    planner: Planner
    longest_draft: float
    patient: bool
    depth: int = 1

    def times(self, steps: StepTimes) -> Times:
        """With those of a target."""
        drafts = self.drafts
        return Times(steps, drafts.times, drafts.ahead_times, drafts.extends, self.planner.alike)

    def draft_seconds(self, steps: StepTimes, draft_tokens: int, num_candidates: int = 1) -> float:
        """How long a draft may take: a few times what it takes, since waiting longer costs more than plain decoding."""
        times = self.drafts.times
        slack = _PATIENT_SLACK if self.patient else _SLACK
        seconds = 3.0 * times.draft(draft_tokens, num_candidates) + 2.0 * steps.verify(1) + slack
        if not times.measured(num_candidates):
            seconds = max(num_candidates * seconds, _FIRST_DRAFT_SECONDS)
        return min(seconds, self.longest_draft)
