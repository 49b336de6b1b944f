"""A draft worker that follows a script, faults included: for tests of faults and of adaptation.

    python -m testing.scripted_draft --port 9001 --mode wrong

`POST /behave {"mode": "late", "delay": 2.0}` changes what it does from now on. It speaks the wire (docs/wire.md), keeps
contexts by session, and remembers every context it was sent, which is what `right` drafts from: the continuation of a
sequence with the same beginning. So a request whose tokens were seen before is drafted without a fault. `partly_right`
drafts from that memory up to a drawn place and wrongly from there on, each candidate up to a place of its own; unseen
contexts it drafts wrongly. Asked to look ahead it prepares the next draft from the moment it has answered, but foresees
the outcome only if it is `right`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response

from protocol.hashing import PrefixHashes
from protocol.messages import DraftRequest, Sampling
from protocol.worker_info import Capabilities, ModelInfo
from tandem.lifeline import hold_on, is_child

MODES = (
    "wrong", "right", "partly_right", "none", "bad_ids", "negative_ids", "nan", "lengths", "html", "huge", "error",
    "cut", "stall", "late", "mismatch", "bad_q",
)  # fmt: skip
_HUGE_BYTES = 10_000_000


@dataclass
class Script:
    """What to do: `delay` seconds before every draft, or before each `every`-th (1: all)."""

    mode: str = "wrong"
    delay: float = 0.0
    every: int = 1
    vocabulary: int = 1000
    calls: int = 0
    sessions: dict[str, list[int]] = field(default_factory=dict)
    seen: list[list[int]] = field(default_factory=list)
    looking: dict[str, float] = field(default_factory=dict)
    """Since when what follows is being prepared, by session."""
    random: random.Random = field(default_factory=lambda: random.Random(0))

    def context(self, request: DraftRequest) -> list[int] | None:
        """The whole context; None if the session lacks what the request builds on."""
        held = self.sessions.get(request.session_id or "", [])
        start = request.context.start
        if start > len(held):
            return None
        prefix = PrefixHashes(request.cache_salt)
        prefix.extend(held[:start])
        if prefix.at(start) != request.context.prefix_hash:
            return None
        ids = held[:start] + request.context.token_ids
        if request.session_id:
            self.sessions[request.session_id] = ids
        return ids

    def late(self, request: DraftRequest) -> tuple[float, bool]:
        """Seconds until this call is answered, and whether its draft was prepared: then some of them are over."""
        self.calls += 1
        since = self.looking.pop(request.session_id or "", None)
        if not self.delay or self.calls % self.every:
            return 0.0, False
        if since is None or self.mode != "right":
            return self.delay, False
        return max(0.0, self.delay - (time.monotonic() - since)), True

    def remember(self, ids: list[int]) -> None:
        for index, known in enumerate(self.seen):
            if ids[: len(known)] == known:
                self.seen[index] = list(ids)
                return
        self.seen = [*self.seen[-63:], list(ids)]

    def drafts(self, ids: list[int], count: int, candidates: int) -> list[list[int]]:
        """Candidates of up to `count` tokens after `ids`; not every mode has as many as asked for."""
        if self.mode == "right":
            return [self._known(ids, count)]
        if self.mode == "partly_right":
            return self._partly_right(self._known(ids, count), count, candidates)
        return [self._one(count) for _ in range(candidates)]

    def _known(self, ids: list[int], count: int) -> list[int]:
        """The continuation of the longest seen sequence that begins with `ids`."""
        longer = [seen for seen in self.seen if len(seen) > len(ids) and seen[: len(ids)] == ids]
        return max(longer, key=len)[len(ids) : len(ids) + count] if longer else []

    def _partly_right(self, truth: list[int], count: int, candidates: int) -> list[list[int]]:
        """Wrong from places drawn out of 0 to `count` (wholly right), distinct ones while there are any left."""
        places: list[int] = []
        while len(places) < candidates:
            places += self.random.sample(range(count + 1), count + 1)
        del places[candidates:]
        self.random.shuffle(places)
        return [self._wrong_from(place, truth, count) for place in places]

    def _wrong_from(self, place: int, truth: list[int], count: int) -> list[int]:
        draft = [*truth[:place], *self._some(count - len(truth[:place]))]
        if place < len(truth) and draft[place] == truth[place]:
            draft[place] = (truth[place] + 1) % self.vocabulary
        return draft

    def _one(self, count: int) -> list[int]:
        if self.mode == "none":
            return []
        if self.mode == "bad_ids":
            return [self.vocabulary + 7] * count
        if self.mode == "negative_ids":
            return [-1] * count
        if self.mode == "lengths":
            return self._some(count + 3)
        return self._some(count)

    def _some(self, count: int) -> list[int]:
        return [self.random.randrange(self.vocabulary) for _ in range(count)]


def create_app(script: Script) -> FastAPI:
    """The worker. Its answers are written by hand, since most of them are not what the protocol's models allow."""
    app = FastAPI()

    @app.get("/ready")
    @app.get("/health")
    async def ready() -> dict[str, Any]:
        return {"ready": True, "detail": "scripted", "status": "ok"}

    @app.get("/v1/model")
    async def model() -> Response:
        return Response(_model(script).model_dump_json(), media_type="application/json")

    @app.post("/behave")
    async def behave(request: Request) -> dict[str, Any]:
        for name, value in (await request.json()).items():
            setattr(script, name, value)
        script.calls = 0
        return {"mode": script.mode}

    @app.get("/calls")
    async def calls() -> dict[str, int]:
        return {"calls": script.calls, "sessions": len(script.sessions)}

    @app.delete("/v1/sessions/{session_id}")
    async def delete(session_id: str) -> dict[str, bool]:
        script.looking.pop(session_id, None)
        return {"deleted": script.sessions.pop(session_id, None) is not None}

    @app.post("/v1/draft")
    async def draft(request: Request) -> Response:
        began = time.perf_counter()
        asked = DraftRequest.model_validate_json(await request.body())
        ids = script.context(asked)
        if ids is None or (script.mode == "mismatch" and asked.draft_tokens):
            return _error(409, "context_mismatch")
        script.remember(ids)
        if asked.draft_tokens == 0:
            return JSONResponse(_answer(asked, [], began))
        seconds, prepared = script.late(asked)
        if seconds:
            await asyncio.sleep(seconds)
        if asked.lookahead_tokens and asked.session_id:
            script.looking[asked.session_id] = time.monotonic()
        return await _misbehave(script, asked, ids, began, prepared)

    return app


