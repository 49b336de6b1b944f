"""A verification that is held until the verdict before it: judged only if that is one of its alternatives."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from protocol.errors import Unsupported
from protocol.hashing import PrefixHashes
from protocol.messages import VerifyRequest
from protocol.worker_info import ModelInfo
from target_worker.checks import check_verify
from testing.fakes.runner import FakeRunner
from testing.patience import PATIENCE
from testing.wire import async_test, pause, request
from testing.worker_apps import STOP, Target, target

PROMPT = [3, 1, 4, 1, 5]
SAMPLING = {"temperature": 0.9, "logit_bias": {str(STOP): -100.0}}


async def plain(worker: Target, tokens: int) -> list[int]:
    """The target's own text."""
    ids = list(PROMPT)
    while len(ids) < len(PROMPT) + tokens:
        ids += (await worker.verify(ids=ids, session_id=None, sampling=SAMPLING))["token_ids"]
    return ids[len(PROMPT) :]


def following(*alternatives: tuple[list[int], list[int]], **fields: Any) -> dict[str, Any]:
    """A message that follows round 0, which has the context PROMPT."""
    sent = [{"token_ids": came, "candidate": {"token_ids": draft}} for came, draft in alternatives]
    return {"ids": PROMPT, "held": len(PROMPT), "round": 1, "sampling": SAMPLING, "follows": 0,
            "alternatives": sent, "candidates": [], **fields}  # fmt: skip


class Held:
    """A runner whose passes wait for `open`."""

    def __init__(self, worker: Target) -> None:
        self.open = threading.Event()
        self.runner = worker.runner
        self.before = len(self.runner.passes)
        self.runner.gate = self._wait

    def _wait(self, rows: object) -> None:
        self.open.wait(PATIENCE)

    @property
    def passes(self) -> int:
        return len(self.runner.passes) - self.before


async def under_way(worker: Target, draft: list[int], **fields: Any) -> tuple[Held, asyncio.Future[Any]]:
    """Round 0 with this draft, in its pass until `held.open` is set."""
    held = Held(worker)
    first = asyncio.ensure_future(
        worker.verify(ids=PROMPT, candidates=[{"token_ids": draft}], sampling=SAMPLING, **fields)
    )
    while not held.passes:
        await pause()
    return held, first


async def both(
    worker: Target, draft: list[int], message: dict[str, Any], **fields: Any
) -> tuple[Any, tuple[int, Any], int]:
    """Round 0 with this draft, what follows it sent while its pass runs, and how many passes that took."""
    held, first = await under_way(worker, draft, **fields)
    second = asyncio.ensure_future(worker.post("/v1/verify", request(**message)))
    for _ in range(20):
        await pause()
    assert not second.done()
    assert held.passes == 1
    held.open.set()
    return await first, await second, held.passes


@async_test
async def test_the_verdict_on_the_alternative_that_came_true_is_an_ordinary_one() -> None:
    async with target() as worker:
        text = await plain(worker, 12)
        wrong = (text[2] + 1) % STOP
        alternatives = [([wrong], text[3:6]), ([*text[:2], wrong], text[3:6]), (text[:3], [*text[3:5], wrong])]
        first, (status, second), passes = await both(worker, text[:2], following(*alternatives))
        assert first["token_ids"] == text[:3]
        assert (status, second["token_ids"], second["num_accepted"], second["round"]) == (200, text[3:6], 2, 1)
        assert passes == 2
        third = await worker.verify(ids=[*PROMPT, *text[:6]], held=len(PROMPT) + 3, round=2, sampling=SAMPLING)
        assert third["token_ids"] == text[6:7]
        assert await worker.metric("tandem_target_verifications_ahead_total") == 1


@async_test
async def test_a_verdict_that_is_no_alternative_is_followed_by_no_pass() -> None:
    """Also if an alternative is only a beginning of it, or begins with it."""
    async with target() as worker:
        text = await plain(worker, 8)
        wrong = (text[2] + 1) % STOP
        message = following((text[:2], text[2:5]), (text[:4], text[4:6]), ([*text[:2], wrong], text[3:6]))
        first, (status, second), passes = await both(worker, text[:2], message)
        assert first["token_ids"] == text[:3]
        assert (status, second["error"]["code"]) == (409, "not_followed")
        assert passes == 1
        again = await worker.verify(ids=[*PROMPT, *text[:3]], held=len(PROMPT), round=2, sampling=SAMPLING)
        assert again["token_ids"] == text[3:4]


