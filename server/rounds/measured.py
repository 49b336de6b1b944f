"""What the answers of a target tell of its times."""

from __future__ import annotations

from protocol.messages import VerifyResponse
from server.fleet.times import StepTimes
from server.rounds.target_side import TargetSide


def verified(steps: StepTimes, answer: VerifyResponse, rows: int, seconds: float, followed: bool) -> None:
    """A verification of so many rows, for which the caller waited; `followed`: it was sent ahead."""
    told = answer.timings
    took, forward = told.total_ms / 1000, told.forward_ms / 1000
    if followed:
        steps.observe_followed(rows, told.rows, took, forward, told.sessions)
    else:
        steps.observe_verify(rows, told.rows, took, seconds, forward, told.sessions)


class Decoding:
    """A stream of plain decoding that begins now."""

    def __init__(self, target: TargetSide) -> None:
        self._target = target
        self._rounds = target.step_times.load.rounds

    def came(self, answer: VerifyResponse, seconds: float, reads: bool) -> None:
        """`seconds` after the answer before. `reads`: it includes reading the prompt, which is not a token's time."""
        steps, told, tokens = self._target.step_times, answer.timings, len(answer.token_ids)
        if answer.num_drafted == 0 and not reads:
            beside = steps.load.beside_drafts(self._rounds)
            steps.observe_plain(told.rows, seconds / tokens, told.forward_ms / 1000 / tokens, beside, told.sessions)
        self._rounds = steps.load.rounds
