"""The run itself: asks what the plan says, and records every answer."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tandem.bench.answers import is_right
from tandem.bench.client import Server
from tandem.bench.errors import BenchError, RequestFailure
from tandem.bench.plan import Ask, Turn
from tandem.bench.prompts import Prompt
from tandem.bench.samples import Group, Reply, Sample
from tandem.bench.variants import HISTORY, TANDEM, Load, Variant

MOST_FAILURES = 5
"""In a row, of requests that should have been served: the server is gone, or can't."""
MOST_REFUSED_PROMPTS = 3
"""In a row, each refused in every way: it is not the prompt that is wrong."""
MOST_OUTSTANDING = 512
"""Under a rate: a server that falls so far behind can't serve it."""
_WARM_UP_TOKENS = 8


class LocalModel(Protocol):
    """A way of generating in this process (tandem.bench.peers)."""

    async def generate(
        self, messages: Sequence[Mapping[str, str]], *, raw: bool, max_tokens: int, temperature: float, seed: int
    ) -> Reply: ...


@dataclass
class Run:
    """`servers` and `models` are the variants' servers by name; `max_tokens` is of every answer."""

    servers: Mapping[str, Server]
    models: Mapping[str, LocalModel]
    max_tokens: int
    ignore_eos: bool = False
    samples: list[Sample] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    """Variants that a server refuses, and its words."""
    _failures: int = 0
    _refused: set[str] = field(default_factory=set)
    _salt: str = field(default_factory=lambda: f"bench-{uuid.uuid4().hex}")
    _conversations: int = 0

    async def warm_up(self, variants: Sequence[Variant], prompt: Prompt) -> list[Variant]:
        """Ask each variant once, unmeasured. Those that can be measured; raises BenchError if plain decoding can't."""
        able = []
        load = Load()
        for variant in variants:
            sample = (await self._conversation(Turn(variant, load, (), -1), Ask(prompt, 0), _WARM_UP_TOKENS))[0]
            if sample.error is None:
                able.append(variant)
            elif variant.is_plain:
                raise BenchError(f"{self.servers[TANDEM].url}: {sample.error}")
            else:
                self.left_out[variant.name] = sample.error
        self._failures = 0
        self._refused.clear()
        return able

    async def measure(self, turns: Iterable[Turn], progress: Callable[[Turn], None]) -> None:
        """All turns. What is measured stands in `samples` and `groups` at any time, a cancelled turn's groups not.

        Raises BenchError if a server can't be asked any more.
        """
        for turn in turns:
            began = time.perf_counter()
            samples = await self._group(turn)
            seconds = time.perf_counter() - began
            tokens = sum(sample.reply.tokens for sample in samples if sample.reply is not None)
            self.samples += samples
            self.groups.append(Group(turn.variant, turn.load, seconds, tokens))
            progress(turn)
            if self._failures >= MOST_FAILURES or len(self._refused) >= MOST_REFUSED_PROMPTS:
                raise BenchError(f"{turn.variant.server}: too many requests in a row failed: {samples[-1].error}")

    async def _group(self, turn: Turn) -> list[Sample]:
        most = turn.load.concurrency if turn.load.rate is None else MOST_OUTSTANDING
        free = asyncio.Semaphore(most)
        began = time.perf_counter()

        async def one(ask: Ask) -> list[Sample]:
            await asyncio.sleep(max(0.0, ask.at - (time.perf_counter() - began)))
            if turn.load.rate is not None and free.locked():
                raise BenchError(f"{turn.variant.name}: {most} requests are running at {turn.load.name}: too many")
            async with free:
                return await self._conversation(turn, ask, self.max_tokens)

        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(one(ask)) for ask in turn.asks]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [sample for task in running for sample in task.result()]

    async def _conversation(self, turn: Turn, ask: Ask, max_tokens: int) -> list[Sample]:
        """Every turn of the user's, each with the answers before it. A failure ends it."""
        prompt, variant = ask.prompt, turn.variant
        self._conversations += 1
        # Nothing that an earlier request left in a cache or a memory is to shorten this one.
        salt = f"{self._salt}-{self._conversations}"
        if variant.drafter == HISTORY:
            salt = f"{self._salt}-{variant.name}-{variant.temperature}-{turn.load.name}-{turn.repetition}"
        messages = list(prompt.history)
        samples = []
        for number, said in enumerate(prompt.turns):
            messages.append({"role": "user", "content": said})
            reply, error = None, None
            try:
                reply = await self._reply(variant, messages, prompt.raw, max_tokens, ask.seed, salt)
            except RequestFailure as failure:
                error = str(failure)
                if failure.refused:
                    self._refused.add(prompt.id)
                else:
                    self._failures += 1
            else:
                self._failures = 0
                self._refused.clear()
            last = number == len(prompt.turns) - 1
            right = is_right(reply.text, prompt.answer) if reply and last and prompt.answer is not None else None
            samples.append(Sample(variant, turn.load, prompt.id, prompt.kind, number, ask.seed, reply, error, right))
            if reply is None:
                break
            messages.append({"role": "assistant", "content": reply.text})
        return samples

    async def _reply(
        self,
        variant: Variant,
        messages: Sequence[Mapping[str, str]],
        raw: bool,
        max_tokens: int,
        seed: int,
        salt: str,
    ) -> Reply:
        if variant.server in self.models:
            model = self.models[variant.server]
            return await model.generate(
                messages, raw=raw, max_tokens=max_tokens, temperature=variant.temperature, seed=seed
            )
        server = self.servers[variant.server]
        fields: dict[str, Any] = {"max_tokens": max_tokens, "temperature": variant.temperature, "seed": seed}
        if self.ignore_eos:
            fields["ignore_eos"] = True
        if server.speaks_tandem:
            fields["cache_salt"] = salt
            if variant.server == TANDEM:
                fields["speculative"] = variant.speculative()
        if raw:
            return await server.complete(messages[-1]["content"], **fields)
        return await server.chat(messages, **fields)
