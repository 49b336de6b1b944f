"""vLLM's workers answer like the torch engine's, request by request."""

from __future__ import annotations

import itertools
import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from draft_worker.vocabularies.sample import SAMPLE
from draft_worker.vocabularies.speech import Speech
from testing.patience import PATIENCE, eventually
from testing.processes import Process
from testing.vocabularies import qwen_like, tokenizer_info
from testing.wire import request
from tests.vllm.real.conftest import CONTEXT, Workers

PROMPT = [*range(20, 60), 5, 9, 11]
LOGPROB_TOLERANCE = 2e-4
WARM = {"temperature": 1.0, "seed": 3}
AMPLE = 60.0
"""Seconds that a drafter is told it has to prepare: by itself it goes by how soon calls came so far."""


def tokens(process: Process, **fields: Any) -> list[int]:
    message = request(**{"ids": PROMPT, "session_id": None, "num_prompt_tokens": len(PROMPT), **fields})
    answer = httpx.post(f"{process.url}/v1/generate", json=message, timeout=PATIENCE, trust_env=False)
    assert answer.status_code == 200, answer.text
    return [token for line in answer.text.splitlines() for token in json.loads(line)["token_ids"]]


def message(**fields: Any) -> dict[str, Any]:
    return request(**{"ids": PROMPT, "session_id": None, "num_prompt_tokens": len(PROMPT), **fields})


def both(workers: Workers, path: str, asked: dict[str, Any]) -> tuple[Any, Any]:
    """vLLM's answer and torch's, without what may differ."""
    pair = (
        (workers.target, workers.torch_target)
        if path == "/v1/verify"
        else (workers.drafters["vllm"], workers.drafters["torch"])
    )
    found = [workers.post(process, path, asked) for process in pair]
    for answer in found:
        assert {"queue_ms", "forward_ms", "sample_ms", "total_ms"} <= answer.pop("timings").keys()
        answer.pop("cached_tokens")
    return found[0], found[1]


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.0},
        WARM,
        {"temperature": 1.3, "seed": 8, "top_k": 20, "min_p": 0.02, "repetition_penalty": 1.2},
        {"temperature": 0.8, "seed": 2, "logit_bias": {"40": 3.0}, "min_tokens": 30, "top_p": 0.9},
    ],
)
def test_plain_decoding(workers: Workers, sampling: dict[str, Any]) -> None:
    def equal(start: int) -> int:
        ids = [(start * 37 + 11 * place) % 380 + 3 for place in range(20 + start)]
        fields: dict[str, Any] = {"ids": ids, "num_prompt_tokens": len(ids), "max_tokens": 32, "sampling": sampling}
        ours, theirs = tokens(workers.target, **fields), tokens(workers.torch_target, **fields)
        assert ours == theirs
        return len(ours)

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(equal, range(8))) > 64


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, WARM])
def test_verify(workers: Workers, sampling: dict[str, Any]) -> None:
    own = tokens(workers.torch_target, sampling=sampling, max_tokens=8)
    cases: list[list[list[int]]] = [
        [],
        [own[:4]],
        [[*own[:2], own[2] + 1, own[3]]],
        [[own[0] + 1]],
        [[own[0] + 1, 7], own[:3], [*own[:3], own[3] + 1]],
    ]
    for chains in cases:
        for logprobs in (None, 3):
            candidates = [{"token_ids": chain} for chain in chains]
            asked = message(sampling=sampling, candidates=candidates, logprobs=logprobs, max_tokens=4)
            ours, theirs = both(workers, "/v1/verify", asked)
            for one, other in zip(ours.pop("logprobs") or [], theirs.pop("logprobs") or [], strict=True):
                assert one["logprob"] == pytest.approx(other["logprob"], abs=LOGPROB_TOLERANCE)
                assert one["rank"] == other["rank"]
                assert [token for token, _ in one["top"]] == [token for token, _ in other["top"]]
            assert ours == theirs


def looked_ahead(workers: Workers) -> None:
    """Wait until vLLM's drafter prepares nothing."""
    name = "tandem_draft_lookahead_running"
    eventually(lambda: workers.client.metrics(workers.drafters["vllm"].url)[name] == 0, "the end of lookahead")