@async_test
async def test_one_that_comes_after_the_verdict_is_judged_by_it_all_the_same() -> None:
    async with target() as worker:
        text = await plain(worker, 8)
        await worker.verify(ids=PROMPT, candidates=[{"token_ids": text[:2]}], sampling=SAMPLING)
        status, answer = await worker.post("/v1/verify", request(**following((text[:3], text[3:5]))))
        assert (status, answer["token_ids"]) == (200, text[3:6])
        status, answer = await worker.post("/v1/verify", request(**following((text[:3], text[3:5]))))
        assert (status, answer["error"]["code"]) == (409, "not_followed"), "it has been answered"


@async_test
async def test_one_may_be_held_while_one_that_was_held_is_verified() -> None:
    async with target() as worker:
        text = await plain(worker, 12)
        await worker.verify(ids=PROMPT, candidates=[{"token_ids": text[:2]}], sampling=SAMPLING)
        held = Held(worker)
        second = asyncio.ensure_future(worker.post("/v1/verify", request(**following((text[:3], text[3:5])))))
        while not held.passes:
            await pause()
        sent = [{"token_ids": text[3:6], "candidate": {"token_ids": text[6:8]}}]
        third = request(ids=[*PROMPT, *text[:3]], held=len(PROMPT) + 3, round=2, sampling=SAMPLING, follows=1)
        last = asyncio.ensure_future(worker.post("/v1/verify", {**third, "alternatives": sent, "candidates": []}))
        for _ in range(20):
            await pause()
        held.open.set()
        assert [answer["token_ids"] for _, answer in (await second, await last)] == [text[3:6], text[6:9]]
        assert held.passes == 2


@async_test
async def test_max_tokens_counts_from_the_context() -> None:
    async with target() as worker:
        text = await plain(worker, 8)
        message = following((text[:3], text[3:6]), max_tokens=5)
        _, (_, second), _ = await both(worker, text[:2], message, max_tokens=5)
        assert (second["token_ids"], second["stop_reason"]) == (text[3:5], "length")
        message = following((text[:3], text[3:6]), max_tokens=3, session_id="t")
        _, (status, _), passes = await both(worker, text[:2], message, max_tokens=4, session_id="t")
        assert (status, passes) == (409, 1)


@async_test
async def test_a_retry_gets_the_same_answer_and_another_takes_the_place() -> None:
    async with target() as worker:
        text = await plain(worker, 8)
        held = Held(worker)
        asked = {"ids": PROMPT, "candidates": [{"token_ids": text[:2]}], "sampling": SAMPLING}
        first = asyncio.ensure_future(worker.verify(**asked))
        while not held.passes:
            await pause()
        sent = []
        for draft in ([1], text[3:5], text[3:5]):
            message = request(**following((text[:3], draft)))
            sent.append(asyncio.ensure_future(worker.post("/v1/verify", message)))
            for _ in range(10):
                await pause()
        held.open.set()
        assert (await first)["token_ids"] == text[:3]
        replaced, one, two = [await answer for answer in sent]
        assert (replaced[0], replaced[1]["error"]["code"]) == (409, "not_followed")
        assert one == two
        assert one[1]["token_ids"] == text[3:6]
        assert held.passes == 2


@pytest.mark.parametrize("how", ["deleted", "overtaken", "left"])
@async_test
async def test_what_ends_the_round_before_ends_what_waits_for_it(how: str) -> None:
    async with target() as worker:
        text = await plain(worker, 8)
        held = Held(worker)
        first = asyncio.ensure_future(
            worker.post("/v1/verify", request(ids=PROMPT, candidates=[{"token_ids": text[:2]}], sampling=SAMPLING))
        )
        while not held.passes:
            await pause()
        second = asyncio.ensure_future(worker.post("/v1/verify", request(**following((text[:3], text[3:6])))))
        for _ in range(20):
            await pause()
        other: asyncio.Future[Any] | None = None
        if how == "deleted":
            other = asyncio.ensure_future(worker.client.delete("/v1/sessions/s"))
        elif how == "overtaken":
            message = request(ids=[*PROMPT, 9], held=len(PROMPT), round=2, candidates=[], sampling=SAMPLING)
            other = asyncio.ensure_future(worker.post("/v1/verify", message))
        else:
            first.cancel()
        for _ in range(20):
            await pause()
        held.open.set()
        status, answer = await second
        assert (status, answer["error"]["code"]) == (409, "not_followed")
        if other is not None:
            await other
        if how == "overtaken":
            status, answer = await asyncio.ensure_future(
                worker.post("/v1/verify", request(ids=[*PROMPT, 9], held=1, round=2, candidates=[], sampling=SAMPLING))
            )
            assert status == 200


