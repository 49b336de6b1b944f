"""Whether the drafter does better on the target's prompt or on the messages as its own chat template has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Prompt = Literal["target", "own"]

_TRIED = 64
"""Draft tokens judged, before which each prompt is used by turns."""
_EVERY = 16
"""Of so many sessions one tries the other prompt, so that what is known of it stays true."""
_FADING = 0.999


@dataclass(slots=True)
class _Judged:
    drafted: float = 0.0
    accepted: float = 0.0

    @property
    def rate(self) -> float:
        return (self.accepted + 1.0) / (self.drafted + 2.0)


class PromptChoice:
    """Chooses for a session; learns from what the target accepted. No clock and no chance: the same calls, the same
    choices."""

    def __init__(self) -> None:
        self._judged: dict[Prompt, _Judged] = {"target": _Judged(), "own": _Judged()}
        self._sessions = 0

    def choose(self) -> Prompt:
        """For one more session, to the end of which the choice holds: another prompt would have to be read anew."""
        self._sessions += 1
        target, own = self._judged["target"], self._judged["own"]
        if min(target.drafted, own.drafted) < _TRIED:
            return "own" if own.drafted < target.drafted else "target" if target.drafted < own.drafted else self._turn()
        better: Prompt = "own" if own.rate > target.rate else "target"
        if self._sessions % _EVERY:
            return better
        return "target" if better == "own" else "own"

    def observe(self, prompt: Prompt, drafted: int, accepted: int) -> None:
        """So many of a draft's tokens were judged, so many of them accepted."""
        for one in self._judged.values():
            one.drafted *= _FADING
            one.accepted *= _FADING
        self._judged[prompt].drafted += drafted
        self._judged[prompt].accepted += accepted

    def _turn(self) -> Prompt:
        return "target" if self._sessions % 2 else "own"
