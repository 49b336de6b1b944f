"""Verification in flight over distance, in real processes: verdicts come sooner, and the text is plain decoding's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
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
COUNTS = "tandem_verifications_ahead_total"


AUTO: dict[str, Any] = {"drafter": "auto", "adaptive": True, "speculative": {"max_speculation_depth": 3}}


@dataclass
class Far:
    """A slow target behind a proxy that delays; a drafter that is always right, which `auto` has too, and one that is
    not; `copying` is a gateway over lookup alone."""

    target: Process
    proxy: Proxy
    drafters: dict[str, Process]
    client: Client
    copying: Client

    def ask(self, drafter: str, during: Callable[[int], None] = lambda chunks: None, **options: Any) -> Answer:
        block = speculative(drafter, 3, adaptive=options.pop("adaptive", False))
        block |= options.pop("speculative", {})
        return self.client.chat(
            PROMPT, stream=True, ignore_eos=True, during=during, **{"max_tokens": 48, "speculative": block, **options}
        )

    def counts(self, outcome: str) -> float:
        return self.client.metrics()[f'{COUNTS}{{outcome="{outcome}"}}']

    def until(self, outcome: str, drafter: str, **options: Any) -> list[Answer]:
        """Ask until a verification that was sent ahead ended so: all the answers."""
        before, found = self.counts(outcome), []

        def came() -> bool:
            found.append(self.ask(drafter, **options))
            return self.counts(outcome) > before

        eventually(came, f"a verification ahead was {outcome}")
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
        with Proxy(target.url, 0.015) as proxy:
            gateway = stack.gateway(
                [proxy.url],
                [drafters["right"].url],
                draft_pools={name: [process.url] for name, process in drafters.items()},
                lookahead="on",
                probe_interval_seconds=0.3,
                start_timeout_seconds=120.0,
                recovery_timeout_seconds=120.0,
            )
            lookup = stack.draft("lookup", "draft-lookup")
            other = stack.gateway(
                [proxy.url], [lookup.url], "gateway-lookup", lookahead="on", probe_interval_seconds=0.3
            )
            stack.wait_ready()
            with Client(gateway.url) as client, Client(other.url) as far_copying:
                yield Far(target, proxy, drafters, client, far_copying)


@pytest.fixture(scope="module")
def plain(far: Far) -> dict[str, Answer]:
    return {name: far.ask("none", **sampling) for name, sampling in SAMPLINGS.items()}


@pytest.mark.parametrize("adaptive", [False, True], ids=["fixed", "adaptive"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(("drafter", "outcome"), [("right", "used"), ("other", "discarded")])
def test_verifications_ahead_leave_the_text_as_it_is(
    far: Far, plain: dict[str, Answer], drafter: str, outcome: str, sampling: str, adaptive: bool
) -> None:
    if (drafter, adaptive) == ("other", True):
        found = [far.ask(drafter, adaptive=True, **SAMPLINGS[sampling])]  # it may not pay, and not be tried
    else:
        found = far.until(outcome, drafter, adaptive=adaptive, **SAMPLINGS[sampling])
    assert {answer.identity for answer in found} == {plain[sampling].identity}


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_verifications_ahead_of_what_auto_would_draft_leave_the_text_as_it_is(
    far: Far, plain: dict[str, Answer], sampling: str
) -> None:
    found = far.until("used", **AUTO, **SAMPLINGS[sampling])
    assert {answer.identity for answer in found} == {plain[sampling].identity}


def test_a_worker_without_a_model_has_its_copies_verified_ahead(far: Far, plain: dict[str, Answer]) -> None:
    """What it remembers of the answer before."""
    copying = replace(far, client=far.copying)
    found = copying.until("used", **AUTO, **SAMPLINGS["seeded"])
    assert {answer.identity for answer in found} == {plain["seeded"].identity}
    assert len(found) > 1


def test_the_length_is_exact(far: Far) -> None:
    for tokens in range(7, 12):
        expected = far.ask("none", max_tokens=tokens, **SAMPLINGS["seeded"])
        assert far.ask("right", max_tokens=tokens, **SAMPLINGS["seeded"]).identity == expected.identity


def test_probabilistic_at_temperature_0_says_the_same(far: Far, plain: dict[str, Answer]) -> None:
    """Where each distribution has one token; the distribution itself: tests/draft_worker/test_in_flight.py."""
    found = far.until("used", "right", speculative={"strategy": "probabilistic"}, **SAMPLINGS["greedy"])
    assert {answer.text for answer in found} == {plain["greedy"].text}


@pytest.mark.parametrize("asked", [{"drafter": "right"}, AUTO], ids=["model", "auto"])
@pytest.mark.parametrize("chunk", [3, 6])
def test_target_killed_in_mid_flight(far: Far, plain: dict[str, Answer], chunk: int, asked: dict[str, Any]) -> None:
    def kill(chunks: int) -> None:
        if chunks == chunk:
            far.target.kill()
            far.target.restart()

    assert far.ask(**asked, during=kill, **SAMPLINGS["seeded"]).identity == plain["seeded"].identity
    far.until("used", **asked, **SAMPLINGS["seeded"])


def test_answers_cut_in_the_middle(far: Far, plain: dict[str, Answer]) -> None:
    def cut(chunks: int) -> None:
        if chunks in (3, 5, 8):
            far.proxy.cut(1 + chunks % 2)

    assert far.ask("right", during=cut, **SAMPLINGS["seeded"]).identity == plain["seeded"].identity
    far.proxy.cut(0)


@pytest.mark.parametrize("asked", [{"drafter": "right"}, AUTO], ids=["model", "auto"])
def test_draft_worker_killed_in_mid_flight(far: Far, plain: dict[str, Answer], asked: dict[str, Any]) -> None:
    drafter = far.drafters["right"]

    def kill(chunks: int) -> None:
        if chunks == 5:
            drafter.kill()

    assert far.ask(**asked, during=kill, **SAMPLINGS["seeded"]).identity == plain["seeded"].identity
    revive(far.client, drafter)
    eventually(lambda: drafts_again(far.client, "right"), "drafting starts again")
    far.until("used", **asked, **SAMPLINGS["seeded"])


def test_a_client_that_leaves_leaves_nothing_behind(far: Far) -> None:
    class Gone(Exception):
        pass

    def leave(chunks: int) -> None:
        if chunks == 6:
            raise Gone

    with pytest.raises(Gone):
        far.ask("right", during=leave, **SAMPLINGS["seeded"])
    eventually(lambda: sessions(far.client, far.target, far.drafters["right"]) == 0, "no session is held")
