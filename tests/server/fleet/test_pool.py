"""The pool, and vocabularies: each by itself."""

from __future__ import annotations

from collections.abc import Callable

from basics.breaker import Breaker
from protocol.worker_info import TokenizerInfo
from server.fleet.client import WorkerClient
from server.fleet.compatibility import differences
from server.fleet.metrics import FleetMetrics
from server.fleet.pool import Pool
from server.fleet.transport import Transport
from server.fleet.worker import Worker
from server.rounds.sequence import TokenSequence
from testing.fakes.worker import FakeWorker


def pool_of(count: int) -> tuple[Pool, list[Worker]]:
    workers = [
        Worker("target", WorkerClient(Transport(f"http://w{i}")), Breaker(), FleetMetrics()) for i in range(count)
    ]
    for worker in workers:
        worker.set_state("ready", "")
    return Pool(workers), workers


def anything(worker: Worker) -> bool:
    return True


def test_the_least_loaded_worker_is_picked() -> None:
    pool, (one, two, three) = pool_of(3)
    one.streams, two.streams, three.streams = 2, 1, 3
    assert pool.pick(anything) is two
    two.set_state("down", "")
    assert pool.pick(anything) is one
    assert pool.pick(lambda worker: worker is three) is three
    assert pool.pick(anything, avoid={one}) is three
    assert pool.pick(lambda worker: worker is one, avoid={one}) is one
    for _ in range(3):
        one.breaker.failure()
    assert pool.pick(anything) is three
    three.set_state("refused", "")
    assert pool.pick(anything) is None


def test_a_chat_goes_back_to_where_it_was_read_unless_that_is_busy() -> None:
    pool, (one, two) = pool_of(2)
    first = TokenSequence(list(range(300)), None)
    pool.remember(first.prefixes(), two)
    second = TokenSequence([*range(300), 7, 7, 7], None)
    assert pool.pick(anything, second.prefixes()) is two
    assert pool.pick(anything, TokenSequence([9] * 300, None).prefixes()) is one
    two.streams = 5
    assert pool.pick(anything, second.prefixes()) is one


def tokenizer(change: Callable[[list[str]], None]) -> TokenizerInfo:
    worker = FakeWorker("target")
    change(worker.tokens)
    return TokenizerInfo.model_validate(worker.tokenizer())


def test_vocabulary_differences_in_words() -> None:
    target = tokenizer(lambda tokens: None)

    def swap(tokens: list[str]) -> None:
        tokens[17], tokens[20] = "foo", "bar"

    text = differences(target, tokenizer(swap))
    assert "id 17: target 't17', draft 'foo'; id 20: target 't20', draft 'bar'" in text
    assert "50 tokens, the draft's 50" in text
    text = differences(target, tokenizer(lambda tokens: tokens.append("more")))
    assert "id 50: target has none, draft 'more'" in text
    text = differences(target, tokenizer(lambda tokens: tokens.__setitem__(slice(None), [f"x{i}" for i in range(50)])))
    assert "and 47 more ids differ" in text
