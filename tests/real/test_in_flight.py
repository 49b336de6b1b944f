"""Verification in flight over distance, in real processes: verdicts come sooner, and the text is plain decoding's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from testing.client import Answer, Client
from testing.patience import eventually
from testing.processes import Stack
from tests.real.far import DISCARDED, SAMPLINGS, USED, Far, SlowWorkers, far_from
from tests.real.rig import drafts_again, revive, sessions

AUTO: dict[str, Any] = {"drafter": "auto", "adaptive": True, "speculative": {"max_speculation_depth": 3}}


@pytest.fixture(scope="module")
def far(slow: SlowWorkers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Far]:
    with far_from(slow, 0.015, tmp_path_factory.mktemp("logs-far"), max_tokens=48) as found:
        yield found


@pytest.fixture(scope="module")
def copying(far: Far, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Far]:
    """Its gateway has lookup alone."""
    with Stack(tmp_path_factory.mktemp("logs-copying")) as stack:
        lookup = stack.draft("lookup", "draft-lookup")
        gateway = stack.gateway([far.proxy.url], [lookup.url], lookahead="on", probe_interval_seconds=0.3)
        stack.wait_ready()
        with Client(gateway.url) as client:
            yield replace(far, client=client)


@pytest.fixture(scope="module")
def plain(far: Far) -> dict[str, Answer]:
    return far.plain()


@pytest.mark.parametrize("adaptive", [False, True], ids=["fixed", "adaptive"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(("drafter", "outcome"), [("right", USED), ("other", DISCARDED)])
def test_verifications_ahead_leave_the_text_as_it_is(
    far: Far, plain: dict[str, Answer], drafter: str, outcome: str, sampling: str, adaptive: bool
) -> None:
    if adaptive and (drafter, sampling) != ("right", "greedy"):
        # It may not pay, and not be tried, or have been found not to pay in the requests before, and be left for
        # hundreds of rounds. Seeded and adaptive it is used with `auto`, below.
        found = [far.ask(drafter, adaptive=True, **SAMPLINGS[sampling]) for _ in range(2)]
    else:
        found = far.until(outcome, drafter, adaptive=adaptive, **SAMPLINGS[sampling])
    assert {answer.identity for answer in found} == {plain[sampling].identity}


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_verifications_ahead_of_what_auto_would_draft_leave_the_text_as_it_is(
    far: Far, plain: dict[str, Answer], sampling: str
) -> None:
    found = far.until(USED, **AUTO, **SAMPLINGS[sampling])
    assert {answer.identity for answer in found} == {plain[sampling].identity}


def test_a_worker_without_a_model_has_its_copies_verified_ahead(copying: Far, plain: dict[str, Answer]) -> None:
    """What it remembers of the answer before."""
    found = copying.until(USED, **AUTO, **SAMPLINGS["seeded"])
    assert {answer.identity for answer in found} == {plain["seeded"].identity}
    assert len(found) > 1


def test_the_length_is_exact(far: Far) -> None:
    for tokens in range(7, 12):
        expected = far.ask("none", max_tokens=tokens, **SAMPLINGS["seeded"])
        assert far.ask("right", max_tokens=tokens, **SAMPLINGS["seeded"]).identity == expected.identity


def test_probabilistic_at_temperature_0_says_the_same(far: Far, plain: dict[str, Answer]) -> None:
    """Where each distribution has one token; the distribution itself: tests/draft_worker/test_in_flight.py."""
    found = far.until(USED, "right", speculative={"strategy": "probabilistic"}, **SAMPLINGS["greedy"])
    assert {answer.text for answer in found} == {plain["greedy"].text}


# Each value of either once; the other two pairs, like `auto` below, start processes for what these and tests of the
# rounds show.
@pytest.mark.parametrize(
    ("chunk", "asked"),
    [
        pytest.param(3, AUTO, id="3-auto"),
        pytest.param(6, {"drafter": "right"}, id="6-model"),
        pytest.param(3, {"drafter": "right"}, id="3-model", marks=pytest.mark.slow),
        pytest.param(6, AUTO, id="6-auto", marks=pytest.mark.slow),
    ],
)
def test_target_killed_in_mid_flight(far: Far, plain: dict[str, Answer], chunk: int, asked: dict[str, Any]) -> None:
    def kill(chunks: int) -> None:
        if chunks == chunk:
            far.workers.target.kill()
            far.workers.target.restart()

    assert far.ask(**asked, during=kill, **SAMPLINGS["seeded"]).identity == plain["seeded"].identity
    far.until(USED, **asked, **SAMPLINGS["seeded"])


def test_answers_cut_in_the_middle(far: Far, plain: dict[str, Answer]) -> None:
    def cut(chunks: int) -> None:
        if chunks in (3, 5, 8):
            far.proxy.cut(1 + chunks % 2)

    assert far.ask("right", during=cut, **SAMPLINGS["seeded"]).identity == plain["seeded"].identity
    far.proxy.cut(0)


@pytest.mark.parametrize(
    "asked", [pytest.param({"drafter": "right"}, id="model"), pytest.param(AUTO, id="auto", marks=pytest.mark.slow)]
)
def test_draft_worker_killed_in_mid_flight(far: Far, plain: dict[str, Answer], asked: dict[str, Any]) -> None:
    drafter = far.workers.drafters["right"]

    def kill(chunks: int) -> None:
        if chunks == 5:
            drafter.kill()

    assert far.ask(**asked, during=kill, **SAMPLINGS["seeded"]).identity == plain["seeded"].identity
    revive(far.client, drafter)
    eventually(lambda: drafts_again(far.client, "right"), "drafting starts again")
    far.until(USED, **asked, **SAMPLINGS["seeded"])


def test_a_client_that_leaves_leaves_nothing_behind(far: Far) -> None:
    class Gone(Exception):
        pass

    def leave(chunks: int) -> None:
        if chunks == 6:
            raise Gone

    with pytest.raises(Gone):
        far.ask("right", during=leave, **SAMPLINGS["seeded"])
    eventually(
        lambda: sessions(far.client, far.workers.target, far.workers.drafters["right"]) == 0, "no session is held"
    )
