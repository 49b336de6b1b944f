"""Verifications in flight to a vLLM target over distance: they are used, and the text is plain decoding's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from config.pairs import BUNDLED_DRAFT
from testing.client import Answer, Client
from testing.models import bundled
from testing.patience import eventually
from testing.processes import Stack
from testing.prompts import SHORT
from testing.proxy import Proxy
from testing.stacks import speculative
from tests.vllm.real.conftest import COMMON, VLLM

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.timeout(1800)]

ONE_WAY = 0.01
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 0.7, "top_p": 0.9, "seed": 4},
}
USED = 'tandem_verifications_ahead_total{outcome="used"}'


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A gateway with lookahead on before the bundled target on vLLM, far away, and its bundled draft."""
    with Stack(tmp_path_factory.mktemp("logs-vllm-far")) as stack:
        target = stack.target(bundled(), **VLLM)
        draft = stack.draft(BUNDLED_DRAFT, **COMMON)
        with Proxy(target.url, ONE_WAY) as proxy:
            gateway = stack.gateway(
                [proxy.url], [draft.url], draft_pools={"model": [draft.url]}, lookahead="on", draft_timeout_seconds=10
            )
            stack.wait_ready(1200)
            with Client(gateway.url, timeout=300) as client:
                yield client


def ask(client: Client, prompt: str, block: dict[str, Any], sampling: dict[str, Any]) -> Answer:
    return client.chat(prompt, stream=True, max_tokens=48, ignore_eos=True, speculative=block, **sampling)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(
    "block", [speculative("model", 3), speculative("auto", 3, adaptive=True)], ids=["model", "auto"]
)
def test_they_are_used_and_leave_the_text_as_it_is(client: Client, block: dict[str, Any], sampling: str) -> None:
    options = SAMPLINGS[sampling]
    plain = {prompt: ask(client, prompt, {"enabled": False}, options).identity for prompt in SHORT[:2]}
    before = client.metrics()[USED]

    def used() -> bool:
        found = {prompt: ask(client, prompt, block, options).identity for prompt in plain}
        assert found == plain
        return client.metrics()[USED] > before

    eventually(used, "a verification in flight was used")
