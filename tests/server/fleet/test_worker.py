"""One worker as the gateway sees it: its state, what a failed call means for it, who uses it."""

from __future__ import annotations

import pytest

from basics.breaker import Breaker
from protocol.errors import BadRequest
from protocol.worker_info import ModelInfo
from server.fleet.client import WorkerClient
from server.fleet.failures import BadAnswer, Busy, Refused, SessionLost, WorkerFailure, WorkerUnreachable
from server.fleet.metrics import FleetMetrics
from server.fleet.transport import Transport
from server.fleet.worker import Worker
from testing.fakes.worker import FakeWorker


def ready_worker() -> Worker:
    worker = Worker("draft", WorkerClient(Transport("http://w")), Breaker(threshold=1), FleetMetrics())
    worker.set_state("ready", "")
    worker.look_again.clear()
    return worker


def counted(worker: Worker, reason: str) -> float:
    return worker._metrics.failures.labels("draft", worker.url, reason)._value.get()


@pytest.mark.parametrize(
    ("failure", "state", "usable"),
    [
        (WorkerUnreachable("cut", "gone"), "down", False),
        (BadAnswer("nonsense"), "ready", False),
        (Busy("full", 1.0), "ready", True),
        (SessionLost("conflict", "unknown"), "ready", True),
        (Refused(BadRequest("no")), "ready", True),
        (KeyboardInterrupt(), "ready", True),
    ],
)
def test_what_a_call_that_failed_means(failure: BaseException, state: str, usable: bool) -> None:
    worker = ready_worker()
    assert worker.breaker.allow()
    with pytest.raises(type(failure)), worker.judged():
        raise failure
    assert (worker.state, worker.usable) == (state, usable)
    assert worker.look_again.is_set() == (state == "down")
    if isinstance(failure, WorkerFailure):
        assert counted(worker, failure.reason) == (0.0 if usable else 1.0)


def test_only_a_call_that_proves_something_closes_the_breaker() -> None:
    worker = ready_worker()
    now = [0.0]
    worker.breaker = Breaker(threshold=1, clock=lambda: now[0])
    worker.breaker.failure()
    now[0] = 2.0
    for proves, state in ((False, "half_open"), (True, "closed")):
        assert worker.breaker.allow()
        with worker.judged(proves):
            pass
        assert worker.breaker.state == state
        assert worker.usable


def test_streams_are_counted_while_they_last() -> None:
    worker = ready_worker()
    with worker.in_use(), worker.in_use():
        assert worker.streams == 2
    assert worker.streams == 0


def test_whoever_waits_for_a_missing_worker_is_called_once_it_was_looked_for() -> None:
    worker = ready_worker()
    calls: list[str] = []
    with worker.when_missing(lambda: calls.append("first")):
        worker.set_state("down", "one lost connection")
        assert calls == [], "nobody has looked yet"
        worker.missed("no answer")
        assert calls == ["first"]
        with worker.when_missing(lambda: calls.append("second")):
            assert calls == ["first", "second"], "it is missing already"
    worker.set_state("ready", "")
    with worker.when_missing(lambda: calls.append("third")):
        worker.set_state("down", "")
    worker.missed("no answer")
    assert calls == ["first", "second"]


def test_another_model_begins_with_times_of_its_own() -> None:
    worker = ready_worker()
    info = ModelInfo.model_validate(FakeWorker("draft").model())
    worker.introduce(info)
    times = worker.step_times
    worker.introduce(info.model_copy())
    assert worker.step_times is times
    worker.introduce(info.model_copy(update={"fingerprint": "others"}))
    assert worker.step_times is not times


def test_a_worker_was_lately_ready_until_it_was_not() -> None:
    worker = ready_worker()
    worker.set_state("down", "")
    assert worker.lately_ready
    never = Worker("draft", WorkerClient(Transport("http://w")), Breaker(), FleetMetrics())
    never.set_state("down", "")
    assert not never.lately_ready
