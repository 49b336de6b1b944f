"""Looking at a worker: is it up, what is it, and may it be used beside the others."""

from __future__ import annotations

import asyncio
import random

from protocol.worker_info import ModelInfo, TokenizerInfo
from server.fleet.compatibility import WAYS, differences, in_words, same_vocabulary, sizes
from server.fleet.failures import Refused, TooLate, WorkerFailure
from server.fleet.metrics import FleetMetrics
from server.fleet.pool import Pool
from server.fleet.worker import Worker

_LOOK_SECONDS = 2.0
_TOKENIZER_SECONDS = 30.0
_LEARN_SECONDS = 120.0
_DOWN_INTERVAL, _NOTHING_SERVED_INTERVAL = 0.5, 0.15
"""Between looks at a worker that is down, and as long as there is no target, so that nothing can be served."""
_LATE_LOOKS = 3


class Admission:
    """Keeps the states of all workers up to date. The targets' model and vocabulary are everyone else's reference."""

    def __init__(self, targets: Pool, drafters: Pool, metrics: FleetMetrics, interval: float) -> None:
        self._targets = targets
        self._drafters = drafters
        self._metrics = metrics
        self._interval = interval
        self._late: dict[Worker, int] = {}
        self._cannot_translate: dict[Worker, tuple[ModelInfo, str]] = {}
        """Drafters that refused to learn a vocabulary: what they were then, and the vocabulary's fingerprint."""

    async def watch(self, worker: Worker) -> None:
        """Probe the worker forever: at once when something calls for it, else at jittered intervals."""
        while True:
            await self.look(worker)
            try:
                async with asyncio.timeout(self.pause(worker) * random.uniform(0.75, 1.25)):
                    await worker.look_again.wait()
            except TimeoutError:
                continue

    def pause(self, worker: Worker) -> float:
        """Seconds until it is looked at again if nothing happens."""
        if worker.state == "ready" and worker not in self._late:
            return self._interval
        return min(_DOWN_INTERVAL if self.reference() is not None else _NOTHING_SERVED_INTERVAL, self._interval)

    def reference(self) -> Worker | None:
        """A target that is ready; all that are ready have one model and vocabulary."""
        return next((worker for worker in self._targets if worker.state == "ready"), None)

    async def look(self, worker: Worker) -> None:
        """Ask a worker what it is and set its state. Never raises."""
        before = (worker.state, worker.reported)
        try:
            ready = await worker.client.ready(_LOOK_SECONDS)
            info = await worker.client.model(_LOOK_SECONDS)
            self._late.pop(worker, None)
            if not ready.ready:
                worker.missed(ready.detail)
            elif worker.state != "ready" or info != worker.reported or not self._still_fits(worker):
                await self._admit(worker, info)
        except WorkerFailure as failure:
            self._missed(worker, failure)
        finally:
            worker.look_again.clear()
        if (worker.state, worker.reported) != before:
            self._targets.notify()
            self._drafters.notify()
            if worker.role == "target":
                for drafter in self._drafters:
                    drafter.look_again.set()

    def _missed(self, worker: Worker, failure: WorkerFailure) -> None:
        """A worker that is merely late may be busy: it is down only after three probes."""
        late = self._late[worker] = self._late.get(worker, 0) + 1
        if worker.state == "ready" and isinstance(failure, TooLate) and late < _LATE_LOOKS:
            return
        worker.missed(failure.message)

    async def _admit(self, worker: Worker, info: ModelInfo) -> None:
        if info.role != worker.role:
            worker.introduce(info)
            worker.set_state("refused", f"is a {info.role} worker, configured as a {worker.role} worker")
        elif worker.role == "target":
            await self._admit_target(worker, info)
        else:
            await self._admit_drafter(worker, info)

    async def _admit_target(self, worker: Worker, info: ModelInfo) -> None:
        if info.vocabulary is None:
            worker.introduce(info)
            worker.set_state("refused", "reports no vocabulary")
            return
        tokenizer = await worker.client.tokenizer(_TOKENIZER_SECONDS)
        # From here on nothing is awaited: two targets that come up together must not both become the reference.
        other = next((w for w in self._targets if w is not worker and w.state == "ready" and w.info is not None), None)
        worker.introduce(info)
        worker.tokenizer = tokenizer
        if other is not None and other.info is not None:
            reason = _why_not_together(other.info, info)
            if reason is not None:
                worker.set_state("refused", f"{reason} (compared with {other.url})")
                return
        worker.set_state("ready", f"{info.id} on {info.engine}")

    async def _admit_drafter(self, worker: Worker, info: ModelInfo) -> None:
        reference = self.reference()
        worker.introduce(info)
        gauge = self._metrics.mismatch.labels("draft", worker.url)
        if reference is None or reference.info is None or reference.info.vocabulary is None:
            worker.set_state("unknown", "no target yet to compare its vocabulary with")
            return
        if same_vocabulary(reference.info.vocabulary, info.vocabulary):
            gauge.set(0)
            for way in WAYS:
                self._metrics.way.labels(worker.url, way).set(way == "same")
            worker.set_state("ready", f"{info.id} on {info.engine}")
            return
        if info.capabilities.translates and reference.tokenizer is not None:
            asked = (info, reference.info.vocabulary.fingerprint)
            if self._cannot_translate.get(worker) == asked:
                return  # it refused this one: do not send megabytes of tokenizer with every probe
            fault = await self._translate(worker, info, reference.info, reference.tokenizer)
            gauge.set(fault is not None)
            if fault is not None:
                self._cannot_translate[worker] = asked
                worker.set_state("refused", f"its vocabulary is not the target's, and it can't translate: {fault}")
            return
        gauge.set(1)
        assert info.vocabulary is not None
        reason = sizes(reference.info.vocabulary, info.vocabulary)
        if reference.tokenizer is not None:
            reason = await self._explain(worker, reference.tokenizer) or reason
        worker.set_state("refused", f"its vocabulary is not the target's: {reason}")

    async def _translate(
        self, worker: Worker, info: ModelInfo, target: ModelInfo, tokenizer: TokenizerInfo
    ) -> str | None:
        """Have a drafter learn the target's vocabulary, unless it has; returns why if it refuses."""
        assert target.vocabulary is not None
        name = target.vocabulary.fingerprint
        worker.set_state("unknown", f"learns the vocabulary of {target.id}")
        translation = next((one for one in info.translations if one.vocabulary == name), None)
        if translation is None:
            try:
                translation = await worker.client.learn(tokenizer, _LEARN_SECONDS)
            except Refused as refusal:
                return refusal.message
        worker.tokenizer = None
        if translation.way == "shared_text":
            worker.tokenizer = await worker.client.tokenizer(_TOKENIZER_SECONDS)  # for its chat template
        info = await worker.client.model(_LOOK_SECONDS)  # its info lists what it has learned
        reference = self.reference()
        if reference is None or reference.info is None or reference.info.vocabulary != target.vocabulary:
            worker.set_state("unknown", "the target was replaced meanwhile")
            return None
        worker.introduce(info)
        worker.translates(target, translation)
        for way in WAYS:
            self._metrics.way.labels(worker.url, way).set(way == translation.way)
        worker.set_state("ready", f"{info.id} on {info.engine}, {in_words(translation)}")
        return None

    async def _explain(self, worker: Worker, target: TokenizerInfo) -> str | None:
        try:
            draft = await worker.client.tokenizer(_TOKENIZER_SECONDS)
            return await asyncio.to_thread(differences, target, draft)
        except WorkerFailure:
            return None
        except Exception as error:  # noqa: BLE001 - tokenizers raises bare Exception for a tokenizer.json it can't read
            return f"{error}"[:200]

    def _still_fits(self, worker: Worker) -> bool:
        """Whether a drafter's vocabulary is still the one of the targets, which may have been replaced."""
        reference = self.reference()
        if worker.role == "target" or reference is None or reference.info is None or worker.info is None:
            return True
        ours = reference.info.vocabulary
        return ours is not None and same_vocabulary(ours, worker.info.vocabulary)


def _why_not_together(reference: ModelInfo, info: ModelInfo) -> str | None:
    ours, theirs = reference.vocabulary, info.vocabulary
    if ours is not None and theirs is not None and ours.fingerprint != theirs.fingerprint:
        return f"its vocabulary differs from the other targets': {sizes(ours, theirs)}"
    if reference.id != info.id:
        return f"serves {info.id}, the other targets serve {reference.id}"
    return None