@pytest.mark.parametrize("want_q", [False, True])
@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, WARM], ids=["greedy", "warm"])
def test_a_draft_that_vllm_has_prepared_is_the_one_that_it_would_draw(
    workers: Workers, sampling: dict[str, Any], want_q: bool
) -> None:
    drafter = workers.drafters["vllm"]
    common = {"sampling": sampling, "want_q": want_q, "num_prompt_tokens": len(PROMPT)}
    name = f"ahead-{sampling['temperature']}-{want_q}"
    asked = request(PROMPT, session_id=name, draft_tokens=4, lookahead_tokens=4, lookahead_seconds=AMPLE, **common)
    first = workers.post(drafter, "/v1/draft", asked)
    drafted = first["candidates"][0]["token_ids"]
    looked_ahead(workers)
    (guess,) = workers.post(
        drafter, "/v1/draft", request([*PROMPT, *drafted], session_id=None, draft_tokens=1, **common)
    )["candidates"][0]["token_ids"]
    ids = [*PROMPT, *drafted, guess]
    plain = workers.post(drafter, "/v1/draft", request(ids, session_id=None, draft_tokens=4, **common))
    there = workers.post(
        drafter, "/v1/draft", request(ids, held=len(PROMPT), round=1, session_id=name, draft_tokens=4, **common)
    )
    assert there["parts"] == [{"source": "cache", "tokens": 4}]
    (found,), (drawn,) = there["candidates"], plain["candidates"]
    assert found["token_ids"] == drawn["token_ids"]
    if want_q:
        assert [top["token_ids"] for top in found["q"]] == [top["token_ids"] for top in drawn["q"]]
        assert found["logprobs"] == pytest.approx(drawn["logprobs"], abs=LOGPROB_TOLERANCE)


def test_vllm_stops_preparing_once_another_call_comes(workers: Workers) -> None:
    """Asked again until it is seen: a fast vLLM may have prepared all before the other call is there."""
    drafter = workers.drafters["vllm"]
    asked = {"sampling": {"temperature": 0.0}, "num_prompt_tokens": len(PROMPT), "max_tokens": 300}
    first = request(PROMPT, draft_tokens=2, lookahead_tokens=32, lookahead_seconds=AMPLE, **asked)
    other = request([*PROMPT, 8], session_id=None, draft_tokens=1, **asked)
    names = (f"stopped-{number}" for number in itertools.count())

    def prepared() -> float:
        return workers.client.metrics(drafter.url)['tandem_draft_lookahead_tokens_total{what="prepared"}']

    def stopped() -> bool:
        name, before = next(names), prepared()
        # One connection for both, so that the second follows at once.
        with httpx.Client(base_url=drafter.url, timeout=PATIENCE, trust_env=False) as client:
            for message in ({**first, "session_id": name}, other):
                assert client.post("/v1/draft", json=message).status_code == 200
        looked_ahead(workers)
        ids = [*PROMPT, 1]  # what was prepared is counted with the session's next call
        workers.post(drafter, "/v1/draft", request(ids, session_id=name, round=1, draft_tokens=1, **asked))
        found = prepared() - before
        assert found <= 32
        return 0 < found < 32

    eventually(stopped, "some of what was to be prepared is left out")


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, WARM], ids=["greedy", "warm"])
@pytest.mark.parametrize("right", [True, False])
def test_a_verification_that_is_held_until_the_verdict_before_it(
    workers: Workers, sampling: dict[str, Any], right: bool
) -> None:
    own = tokens(workers.torch_target, sampling=sampling, max_tokens=16)
    session = f"held-{sampling['temperature']}-{right}"
    common = {"num_prompt_tokens": len(PROMPT), "sampling": sampling, "session_id": session}
    first = request(PROMPT, candidates=[{"token_ids": own[:3]}], **common)
    wrong = {"token_ids": [*own[:3], own[3] + 1], "candidate": {"token_ids": [7, 8]}}
    came = {"token_ids": own[:4], "candidate": {"token_ids": [*own[4:6], own[6] + 1]}}
    second = request(
        PROMPT, held=len(PROMPT), round=1, follows=0, alternatives=[wrong, came] if right else [wrong], candidates=[],
        **common,
    )  # fmt: skip
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(workers.post, workers.target, "/v1/verify", first)
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            answer = httpx.post(f"{workers.target.url}/v1/verify", json=second, timeout=PATIENCE, trust_env=False)
            if answer.status_code != 409 or answer.json()["error"]["field"] != "follows":
                break  # else it came before the round that it follows
        assert under_way.result()["token_ids"] == own[:4]
    if not right:
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "not_followed")
        return
    found = answer.json()
    assert (answer.status_code, found["candidate"], found["num_accepted"]) == (200, 1, 2)
    assert found["token_ids"] == own[4:7]


