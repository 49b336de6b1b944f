"""Whose memory a request has, and what the gateway has a draft worker remember."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from protocol.worker_info import Vocabulary
from server.fleet.transport import Transport
from server.rounds.history import scope_of
from testing.fakes.worker import FakeWorker
from testing.patience import until
from tests.server.fleet.harness import PROMPT, collect, expected, fleet_over, request

VOCABULARY = Vocabulary(fingerprint="one", size=50, logits_size=50)


def able(worker: FakeWorker) -> FakeWorker:
    """The fake as a worker that has a memory."""
    own = worker.model

    def model() -> dict[str, Any]:
        plain = own()
        return {**plain, "capabilities": {**plain["capabilities"], "history": True, "auto": True}}

    worker.model = model  # type: ignore[method-assign]
    return worker


def test_every_key_salt_and_vocabulary_has_a_memory_of_its_own() -> None:
    one = request()
    others = [
        (replace(one, caller="k"), VOCABULARY),
        (replace(one, cache_salt="k"), VOCABULARY),
        (replace(one, caller="k", cache_salt="k"), VOCABULARY),
        (replace(one, caller="kk"), VOCABULARY),
        (replace(one, cache_salt="kk"), VOCABULARY),
        (one, VOCABULARY.model_copy(update={"fingerprint": "two"})),
    ]
    scopes = {scope_of(asked, vocabulary, False) for asked, vocabulary in [(one, VOCABULARY), *others]}
    assert len(scopes) == len(others) + 1
    assert scope_of(one, VOCABULARY, False) == scope_of(replace(one, prompt=[1], choice_index=3), VOCABULARY, False)


def test_a_strategy_that_needs_q_has_no_memory_under_a_seed_from_the_client() -> None:
    """An answer under this seed would come back as a draft, which the same noise would then judge."""
    one = request()
    assert scope_of(one, VOCABULARY, True) is None
    assert scope_of(replace(one, drawn_seed=True), VOCABULARY, True) == scope_of(one, VOCABULARY, False)


@pytest.mark.parametrize("max_tokens", [40, 12])
def test_the_whole_answer_is_remembered_under_the_callers_scope(max_tokens: int) -> None:
    async def main() -> None:
        draft = able(FakeWorker("draft"))
        async with fleet_over([FakeWorker("target")], [draft]) as fleet:
            await collect(fleet, replace(request(max_tokens), caller="mine"))
            await until(lambda: draft.remembered)
        (remembered,) = draft.remembered
        assert remembered.token_ids == PROMPT + expected(max_tokens)
        drafted = [call.history for _, call in draft.calls if call.draft_tokens]
        assert drafted
        assert set(drafted) == {remembered.history}

    asyncio.run(main())


def test_an_answer_whose_client_left_is_remembered_as_far_as_it_came() -> None:
    async def main() -> None:
        draft = able(FakeWorker("draft"))
        async with fleet_over([FakeWorker("target")], [draft]) as fleet:
            rounds = fleet.rounds(request())
            came = [token for _ in range(4) for token in (await anext(rounds)).token_ids]
            await rounds.aclose()  # type: ignore[attr-defined]
            await until(lambda: draft.remembered)
        assert draft.remembered[0].token_ids == PROMPT + came

    asyncio.run(main())


def test_a_worker_without_memory_receives_no_history_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    """An older worker refuses fields that it does not know, so they are not sent at all."""
    sent: list[tuple[str, bytes]] = []
    call = Transport.call

    async def watched(self: Transport, method: str, path: str, body: bytes | None, **rest: Any) -> bytes:
        sent.append((path, body or b""))
        return await call(self, method, path, body, **rest)

    monkeypatch.setattr(Transport, "call", watched)

    async def main() -> None:
        async with fleet_over([FakeWorker("target")], [FakeWorker("draft")]) as fleet:
            await collect(fleet, request())

    asyncio.run(main())
    drafts = [body for path, body in sent if path == "/v1/draft"]
    assert drafts
    assert not any(word in body for body in drafts for word in (b"history", b"auto", b"verify_seconds"))
    assert not any(path == "/v1/remember" for path, _ in sent)
