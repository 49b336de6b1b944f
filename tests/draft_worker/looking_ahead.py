"""What tests of lookahead over the wire share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from draft_worker import lookahead as lookahead_module
from draft_worker.plans import DrawSeconds
from testing.patience import PATIENCE
from testing.wire import pause, request
from testing.worker_apps import STOP, Drafter

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
GREEDY = {"temperature": 0.0, "logit_bias": {str(STOP): -100.0}}


def give_time(monkeypatch: pytest.MonkeyPatch, a_token: float = 0.0) -> None:
    """All is prepared however busy the machine is: drawing is known to take `a_token` a token, and calls to come
    minutes apart, until when nothing is cut off."""
    monkeypatch.setattr(DrawSeconds, "of", lambda self, tokens: a_token * tokens)
    monkeypatch.setattr(lookahead_module, "_smoothed", lambda old, new: PATIENCE)
    monkeypatch.setattr(lookahead_module, "_MOST_SECONDS", PATIENCE)


async def prepared(worker: Drafter) -> None:
    """Wait until all is prepared that is to be."""
    while await worker.metric("tandem_draft_lookahead_running"):
        await pause()


async def drafted_together(worker: Drafter, texts: Sequence[list[int]], round_: int, held: int) -> list[Any]:
    """The answers of a batch with an item for each text."""
    items = [
        request(
            ids, held=held, draft_tokens=2, session_id=f"s{place}", round=round_, sampling=GREEDY, lookahead_tokens=3
        )
        for place, ids in enumerate(texts)
    ]
    status, body = await worker.post("/v1/draft/batch", {"items": items})
    assert status == 200
    return [item["response"] for item in body["items"]]