def test_rounds_of_a_session(workers: Workers) -> None:
    """Only what is new is sent, and a retried round, whose context vLLM holds by then, gets the same answer."""
    own = tokens(workers.target, sampling={"temperature": 0.0}, max_tokens=64)
    ids, number, held = list(PROMPT), 0, 0
    while len(ids) < len(PROMPT) + 48:
        at = len(ids) - len(PROMPT)
        asked = request(
            ids=ids,
            held=held,
            session_id="rounds",
            round=number,
            num_prompt_tokens=len(PROMPT),
            max_tokens=64 - at,
            sampling={"temperature": 0.0},
            candidates=[{"token_ids": own[at : at + 5]}],
        )
        first, again = (workers.post(workers.target, "/v1/verify", asked) for _ in range(2))
        assert first["token_ids"] == again["token_ids"] == own[at : at + 6]
        held, number = len(ids), number + 1
        ids += first["token_ids"]
    assert first["cached_tokens"] > 32


def test_probabilistic(workers: Workers) -> None:
    outcomes = set()
    for seed in range(8):
        sampling = {"temperature": 0.9, "top_p": 0.95, "seed": seed}
        asked = message(sampling=sampling, draft_tokens=4, want_q=True)
        drafted = workers.post(workers.drafters["vllm"], "/v1/draft", asked)["candidates"]
        asked = message(sampling=sampling, candidates=drafted, strategy="probabilistic", max_tokens=8)
        ours, theirs = both(workers, "/v1/verify", asked)
        assert ours == theirs
        outcomes.add(ours["num_accepted"])
    assert len(outcomes) > 1


def test_greedy(workers: Workers) -> None:
    """At a temperature that would draw other tokens, the likeliest ones are accepted, up to a wrong one."""
    own = tokens(workers.torch_target, sampling={"temperature": 0.0}, max_tokens=4)
    for right in range(5):
        chain = [*own[:right], *((token + 1) % 384 for token in own[right:])]
        asked = message(sampling=WARM, candidates=[{"token_ids": chain}], strategy="greedy", max_tokens=8)
        ours, theirs = both(workers, "/v1/verify", asked)
        assert ours == theirs
        assert ours["num_accepted"] == right


def test_what_is_refused(workers: Workers) -> None:
    asked = message(candidates=[{"token_ids": [5]}], strategy="threshold")
    answer = httpx.post(f"{workers.target.url}/v1/verify", json=asked, timeout=PATIENCE, trust_env=False)
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, "strategy")
    asked = message(ids=[5] * CONTEXT, candidates=[])
    answer = httpx.post(f"{workers.target.url}/v1/verify", json=asked, timeout=PATIENCE, trust_env=False)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_too_long")


def test_the_last_token_that_fits(workers: Workers) -> None:
    ids = [(7 * place) % 380 + 3 for place in range(CONTEXT - 2)]
    asked = message(
        ids=ids, num_prompt_tokens=10, max_tokens=9, sampling={"temperature": 0.0}, candidates=[{"token_ids": [5] * 6}]
    )
    ours, theirs = both(workers, "/v1/verify", asked)
    assert ours == theirs
    right = [*tokens(workers.target, ids=ids, sampling={"temperature": 0.0}, max_tokens=9), 5]
    asked["candidates"] = [{"token_ids": right}]
    ours, theirs = both(workers, "/v1/verify", asked)
    assert ours == theirs
    assert ours["stop_reason"] == "length"


def test_stop_tokens(workers: Workers) -> None:
    own = tokens(workers.torch_target, sampling=WARM, max_tokens=12)
    sampling = {**WARM, "stop_token_ids": [own[4]]}
    first = own.index(own[4])
    assert tokens(workers.target, sampling=sampling, max_tokens=12) == own[: first + 1]
    ours, theirs = both(workers, "/v1/verify", message(sampling=sampling, candidates=[{"token_ids": own[:8]}]))
    assert ours == theirs
    assert ours["stop_reason"] == "stop_token"
    sampling["min_tokens"] = 20
    fields: dict[str, Any] = {"sampling": sampling, "max_tokens": 24}
    assert tokens(workers.target, **fields) == tokens(workers.torch_target, **fields)


GRAMMAR = {"type": "regex", "value": "(fox|dog|cat){2,6}", "start": len(PROMPT)}


