"""The proposer in a simulated engine, over draft workers that help, lie, dawdle and vanish."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from engines.vllm.proposer import TandemProposer
from engines.vllm.versions import check_installed
from protocol.messages import DraftBatchRequest
from testing.fakes.batch_drafter import BatchDrafter, errors, good
from testing.fakes.vllm_engine import (
    MAX_MODEL_LEN,
    Engine,
    broken_sampler,
    config,
    following,
    proposer,
    table,
)
from testing.patience import PATIENCE

PROMPTS = ([5, 6, 7], [9, 9, 9, 9], [4])


@pytest.fixture
def worker() -> Iterator[BatchDrafter]:
    fake = BatchDrafter()
    yield fake
    fake.close()


def until(holds: Callable[[], object], step: Callable[[], object] = lambda: time.sleep(0.002)) -> None:
    """Do `step` until it holds; fails after PATIENCE seconds."""
    give_up = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < give_up
        step()


def ready(url: str, draft_tokens: int = 4, **options: object) -> TandemProposer:
    made = proposer(url, draft_tokens, **options)
    until(lambda: made.ready)
    return made


def is_plain(engine: Engine) -> bool:
    """Whether every text is the target's own."""
    return all(row.ids[index] == following(row.ids[:index]) for row in engine.rows for index in range(len(row.ids))[4:])


def test_all_requests_of_a_step_are_asked_for_in_one_call_and_only_new_ids_travel(worker: BatchDrafter) -> None:
    engine = Engine(ready(worker.url), *PROMPTS)
    for _ in range(4):
        engine.step()
    assert [len(batch.items) for batch in worker.batches] == [3, 3, 3, 3]
    assert all(row.accepted == 12 for row in engine.rows)
    for item in worker.batches[-1].items:
        assert len(item.context.token_ids) == 5, "four accepted and the target's own"
        assert item.num_prompt_tokens in (3, 4, 1)
        assert item.round == 3
    assert is_plain(engine)


def test_sessions_follow_their_requests_through_the_rows_and_are_deleted_after(worker: BatchDrafter) -> None:
    engine = Engine(ready(worker.url), *PROMPTS)
    engine.step()
    sessions = [item.session_id for item in worker.batches[-1].items]
    engine.rows = [engine.rows[2], engine.rows[0]]
    engine.step()
    assert [item.session_id for item in worker.batches[-1].items] == [sessions[2], sessions[0]]
    until(lambda: worker.deleted == [sessions[1]])


def test_the_last_requests_sessions_are_deleted_though_no_step_follows(
    worker: BatchDrafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(ready(worker.url), *PROMPTS)
    engine.step()
    sessions = [item.session_id for item in worker.batches[-1].items]
    monkeypatch.setattr("engines.vllm.proposer.proposer._IDLE_SECONDS", 0.0)
    until(lambda: worker.deleted == sessions)
    monkeypatch.undo()
    engine.step()
    assert {item.session_id for item in worker.batches[-1].items}.isdisjoint(sessions)
    assert all(row.drafts for row in engine.rows)


def test_equal_requests_have_sessions_of_their_own(worker: BatchDrafter) -> None:
    engine = Engine(ready(worker.url), [5, 6], [5, 6])
    engine.step()
    engine.step()
    for batch in worker.batches:
        assert len({item.session_id for item in batch.items}) == 2


def test_long_prompts_are_read_beside_the_engine_first(worker: BatchDrafter) -> None:
    engine = Engine(ready(worker.url), [5] * 90, [6, 7])
    gate = threading.Event()

    def slow_reader(batch: DraftBatchRequest) -> bytes:
        if not any(item.draft_tokens for item in batch.items):
            gate.wait(PATIENCE)
        return good(batch)

    worker.behaviour = slow_reader
    engine.read()
    for _ in range(3):
        engine.step()
    assert (engine.rows[0].drafted, engine.rows[1].accepted) == (0, 8)
    gate.set()
    until(engine.has_read)
    engine.step()
    assert engine.rows[0].drafted > 0
    asked = next(item for item in worker.drafts()[-1].items if item.num_prompt_tokens == 90)
    assert asked.context.start == 90


def test_what_a_worker_lost_is_sent_again(worker: BatchDrafter) -> None:
    engine = Engine(ready(worker.url), [5, 6])
    engine.step()
    worker.behaviour = errors(409)
    engine.step()
    worker.behaviour = good
    engine.step()
    (item,) = worker.batches[-1].items
    assert (item.context.start, item.context.token_ids) == (0, engine.rows[0].ids)
    assert engine.rows[0].drafts


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"garbage",
        b"[" * 100_000,
        b'{"items": []}',
        b'{"items": 3}',
        b'{"items": [null]}',
        b'{"items": [{"response": {"candidates": 5}}]}',
        b'{"items": [{"response": {"candidates": [{"token_ids": ["7"]}]}}]}',
        b'{"items": [{"response": {"candidates": [{"token_ids": [32]}]}}]}',
        b'{"items": [{"response": {"candidates": [{"token_ids": [-1]}]}}]}',
        b'{"items": [{"response": {"candidates": [{"token_ids": [1e3]}]}}]}',
        b'{"items": [{"response": {"candidates": [{"token_ids": [4, 4, 4, 4, 4]}]}}]}',
        json.dumps({"items": [{"response": {"candidates": [{"token_ids": [4] * 3_000_000}]}}]}).encode(),
        None,
    ],
    ids=lambda body: "cut" if body is None else body[:60].decode(),
)
def test_no_answer_of_a_worker_breaks_a_step(worker: BatchDrafter, body: bytes | None) -> None:
    engine = Engine(ready(worker.url), [5, 6])
    worker.behaviour = lambda batch: body
    for _ in range(5):
        engine.step()
    assert engine.rows[0].drafted == 0
    worker.behaviour = good
    until(lambda: engine.rows[0].accepted, engine.step)
    assert is_plain(engine)


