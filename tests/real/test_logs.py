"""One request can be followed through the logs of all three processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from testing.patience import PATIENCE, eventually
from testing.processes import Process, Stack
from testing.tiny_models import make_tiny_model, truncate_model


@dataclass
class Logged:
    gateway: Process
    target: Process
    draft: Process

    def post(self, request_id: str, **options: Any) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": "Sing."}], "model": "tiny", "max_tokens": 24, **options}
        headers = {"x-request-id": request_id}
        url = f"{self.gateway.url}/v1/chat/completions"
        return httpx.post(url, json=body, headers=headers, timeout=PATIENCE, trust_env=False)


def lines(process: Process, request_id: str) -> list[dict[str, Any]]:
    """The process' lines about a request. Raises ValueError if any line is not JSON."""
    whole = [json.loads(line) for line in process.log.read_text().splitlines()]
    return [line for line in whole if line.get("request_id") == request_id]


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logged]:
    folder = tmp_path_factory.mktemp("logs")
    model = make_tiny_model(folder / "tiny", layers=2)
    with Stack(folder / "logs") as stack:
        settings = {"slots": 2, "threads": 1, "log_format": "json", "dtype": "float32"}
        target = stack.target(model, **settings)
        draft = stack.draft(truncate_model(model, folder / "smaller", 1), **settings)
        gateway = stack.gateway([target.url], [draft.url], log_format="json")
        stack.wait_ready()
        yield Logged(gateway, target, draft)


def test_one_line_a_request_on_each_process(logged: Logged) -> None:
    speculative = {"draft_tokens": 3, "adaptive_speculation": False}
    answers: list[dict[str, Any]] = []

    def drafted_for() -> bool:
        name = f"trace-me-{len(answers)}"
        answers.append(logged.post(name, speculative=speculative, temperature=0, seed=1).json())
        return answers[-1]["metrics"]["speculative_decoding"]["num_draft_tokens"] > 0

    eventually(drafted_for, "a request whose drafts were in time")
    answer, name = answers[-1], f"trace-me-{len(answers) - 1}"
    eventually(lambda: all(lines(p, name) for p in (logged.gateway, logged.target, logged.draft)), "all told")
    [line] = lines(logged.gateway, name)
    [judged] = lines(logged.target, name)
    [drafted] = lines(logged.draft, name)
    told = answer["metrics"]["speculative_decoding"]
    assert line["answer_id"] == answer["id"]
    assert line["pair"] == "tiny+smaller"
    assert line["tokens"] == answer["usage"]["completion_tokens"]
    assert (line["drafted"], line["accepted"]) == (told["num_draft_tokens"], told["num_accepted_draft_tokens"])
    assert line["acceptance"] == pytest.approx(told["draft_acceptance_rate"], abs=1e-3)
    assert 0 < line["ttft_ms"] <= line["ms"]
    assert line["verify_forward_ms"] > 0
    assert (judged["tokens"], judged["accepted"]) == (line["tokens"], line["accepted"])
    assert drafted["drafted"] >= line["drafted"]
    assert "Sing" not in logged.gateway.log.read_text() + logged.target.log.read_text() + logged.draft.log.read_text()


def test_a_failure_names_its_request_and_its_code(logged: Logged) -> None:
    assert logged.post("wrong-1", temperature=9).status_code == 400
    eventually(lambda: bool(lines(logged.gateway, "wrong-1")), "told")
    [line] = lines(logged.gateway, "wrong-1")
    assert (line["status"], line["code"]) == (400, "invalid_value")


def test_a_worker_that_fails_is_named_with_the_request(logged: Logged) -> None:
    logged.draft.kill()
    speculative = {"draft_tokens": 3, "adaptive_speculation": False}
    assert logged.post("lonely-1", speculative=speculative).status_code == 200
    eventually(lambda: any("status" in line for line in lines(logged.gateway, "lonely-1")), "told")
    # The request's own line has its status; a failure in the background may be logged after it.
    found = lines(logged.gateway, "lonely-1")
    (line,) = [line for line in found if "status" in line]
    failures = [line for line in found if "status" not in line]
    assert line["status"] == 200
    assert all("draft worker" in failure["event"] for failure in failures)