def test_grammars(workers: Workers) -> None:
    fields: dict[str, Any] = {"sampling": WARM, "grammar": GRAMMAR, "max_tokens": 30}
    own = tokens(workers.target, **fields)
    assert own == tokens(workers.torch_target, **fields)
    for chain in (own[:4], [*own[:2], 7]):
        ours, theirs = both(workers, "/v1/verify", message(candidates=[{"token_ids": chain}], **fields))
        assert ours == theirs
    ours, theirs = both(workers, "/v1/draft", message(draft_tokens=4, num_candidates=2, **fields))
    assert ours == theirs


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, WARM, {"temperature": 0.8, "top_p": 0.9, "seed": 1}])
def test_drafts(workers: Workers, sampling: dict[str, Any]) -> None:
    for more in ({}, {"num_candidates": 3}, {"num_candidates": 2, "candidate_temperature": 1.4}, {"draft_tokens": 0}):
        ours, theirs = both(workers, "/v1/draft", message(sampling=sampling, **{"draft_tokens": 5, **more}))
        assert ours == theirs


def test_q_is_what_was_sampled(workers: Workers) -> None:
    ours, theirs = both(workers, "/v1/draft", message(sampling=WARM, draft_tokens=4, want_q=True))
    (one,), (other,) = ours["candidates"], theirs["candidates"]
    assert one["token_ids"] == other["token_ids"]
    for mine, reference in zip(one["q"], other["q"], strict=True):
        found = dict(zip(mine["token_ids"], mine["logprobs"], strict=True))
        expected = dict(zip(reference["token_ids"], reference["logprobs"], strict=True))
        # Where the cut lies between two equally likely tokens, either may be in.
        assert len(found) == len(expected)
        shared = found.keys() & expected.keys()
        assert len(shared) >= len(expected) - 1
        assert [found[token] for token in shared] == pytest.approx(
            [expected[token] for token in shared], abs=LOGPROB_TOLERANCE
        )
        assert one["token_ids"][one["q"].index(mine)] in found


def test_a_reader_that_leaves_frees_its_request(workers: Workers) -> None:
    """Asked again until it is seen: a fast vLLM may have made all of it before the reader has left."""

    def page() -> dict[str, float]:
        return workers.client.metrics(workers.target.url)

    asked = message(sampling={**WARM, "ignore_eos": True}, max_tokens=CONTEXT - len(PROMPT))

    def freed_in_the_middle() -> bool:
        before = page()
        with httpx.Client(trust_env=False, timeout=PATIENCE) as client:
            with client.stream("POST", f"{workers.target.url}/v1/generate", json=asked) as answer:
                next(answer.iter_lines())
            eventually(lambda: page()["tandem_target_num_requests_running"] == 0, "vLLM serves nothing any more")
        told, computed = (
            page()[name] - before[name]
            for name in ("tandem_target_generation_tokens_total", "tandem_target_iteration_tokens_sum")
        )
        assert 0 < told <= asked["max_tokens"]
        return computed < asked["max_tokens"] / 2

    eventually(freed_in_the_middle, "most of what was asked for is left out")


def test_what_the_workers_report_about_themselves(workers: Workers) -> None:
    def info(process: Process) -> Any:
        return httpx.get(f"{process.url}/v1/model", timeout=PATIENCE, trust_env=False).json()

    ours, theirs = info(workers.target), info(workers.torch_target)
    assert ours["engine"] == "vllm"
    for name in ("vocabulary", "special_token_ids", "stop_token_ids", "context_length", "dtype"):
        assert ours[name] == theirs[name], name
    assert ours["fingerprint"] != theirs["fingerprint"]
    assert [point["rows"] for point in ours["step_seconds"]] == [1, 2, 4, 8, 16]
    assert info(workers.drafters["vllm"])["capabilities"]["q"]


def test_drafts_for_another_vocabulary_come_by_shared_text(workers: Workers) -> None:
    """vLLM draws with noise of its own ids alone, so never by shared ids."""
    info = tokenizer_info(qwen_like([SAMPLE]), None, "<|im_end|>")
    for name in ("vllm", "torch"):
        told = workers.post(workers.drafters[name], "/v1/vocabulary", {"tokenizer": info.model_dump()})
        assert (told["way"], told["q"]) == ("shared_text", False)
    ids = Speech(info).encode("The committee met again on Friday and")
    fields: dict[str, Any] = {"ids": ids, "num_prompt_tokens": 3, "vocabulary": info.vocabulary.fingerprint}
    found = 0
    for count in range(3, len(ids) + 1):
        asked = message(**{**fields, "ids": ids[:count], "draft_tokens": 6})
        ours, theirs = both(workers, "/v1/draft", asked)
        assert ours == theirs
        found += len(ours["candidates"][0]["token_ids"])
    assert found > 10
    url = workers.drafters["vllm"].url
    answer = httpx.post(f"{url}/v1/draft", json=message(**fields, draft_tokens=4, want_q=True), timeout=PATIENCE)
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, "want_q")
