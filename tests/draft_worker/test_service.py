"""The draft service: what it says of itself, which drafter answers, and answers remembered beyond its end."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest

from config.workers import DraftWorkerConfig
from draft_worker import service
from draft_worker.drafter import Asked, Means, certain
from draft_worker.engine import Drafted
from draft_worker.metrics import DraftMetrics
from draft_worker.service import DraftService
from protocol.errors import EngineFailure
from protocol.messages import DraftRequest, RememberRequest
from testing.wire import request

SCOPE = "0" * 32


def lookup(**settings: Any) -> DraftService:
    return DraftService(None, DraftWorkerConfig(**settings), DraftMetrics())


def asked(ids: list[int], **fields: Any) -> DraftRequest:
    return DraftRequest.model_validate_json(json.dumps(request(ids, **fields)))


def answering(name: str, answers: list[int] | None) -> Any:
    """A kind of drafter that always says the same; None: it has nothing to say."""

    class Fixed:
        source: ClassVar[str] = name

        @classmethod
        def of(cls, means: Means) -> Self:
            return cls()

        async def draft(self, asked: Asked) -> Drafted | None:
            return None if answers is None else certain(asked, [answers[: asked.tokens]])

    return Fixed


def test_a_worker_without_a_model_says_what_it_can_do() -> None:
    info = lookup(history_mb=0, max_sessions=3).info
    assert (info.id, info.vocabulary, info.max_sessions) == ("lookup", None, 3)
    able = info.capabilities
    assert (able.auto, able.history, able.translates, able.lookahead) == (True, False, False, False)
    assert lookup(history_mb=1).info.capabilities.history


def test_the_first_drafter_with_an_answer_is_the_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        kinds = [answering("lookup", None), answering("prediction", [5, 6]), answering("model", [7])]
        monkeypatch.setattr(service, "DRAFTERS", kinds)
        answer = await lookup().draft(asked([1, 2], draft_tokens=2))
        assert (answer.source, answer.candidates[0].token_ids) == ("prediction", [5, 6])
        monkeypatch.setattr(service, "DRAFTERS", kinds[:1])
        with pytest.raises(EngineFailure, match="no drafter answers"):
            await lookup().draft(asked([1, 2], draft_tokens=2))

    asyncio.run(main())


def test_no_more_is_drafted_than_the_request_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr(service, "DRAFTERS", [answering("lookup", [5, 6, 7, 8])])
        answer = await lookup().draft(asked([1, 2], draft_tokens=4, max_tokens=2))
        assert answer.candidates[0].token_ids == [5, 6]

    asyncio.run(main())


def test_a_long_answer_is_remembered_without_a_gap() -> None:
    """It is taken in pieces; a match across their border is as long as any."""
    answer = list(range(10_000, 19_000))

    async def main() -> None:
        worker = lookup(history_mb=8)
        assert (await worker.remember(RememberRequest(history=SCOPE, token_ids=answer))).remembered
        assert worker.memory is not None
        for place in (100, 4_090, 4_096, 4_100, 8_192, 8_500):
            found = worker.memory.continuation(SCOPE, answer[:place], 4)
            assert found is not None
            assert found.token_ids == answer[place : place + 4]

    asyncio.run(main())


def test_what_is_remembered_outlasts_the_service(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"

    async def main() -> None:
        worker = lookup(history_mb=1, history_file=file)
        await worker.remember(RememberRequest(history=SCOPE, token_ids=[1, 2, 3, 4, 5, 6]))
        await worker.close(1.0)
        again = lookup(history_mb=1, history_file=file)
        assert again.memory is not None
        assert list(again.memory.answers()) == [(SCOPE, [1, 2, 3, 4, 5, 6])]
        without = lookup(history_mb=0, history_file=file)
        assert not (await without.remember(RememberRequest(history=SCOPE, token_ids=[1]))).remembered

    asyncio.run(main())
