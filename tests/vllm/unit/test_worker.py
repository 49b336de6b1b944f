"""The proposer's draft worker: found beside the engine, whatever goes wrong while looking."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from engines.vllm.proposer.connection import DraftConnection
from engines.vllm.proposer.options import ProposerOptions
from engines.vllm.proposer.worker import DraftWorker, Json
from testing.fakes.batch_drafter import INFO, BatchDrafter
from tests.vllm.unit.test_proposer import until


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def fake(stack: ExitStack, **info: Any) -> BatchDrafter:
    made = BatchDrafter()
    stack.callback(made.close)
    made.info = INFO | info
    return made


def test_a_tokenizer_that_can_not_be_read_is_logged_once_and_the_next_worker_is_used(
    stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the worker has a model; one without (`lookup`) needs no comparison."""
    first, second = fake(stack, id="first"), fake(stack, id="second", vocabulary=None)

    def why_not(info: Json) -> str | None:
        if info["id"] == "first":
            raise OSError("no tokenizer in this folder\nRequest ID: 17")
        return None

    worker = DraftWorker(ProposerOptions(draft_url=[first.url, second.url]), why_not)
    worker.start()
    stack.callback(worker.close)
    until(lambda: worker.ready)
    told = [record for record in caplog.records if first.url in record.getMessage()]
    assert [record.getMessage() for record in told] == [
        f"Tandem: no drafts from {first.url}: OSError: no tokenizer in this folder"
    ]
    assert not any(record.exc_info for record in caplog.records)
    until(lambda: first.connections == 0)


@pytest.mark.parametrize("stops", [None, [[1]]])
def test_a_worker_that_can_never_serve_is_logged_once_and_tried_again(
    stack: ExitStack, caplog: pytest.LogCaptureFixture, stops: object
) -> None:
    useless = fake(stack, stop_token_ids=stops)
    worker = DraftWorker(ProposerOptions(draft_url=[useless.url]), lambda info: None)
    worker.start()
    stack.callback(worker.close)
    until(lambda: len(useless.tokens) >= 3)
    assert not worker.ready
    assert len(caplog.records) == 1
    assert caplog.records[0].exc_info is None
    until(lambda: useless.connections == 0)
    useless.info = INFO
    until(lambda: worker.ready)


def test_a_connection_is_kept_in_a_process_of_many_open_files(stack: ExitStack) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < 2048:
        pytest.skip("hardly more than a thousand files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
    stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
    server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    descriptor = 0
    while descriptor < 1024:
        descriptor = os.dup(server.fileno())
        stack.callback(os.close, descriptor)
    connection = DraftConnection(f"http://127.0.0.1:{server.getsockname()[1]}", None, None, 5.0)
    other_side, _ = server.accept()
    assert not connection.stale
    other_side.close()
    until(lambda: connection.stale)
    connection.close()