def test_wrong_drafts_cost_no_text(worker: BatchDrafter) -> None:
    engine = Engine(ready(worker.url), *PROMPTS)
    wrong = {"items": [{"response": {"candidates": [{"token_ids": [1, 2, 0]}]}}] * 3}
    worker.behaviour = lambda batch: json.dumps(wrong).encode()
    for _ in range(5):
        engine.step()
    assert all((row.drafted, row.accepted) == (15, 0) for row in engine.rows)
    assert is_plain(engine)


def test_a_slow_worker_catches_up_beside_the_engine(worker: BatchDrafter) -> None:
    engine = Engine(ready(worker.url, deadline_ms=500), [5, 6])
    gate = threading.Event()
    worker.behaviour = lambda batch: good(batch) if gate.wait(PATIENCE) else None
    engine.step()
    until(lambda: worker.drafts() and engine.proposer.ready)
    for _ in range(40):
        engine.step()
    until(lambda: len(worker.batches) == 2)
    assert len(worker.drafts()) == 1, "no step waits for a worker that is late already"
    gate.set()
    until(engine.has_read)
    until(lambda: engine.proposer.ready)
    engine.step()
    until(lambda: len(worker.drafts()) == 2)
    late, caught_up = (batch.items[0] for batch in worker.drafts()[:2])
    assert caught_up.session_id == late.session_id
    assert caught_up.context.start > len(late.context.token_ids), "it was sent what it missed"
    assert is_plain(engine)


def test_a_worker_that_gives_nothing_is_left_alone_and_comes_back(worker: BatchDrafter) -> None:
    engine = Engine(ready(worker.url), [5, 6])
    worker.behaviour = lambda batch: b"garbage"
    until(lambda: engine.proposer.ready, engine.step)
    until(lambda: not engine.proposer.ready, engine.step)
    worker.behaviour = good
    until(lambda: engine.rows[0].drafts, engine.step)


def test_a_worker_that_comes_later_is_found() -> None:
    gone = BatchDrafter()
    gone.close()
    late = BatchDrafter()
    made = ready(f"{gone.url},{late.url}")
    engine = Engine(made, [5, 6])
    engine.step()
    assert engine.rows[0].drafts
    late.close()


def test_a_worker_of_another_vocabulary_or_kind_is_not_asked(worker: BatchDrafter) -> None:
    for info in ({"hello": 1}, [], {"role": "target", "protocol": 1}, {"role": "draft", "protocol": 2}):
        worker.info = info
        asked = len(worker.tokens)
        made = proposer(worker.url, token="secret")
        until(lambda asked=asked: len(worker.tokens) > asked)
        engine = Engine(made, [5, 6])
        engine.step()
        assert not worker.batches
        assert not made.ready
        made.close()
    assert set(worker.tokens) == {"Bearer secret"}


def test_no_draft_reaches_the_end_of_the_context_or_goes_beyond_a_stop_token(worker: BatchDrafter) -> None:
    engine = Engine(ready(worker.url), [5] * (MAX_MODEL_LEN - 30))
    engine.read()
    until(engine.has_read)
    engine.step()
    assert engine.rows[0].drafts
    while len(engine.rows[0].ids) < MAX_MODEL_LEN - 1:
        engine.step()
        row = engine.rows[0]
        assert not row.drafts or len(row.ids) + len(row.drafts) < MAX_MODEL_LEN
    calls = len(worker.drafts())
    engine.rows[0].ids[-1] = 31
    engine.proposer.propose([[31]], [4], table([5, 6, 7, 31]))
    assert len(worker.drafts()) == calls


def test_a_vllm_that_tandem_was_not_tested_with_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.vllm.versions.version", lambda name: "0.33.0")
    monkeypatch.setattr("engines.vllm.proposer.proposer.check_installed", check_installed)
    with pytest.raises(ValueError, match=r"vllm 0\.33\.0 is installed; .* tested with 0\.24 to 0\.32"):
        TandemProposer(config({"draft_url": "http://127.0.0.1:1"}))


def test_only_the_first_rank_asks(worker: BatchDrafter) -> None:
    options = {"draft_url": worker.url, "trust_sampler": True, "check_vocabulary": False}
    other = TandemProposer(config(options, rank=1, ranks=2))
    other.load_model()
    assert other.propose([[7]], [3], table([5, 6, 7])) == [[]]
    assert not other.ready
    assert not worker.tokens


def test_nothing_is_proposed_for_a_while_after_a_broken_sampler_met_a_sampled_request(worker: BatchDrafter) -> None:
    made = ready(worker.url)
    made.sampler = sampler = broken_sampler()
    engine = Engine(made, [5, 6])
    engine.step()
    assert engine.rows[0].drafts
    sampler.dropped += 1
    engine.step()
    assert not engine.rows[0].drafts
    until(lambda: engine.rows[0].drafts, engine.step)


def test_nothing_is_proposed_to_an_engine_that_could_not_be_tested(
    worker: BatchDrafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engines.vllm.proposer.proposer.examine", lambda device: None)
    monkeypatch.setattr("engines.vllm.proposer.proposer._device", lambda args: "cpu")
    made = proposer(worker.url, trust_sampler=False)
    assert made.propose([[7]], [3], table([5, 6, 7])) == [[]]
    assert not worker.tokens
