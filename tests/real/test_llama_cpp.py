"""llama.cpp's workers as processes that end, by request or not, in the middle of answers; and without bitwise mode."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from engines.bundled import bundled_gguf
from testing.client import Answer, Client
from testing.patience import PATIENCE, eventually
from testing.processes import Process, Stack
from testing.wire import request
from tests.engines.llama_cpp.tiny_gguf import require_llama_cpp
from tests.real.rig import ask, at, drafts_again, num_drafted, revive, until_drafted

pytestmark = [pytest.mark.real, pytest.mark.slow]

STREAMS = 3
RECOVERY_SECONDS = 120.0
WORKER: dict[str, Any] = {"engine": "llama_cpp", "threads": 1, "context_length": 1024, "slots": 8}


@dataclass
class Pair:
    """A target, and a draft that draws what it would, on llama.cpp; `undisturbed` is plain decoding's answer."""

    stack: Stack
    target: Process
    drafter: Process
    client: Client
    undisturbed: Answer


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    require_llama_cpp()
    file = bundled_gguf(print)
    with Stack(tmp_path_factory.mktemp("logs-llama-cpp")) as stack:
        target = stack.target(file, **WORKER, batch_invariant=True)
        drafter = stack.draft(file, **WORKER, batch_invariant=True)
        gateway = stack.gateway(
            [target.url],
            [drafter.url],
            draft_pools={"model": [drafter.url]},
            probe_interval_seconds=0.3,
            start_timeout_seconds=RECOVERY_SECONDS,
            recovery_timeout_seconds=RECOVERY_SECONDS,
        )
        stack.wait_ready()
        client = Client(gateway.url)
        yield Pair(stack, target, drafter, client, ask(client, "none"))


def streams(pair: Pair, action: Callable[[], None], chunk: int = 5) -> list[Answer]:
    """Drafted and plain streams side by side, and the action once in the middle of all of them."""
    begun = threading.Barrier(STREAMS)

    def during(number: int) -> Callable[[int], None]:
        def wait_and_act() -> None:
            begun.wait(RECOVERY_SECONDS)
            if number == 0:
                action()

        return at(chunk, wait_and_act)

    with ThreadPoolExecutor(STREAMS) as pool:
        drafters = ["model", "none", "model"]
        answers = [pool.submit(ask, pair.client, drafter, during(n)) for n, drafter in enumerate(drafters)]
        return [answer.result(2 * RECOVERY_SECONDS) for answer in answers]


@pytest.mark.parametrize("end", ["terminate", "kill"])
def test_the_draft_worker_ends_in_mid_answer(pair: Pair, end: str) -> None:
    until_drafted(lambda: ask(pair.client, max_tokens=24))
    for answer in streams(pair, getattr(pair.drafter, end)):
        assert answer.identity == pair.undisturbed.identity
    assert (pair.drafter.wait(PATIENCE) == 0) == (end == "terminate")
    assert ask(pair.client).identity == pair.undisturbed.identity, "with the drafter gone"
    revive(pair.client, pair.drafter)
    eventually(lambda: drafts_again(pair.client), "drafting starts again")


@pytest.mark.parametrize("end", ["terminate", "kill"])
def test_the_target_ends_in_mid_answer_and_comes_back(pair: Pair, end: str) -> None:
    codes: list[int] = []

    def end_and_restart() -> None:
        getattr(pair.target, end)()
        codes.append(pair.target.wait(PATIENCE))
        pair.target.restart()

    for answer in streams(pair, end_and_restart):
        assert answer.identity == pair.undisturbed.identity
    assert (codes == [0]) == (end == "terminate")


def test_a_target_that_is_told_to_end_finishes_what_it_was_asked(pair: Pair) -> None:
    """And takes nothing new meanwhile."""
    # It has time to: what ten seconds are enough for depends on what else the machine does.
    target = pair.stack.target(bundled_gguf(print), "target-patient", **WORKER, drain_timeout_ms=240_000)
    target.wait_ready()
    fields = request([5, 6, 7, 8], max_tokens=400, sampling={"temperature": 0.0, "ignore_eos": True}, session_id=None)
    found: list[int] = []
    with (
        httpx.Client(base_url=target.url, timeout=PATIENCE, trust_env=False) as client,
        client.stream("POST", "/v1/generate", json=fields) as answer,
    ):
        lines = answer.iter_lines()
        found += json.loads(next(lines))["token_ids"]
        target.terminate()
        eventually(lambda: client.get("/ready").status_code == 503, "it takes nothing new")
        assert client.get("/health").status_code == 200
        assert client.post("/v1/generate", json=fields).status_code == 503
        for line in lines:
            found += json.loads(line)["token_ids"]
    assert len(found) == 400
    assert target.wait(PATIENCE) == 0


def test_without_bitwise_mode(pair: Pair) -> None:
    """It serves all the same, says that it is without, and its texts are whole."""
    file = bundled_gguf(print)
    with Stack(pair.stack.logs / "off") as stack:
        target = stack.target(file, **WORKER, batch_invariant=False)
        drafter = stack.draft(file, **WORKER, batch_invariant=False)
        gateway = stack.gateway([target.url], [drafter.url], draft_pools={"model": [drafter.url]})
        stack.wait_ready()
        for worker in (target, drafter):
            info = httpx.get(f"{worker.url}/v1/model", trust_env=False, timeout=PATIENCE).json()
            assert info["capabilities"]["batch_invariant"] is False
        on = httpx.get(f"{pair.target.url}/v1/model", trust_env=False, timeout=PATIENCE).json()
        assert on["capabilities"]["batch_invariant"] is True
        off = httpx.get(f"{target.url}/v1/model", trust_env=False, timeout=PATIENCE).json()
        assert off["fingerprint"] != on["fingerprint"], "answers of the two are not each other's"
        assert off["vocabulary"] == on["vocabulary"]
        with Client(gateway.url) as client:
            plain = ask(client, "none")
            drafted = until_drafted(lambda: ask(client))[-1]
        assert plain.completion_tokens == drafted.completion_tokens == 160
        assert num_drafted(drafted) > 0