async def _misbehave(
    script: Script, asked: DraftRequest, ids: list[int], began: float, prepared: bool = False
) -> Response:
    if script.mode == "html":
        return HTMLResponse("<html><body><h1>502 Bad Gateway</h1></body></html>")
    if script.mode == "huge":
        return Response(b'{"session_id": "' + b"x" * _HUGE_BYTES + b'"}', media_type="application/json")
    if script.mode == "error":
        return _error(500, "boom")
    if script.mode == "cut":
        body = json.dumps(_answer(asked, script.drafts(ids, asked.draft_tokens, 1), began))
        return Response(body[: len(body) // 2], media_type="application/json")
    if script.mode == "stall":
        await asyncio.sleep(3600)
    answer = _answer(asked, script.drafts(ids, asked.draft_tokens, asked.num_candidates), began, prepared)
    if script.mode == "nan":
        for candidate in answer["candidates"]:
            candidate["logprobs"] = [float("nan")] * len(candidate["token_ids"])
    if script.mode == "bad_q":  # a little short of one
        for candidate in answer["candidates"]:
            candidate["q"] = [{"token_ids": [token], "logprobs": [-5e-4]} for token in candidate["token_ids"]]
    return Response(json.dumps(answer), media_type="application/json")


def _answer(asked: DraftRequest, drafts: list[list[int]], began: float, prepared: bool = False) -> dict[str, Any]:
    source = "cache" if prepared and drafts and drafts[0] else "model"
    total = (time.perf_counter() - began) * 1e3
    return {
        "session_id": asked.session_id,
        "round": asked.round,
        "candidates": [{"token_ids": ids, "logprobs": None, "q": None} for ids in drafts],
        "source": source,
        "parts": [{"source": source, "tokens": len(ids)} for ids in drafts[:1] if ids],
        "cached_tokens": asked.context.start,
        "timings": {"queue_ms": 0.0, "forward_ms": total, "sample_ms": 0.0, "total_ms": total},
    }


def _error(status: int, code: str) -> Response:
    return JSONResponse({"error": {"code": code, "message": "as told", "field": None}}, status)


def _model(script: Script) -> ModelInfo:
    return ModelInfo(
        role="draft",
        id="scripted",
        engine="scripted",
        dtype=None,
        device="cpu",
        vocabulary=None,
        special_token_ids=[],
        stop_token_ids=[],
        context_length=1_048_576,
        max_sessions=1024,
        fingerprint="scripted",
        capabilities=Capabilities(
            rounds=["gateway"],
            strategies=["deterministic", "greedy", "threshold"],
            max_candidates=8,
            max_draft_tokens=32,
            sampling=list(Sampling.model_fields),
            grammar_types=[],
            q=True,
            lookahead=True,
        ),
        step_seconds=[],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--mode", choices=MODES, default="wrong")
    parser.add_argument("--vocabulary", type=int, default=1000, help="ids of wrong drafts are below this")
    options = parser.parse_args()
    if is_child():
        hold_on()
    app = create_app(Script(mode=options.mode, vocabulary=options.vocabulary))
    uvicorn.run(app, host=options.host, port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
