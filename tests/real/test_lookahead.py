"""Lookahead in real processes: drafts are there before they are asked for, and the text is plain decoding's."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from testing.client import Answer, Client
from testing.patience import eventually
from testing.processes import Process, Stack
from testing.stacks import speculative
from tests.real.far import PROMPT, SAMPLINGS, SlowWorkers
from tests.real.rig import drafts_again, revive


@dataclass
class Ahead:
    """A gateway over a slow target, which is near."""

    drafters: dict[str, Process]
    client: Client

    def ask(self, drafter: str, **options: Any) -> Answer:
        block = speculative(drafter, options.pop("draft_tokens", 3), adaptive=options.pop("adaptive", False))
        return self.client.chat(
            PROMPT, stream=True, ignore_eos=True, **{"max_tokens": 96, "speculative": block, **options}
        )

    def drafts(self) -> dict[str, float]:
        page = self.client.metrics()
        name = "tandem_lookahead_rounds_total"
        return {kind: page[f'{name}{{outcome="{kind}"}}'] for kind in ("hit", "part", "miss")}


@pytest.fixture(scope="module")
def ahead(slow: SlowWorkers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ahead]:
    with Stack(tmp_path_factory.mktemp("logs-ahead")) as stack:
        gateway = slow.gateway(stack, slow.target.url)
        stack.wait_ready()
        with Client(gateway.url) as client:
            yield Ahead(slow.drafters, client)


@pytest.fixture(scope="module")
def plain(ahead: Ahead) -> dict[str, Answer]:
    return {name: ahead.ask("none", **sampling) for name, sampling in SAMPLINGS.items()}


@pytest.mark.parametrize("adaptive", [False, True], ids=["fixed", "adaptive"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("drafter", ["right", "other"])
def test_prepared_drafts_leave_the_text_as_it_is(
    ahead: Ahead, plain: dict[str, Answer], drafter: str, sampling: str, adaptive: bool
) -> None:
    before = ahead.drafts()
    found: list[Answer] = []

    def hit() -> bool:
        found.append(ahead.ask(drafter, adaptive=adaptive, **SAMPLINGS[sampling]))
        return ahead.drafts()["hit"] > before["hit"]

    if drafter == "right":
        eventually(hit, "a draft was there before it was asked for")
    else:
        hit()
    assert {answer.identity for answer in found} == {plain[sampling].identity}


def test_misses_are_told_apart(ahead: Ahead) -> None:
    """Of the drafter whose guesses are often wrong, which the tests before this asked too."""
    eventually(lambda: ahead.ask("other") is not None and ahead.drafts()["miss"] > 0, "a draft was not foreseen")


@pytest.mark.parametrize("chunk", [9, pytest.param(3, marks=pytest.mark.slow)])
def test_draft_worker_killed_while_it_looks_ahead(ahead: Ahead, plain: dict[str, Answer], chunk: int) -> None:
    drafter = ahead.drafters["right"]
    found: list[Answer] = []

    def kill(chunks: int) -> None:
        until = time.monotonic() + 2.0
        while chunks == chunk and drafter.alive and time.monotonic() < until:
            if ahead.client.metrics(drafter.url)["tandem_draft_lookahead_running"] > 0:
                drafter.kill()

    def killed() -> bool:
        found.append(ahead.ask("right", during=kill, **SAMPLINGS["seeded"]))
        return not drafter.alive

    eventually(killed, "the draft worker was killed while it looked ahead")
    revive(ahead.client, drafter)
    eventually(lambda: drafts_again(ahead.client, "right"), "drafting starts again")
    found.append(ahead.ask("right", **SAMPLINGS["seeded"]))
    assert {answer.identity for answer in found} == {plain["seeded"].identity}
