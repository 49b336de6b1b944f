"""The examples on docs/wire.md work."""

from __future__ import annotations

import json
import re
from pathlib import Path

from protocol.messages import VerifyResponse
from testing.wire import async_test
from testing.worker_apps import drafter, target

PAGE = (Path(__file__).parents[2] / "docs" / "wire.md").read_text()


def curls() -> list[tuple[str, str, str]]:
    """(port, path, body) of every curl on the page."""
    return re.findall(r"curl -sN? localhost:(\d+)(\S+) -d '(.*?)'", PAGE, re.DOTALL)


@async_test
async def test_every_curl_on_the_page_is_answered() -> None:
    assert [path for _, path, _ in curls()] == ["/v1/verify", "/v1/draft", "/v1/remember", "/v1/generate"]
    async with target() as judge, drafter(lookup=True) as worker:
        for port, path, body in curls():
            client = {"8001": worker, "8002": judge}[port].client
            response = await client.post(path, content=body)
            assert response.status_code == 200, response.text
            if path == "/v1/draft":
                assert json.dumps(response.json()["candidates"]) in PAGE


def test_the_answer_shown_is_a_valid_response() -> None:
    (shown,) = re.findall(r'```json\n(\{"session_id": "chat-1", "round": 0.*?)```', PAGE, re.DOTALL)
    VerifyResponse.model_validate_json(shown)
