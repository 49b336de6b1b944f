"""Several verifications in flight, over a way longer than a pass, in real processes: the text is the target's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from testing.client import Answer, Client
from testing.processes import Process, Stack
from testing.proxy import Proxy
from testing.stacks import BITWISE, speculative
from tests.real.rig import drafts_again, eventually, revive, sessions

PROMPT = "Tell me a long story about the sea."
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 0.9, "top_p": 0.95, "seed": 11},
}


@dataclass
class Far:
    """A target whose passes are a third of the way to it; a drafter that is always right, and one that is not."""

    target: Process
    proxy: Proxy
    drafters: dict[str, Process]
    client: Client

    def ask(self, drafter: str, during: Callable[[int], None] = lambda chunks: None, **options: Any) -> Answer:
        block = speculative(drafter, 3, adaptive=options.pop("adaptive", False))
        block |= options.pop("speculative", {})
        return self.client.chat(
            PROMPT, stream=True, ignore_eos=True, during=during, **{"max_tokens": 64, "speculative": block, **options}
        )

    def deeper(self) -> float:
        """Verifications that were used of those sent while more than one other was under way."""
        page = self.client.metrics()
        return sum(page[f'tandem_verifications_beyond_total{{others="{others}"}}'] for others in (2, 3, 4))

    def until_deeper(self, drafter: str, **options: Any) -> list[Answer]:
        """Ask until some were used: all the answers."""
        before, found = self.deeper(), []

        def came() -> bool:
            found.append(self.ask(drafter, **options))
            return self.deeper() > before

        eventually(came, "a deeper verification was used")
        return found


@pytest.fixture(scope="module")
def far(bitwise: None, tiny_model: Path, tiny_draft: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Far]:
    with Stack(tmp_path_factory.mktemp("logs-far")) as stack:
        workers = {**BITWISE, "slots": 4, "threads": 1}
        target = stack.slow("target", 60, model=tiny_model, **workers)
        drafters = {
            "right": stack.slow("draft", 3, "draft-right", model=tiny_model, **workers),
            "other": stack.slow("draft", 3, "draft-other", model=tiny_draft, **workers),
        }
        with Proxy(target.url, 0.08) as proxy:
            gateway = stack.gateway(
                [proxy.url],
                [drafters["right"].url],
                draft_pools={name: [process.url] for name, process in drafters.items()},
                lookahead="on",
                verifications_in_flight=5,
                probe_interval_seconds=0.3,
                start_timeout_seconds=120.0,
                recovery_timeout_seconds=120.0,
            )
            stack.wait_ready()
            with Client(gateway.url) as client:
                yield Far(target, proxy, drafters, client)


@pytest.fixture(scope="module")
def plain(far: Far) -> dict[str, Answer]:
    return {name: far.ask("none", **sampling) for name, sampling in SAMPLINGS.items()}


@pytest.mark.parametrize("adaptive", [False, True], ids=["fixed", "adaptive"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_deeper_verifications_leave_the_text_as_it_is(
    far: Far, plain: dict[str, Answer], sampling: str, adaptive: bool
) -> None:
    found = far.until_deeper("right", adaptive=adaptive, **SAMPLINGS[sampling])
    assert {answer.identity for answer in found} == {plain[sampling].identity}


def test_so_do_assumptions_that_fail(far: Far) -> None:
    expected = far.ask("none", max_tokens=24, **SAMPLINGS["seeded"])
    assert far.ask("other", max_tokens=24, **SAMPLINGS["seeded"]).identity == expected.identity


def test_probabilistic_at_temperature_0_says_the_same(far: Far, plain: dict[str, Answer]) -> None:
    """Where each distribution has one token; the distribution itself: tests/draft_worker/test_assumed.py."""
    found = far.until_deeper("right", speculative={"strategy": "probabilistic"}, **SAMPLINGS["greedy"])
    assert {answer.text for answer in found} == {plain["greedy"].text}


def test_the_length_is_exact(far: Far) -> None:
    for tokens in (14, 17):
        expected = far.ask("none", max_tokens=tokens, **SAMPLINGS["seeded"])
        assert far.ask("right", max_tokens=tokens, **SAMPLINGS["seeded"]).identity == expected.identity


@pytest.mark.parametrize("chunk", [9, pytest.param(6, marks=pytest.mark.slow)])
def test_target_killed_with_several_in_flight(far: Far, plain: dict[str, Answer], chunk: int) -> None:
    def kill(chunks: int) -> None:
        if chunks == chunk:
            far.target.kill()
            far.target.restart()

    assert far.ask("right", during=kill, **SAMPLINGS["seeded"]).identity == plain["seeded"].identity
    far.until_deeper("right", **SAMPLINGS["seeded"])


def test_answers_cut_in_the_middle(far: Far, plain: dict[str, Answer]) -> None:
    def cut(chunks: int) -> None:
        if chunks in (4, 6, 9):
            far.proxy.cut(1 + chunks % 3)

    assert far.ask("right", during=cut, **SAMPLINGS["seeded"]).identity == plain["seeded"].identity
    far.proxy.cut(0)


@pytest.mark.slow
def test_draft_worker_killed_with_several_in_flight(far: Far, plain: dict[str, Answer]) -> None:
    drafter = far.drafters["right"]

    def kill(chunks: int) -> None:
        if chunks == 7:
            drafter.kill()

    assert far.ask("right", during=kill, **SAMPLINGS["seeded"]).identity == plain["seeded"].identity
    revive(far.client, drafter)
    eventually(lambda: drafts_again(far.client, "right"), "drafting starts again")
    far.until_deeper("right", **SAMPLINGS["seeded"])


def test_a_client_that_leaves_leaves_nothing_behind(far: Far) -> None:
    class Gone(Exception):
        pass

    def leave(chunks: int) -> None:
        if chunks == 8:
            raise Gone

    with pytest.raises(Gone):
        far.ask("right", during=leave, **SAMPLINGS["seeded"])
    eventually(lambda: sessions(far.client, far.target, far.drafters["right"]) == 0, "no session is held")