@async_test
async def test_a_caller_that_leaves_takes_it_along() -> None:
    async with target() as worker:
        text = await plain(worker, 8)
        held, first = await under_way(worker, text[:2])
        second = asyncio.ensure_future(worker.post("/v1/verify", request(**following((text[:3], text[3:6])))))
        for _ in range(20):
            await pause()
        second.cancel()
        for _ in range(20):
            await pause()
        held.open.set()
        assert (await first)["token_ids"] == text[:3]
        for _ in range(20):
            await pause()
        assert held.passes == 1


@async_test
async def test_one_that_waits_too_long_is_a_408() -> None:
    async with target() as worker:
        text = await plain(worker, 8)
        held, first = await under_way(worker, text[:2])
        message = request(**following((text[:3], text[3:6]), deadline_ms=30))
        status, answer = await worker.post("/v1/verify", message)
        assert (status, answer["error"]["code"]) == (408, "deadline_exceeded")
        held.open.set()
        await first


@pytest.mark.parametrize(
    ("fields", "status", "field"),
    [
        ({"follows": 1}, 422, "follows"),
        ({"session_id": None}, 422, "follows"),
        ({"alternatives": []}, 422, "follows"),
        ({"follows": None}, 422, "alternatives"),
        ({"candidates": [{"token_ids": [1]}]}, 422, "follows"),
        ({"grammar": {"type": "regex", "value": "a", "start": 0}}, 422, "follows"),
        ({"held": 2}, 422, "follows"),
        ({"alternatives": [{"token_ids": [1], "candidate": {"token_ids": []}}]}, 422, "alternatives"),
        ({"alternatives": [{"token_ids": [], "candidate": {"token_ids": [1]}}]}, 422, "alternatives.0.token_ids"),
        ({"alternatives": [{"token_ids": [99], "candidate": {"token_ids": [1]}}]}, 400, "alternatives.0.token_ids.0"),
        (
            {"alternatives": [{"token_ids": [1], "candidate": {"token_ids": [99]}}]},
            400,
            "alternatives.0.candidate.token_ids.0",
        ),
        ({"strategy": "probabilistic"}, 400, "alternatives.0.candidate.q"),
        ({"session_id": "unknown"}, 409, "follows"),
    ],
)
@async_test
async def test_what_is_wrong_is_refused_by_name(fields: dict[str, Any], status: int, field: str) -> None:
    async with target() as worker:
        await worker.verify(ids=PROMPT, sampling=SAMPLING)
        got, body = await worker.post("/v1/verify", request(**{**following(([1], [2])), **fields}))
        assert (got, body["error"]["field"]) == (status, field), body


@async_test
async def test_a_context_that_is_not_held_is_not_followed() -> None:
    async with target(FakeRunner()) as worker:
        first = await worker.verify(ids=PROMPT, sampling=SAMPLING)
        message = request(**following((first["token_ids"], [2])))
        hashes = PrefixHashes(None)
        hashes.extend([*PROMPT[:-1], 7])
        message["context"]["prefix_hash"] = hashes.at(len(PROMPT))
        status, body = await worker.post("/v1/verify", message)
        assert (status, body["error"]["code"]) == (409, "not_followed")


@async_test
async def test_a_target_that_can_not_hold_one_refuses_the_field() -> None:
    async with target() as worker:
        info = ModelInfo.model_validate_json((await worker.client.get("/v1/model")).content)
        message = VerifyRequest.model_validate_json(json.dumps(request(**following(([1], [2])))))
        check_verify(message, info)
        unable = info.capabilities.model_copy(update={"follows": False})
        with pytest.raises(Unsupported) as refusal:
            check_verify(message, info.model_copy(update={"capabilities": unable}))
        assert refusal.value.field == "follows"
