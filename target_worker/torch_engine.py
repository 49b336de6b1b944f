"""The target on the torch engine: jobs on one loop."""

from __future__ import annotations

from collections.abc import Iterable

from config.workers import TargetWorkerConfig
from engines.channel import Channel
from engines.torch.loop import EngineLoop
from protocol.messages import GenerateRequest, ModelInfo, TokenizerInfo, VerifyRequest, VerifyResponse
from target_worker.generate import generate_job
from engines.torch.drawing import Limits
from target_worker.verify import verify_job
from worker.metrics import Reading

_UNREAD_ROUNDS = 32
"""Rounds a stream may be ahead of its reader before its job waits."""


class TorchTarget:
    """A TargetEngine (target_worker/engine.py)."""

    def __init__(
        self, loop: EngineLoop, info: ModelInfo, tokenizer: TokenizerInfo, stall_seconds: float, log_decisions: bool
    ) -> None:
        """`loop` has been started."""
        self.info = info
        self.tokenizer = tokenizer
        self._loop = loop
        self._limits = Limits(frozenset(info.stop_token_ids), info.context_length)
        self._stall_seconds = stall_seconds
        self._log_decisions = log_decisions

    async def verify(self, request: VerifyRequest, ids: list[int], owner: int | None, deadline: float) -> VerifyResponse:
        return await self._loop.run(verify_job(request, ids, owner, self._limits, self._log_decisions), deadline)

    def rounds(self) -> Channel[VerifyResponse]:
        return Channel(_UNREAD_ROUNDS, self._loop.wake)

    async def generate(
        self,
        request: GenerateRequest,
        ids: list[int],
        owner: int | None,
        rounds: Channel[VerifyResponse],
        emitted: list[int],
    ) -> None:
        job = generate_job(request, ids, owner, self._limits, rounds, emitted, self._stall_seconds)
        await self._loop.run(job, float("inf"))

    def disown(self, owner: int) -> None:
        self._loop.disown(owner)

    def gauges(self) -> Iterable[Reading]:
        return self._loop.gauges()

    def counters(self) -> Iterable[Reading]:
        return self._loop.counters()

    def close(self, patience: float) -> None:
        self._loop.shutdown(patience)
