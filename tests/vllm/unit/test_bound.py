"""The proposer bound to a model runner: each request's own options, and reports of what was proposed."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from engines.vllm.proposer.bound import Bound
from engines.vllm.reports import Reports
from engines.vllm.requests import DRAFTS, EXTRA
from protocol.hashing import PrefixHashes
from testing.fakes.batch_drafter import BatchDrafter
from testing.fakes.vllm_engine import Engine, broken_sampler
from tests.vllm.unit.test_proposer import ready


def runner(*extra_args: dict[str, Any] | None) -> Any:
    """A model runner whose batch holds requests with these extra arguments."""
    params = [SimpleNamespace(sampling_params=SimpleNamespace(extra_args=extra)) for extra in extra_args]
    names = [f"r{index}" for index in range(len(params))]
    return SimpleNamespace(
        requests=dict(zip(names, params, strict=True)), input_batch=SimpleNamespace(req_ids=names, all_greedy=True)
    )


def drafts(most: int, key: str = "k", cache_salt: str | None = None) -> dict[str, Any]:
    return {DRAFTS: {"draft_tokens": most, "key": key, "cache_salt": cache_salt}}


@pytest.fixture
def worker() -> Iterator[BatchDrafter]:
    fake = BatchDrafter()
    yield fake
    fake.close()


@pytest.fixture
def reports() -> Iterator[Reports]:
    made = Reports()
    yield made
    made.close()


def test_each_request_has_its_own_draft_length(worker: BatchDrafter, reports: Reports) -> None:
    made = ready(worker.url)
    made.bind(Bound(runner(drafts(2), drafts(9), {EXTRA: {}}, None), reports.path))
    engine = Engine(made, [5, 6], [6, 7], [7, 8], [8, 9])
    engine.step()
    assert [len(row.drafts) for row in engine.rows] == [2, 4, 0, 0], "4 is the engine's most"
    assert [len(batch.items) for batch in worker.batches] == [2]


def test_the_draft_worker_keeps_what_it_reads_under_each_requests_own_salt(
    worker: BatchDrafter, reports: Reports
) -> None:
    made = ready(worker.url)
    batch = runner(drafts(2, cache_salt="one"), drafts(2, cache_salt="two"), drafts(2))
    made.bind(Bound(batch, reports.path))
    engine = Engine(made, [5, 6], [5, 6], [5, 6])
    engine.step()
    sessions = [item.session_id for item in worker.batches[0].items]
    # Their ids are equal: the salt alone tells them apart as they move between rows.
    batch.input_batch.req_ids[:] = ["r2", "r1", "r0"]
    engine.step()
    for asked, salts in zip(worker.batches, (["one", "two", None], [None, "two", "one"]), strict=True):
        assert [item.cache_salt for item in asked.items] == salts
        for item, salt in zip(asked.items, salts, strict=True):
            hashes = PrefixHashes(salt)
            hashes.extend(engine.rows[0].ids[: item.context.start])
            assert item.context.prefix_hash == hashes.at(item.context.start)
    assert [item.session_id for item in worker.batches[1].items] == sessions[::-1]


def test_proposals_are_reported_to_those_that_follow_them(worker: BatchDrafter, reports: Reports) -> None:
    made = ready(worker.url)
    with reports.follow() as (key, proposals), reports.follow() as (other, others):
        made.bind(Bound(runner(drafts(2, key), drafts(2, "nobody's")), reports.path))
        engine = Engine(made, [5, 6], [6, 7])
        engine.step()
        reports.read()
        assert key != other
        assert proposals == {3: engine.rows[0].drafts}
        assert not others
    engine.step()
    reports.read()
    assert 6 not in proposals, "nobody follows it any more"


def test_nothing_is_proposed_while_a_broken_sampler_has_a_sampled_request(
    worker: BatchDrafter, reports: Reports
) -> None:
    made = ready(worker.url)
    batch = runner(drafts(2))
    assert made.bind(Bound(batch, reports.path)) == "all"
    made.sampler = broken_sampler()
    assert made.bind(Bound(batch, reports.path)) == "greedy"
    engine = Engine(made, [5, 6])
    engine.step()
    assert engine.rows[0].drafts
    batch.input_batch.all_greedy = False
    engine.step()
    assert not engine.rows[0].drafts
    batch.input_batch.all_greedy = True
    engine.step()
    assert engine.rows[0].drafts


def test_a_missing_receiver_costs_only_the_reports(worker: BatchDrafter) -> None:
    gone = Reports()
    gone.close()
    made = ready(worker.url)
    made.bind(Bound(runner(drafts(2)), gone.path))
    engine = Engine(made, [5, 6])
    engine.step()
    assert engine.rows[0].drafts
