"""Several verifications in flight, over a way longer than a pass, in real processes: the text is the target's.

They are left for 128 rounds where they turn out to be of no use, as on a machine that is so busy that drafts come late.
So what runs with every change asks for the text alone; that several are used there, and the text then, is `slow`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testing.client import Answer
from testing.patience import eventually
from tests.real.far import SAMPLINGS, USED_DEEPER, Far, SlowWorkers, far_from
from tests.real.rig import drafts_again, revive, sessions


@pytest.fixture(scope="module")
def far(slow: SlowWorkers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Far]:
    """A pass is a seventh of the way there and back: much less on a busy machine, too, where passes take longer."""
    logs = tmp_path_factory.mktemp("logs-farther")
    with far_from(slow, 0.2, logs, max_tokens=64, verifications_in_flight=5) as found:
        yield found


@pytest.fixture(scope="module")
def plain(far: Far) -> dict[str, Answer]:
    return far.plain()


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_deeper_verifications_leave_the_text_as_it_is(
    far: Far, plain: dict[str, Answer], sampling: str, adaptive: bool
) -> None:
    found = [far.ask("right", adaptive=adaptive, **SAMPLINGS[sampling]) for _ in range(2)]
    assert {answer.identity for answer in found} == {plain[sampling].identity}


@pytest.mark.slow
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_so_do_those_that_are_used(far: Far, plain: dict[str, Answer], sampling: str) -> None:
    found = far.until(USED_DEEPER, "right", **SAMPLINGS[sampling])
    assert {answer.identity for answer in found} == {plain[sampling].identity}


def test_so_do_assumptions_that_fail(far: Far) -> None:
    expected = far.ask("none", max_tokens=24, **SAMPLINGS["seeded"])
    assert far.ask("other", max_tokens=24, **SAMPLINGS["seeded"]).identity == expected.identity


def test_probabilistic_at_temperature_0_says_the_same(far: Far, plain: dict[str, Answer]) -> None:
    """Where each distribution has one token; the distribution itself: tests/draft_worker/test_assumed.py."""
    found = far.ask("right", speculative={"strategy": "probabilistic"}, **SAMPLINGS["greedy"])
    assert found.text == plain["greedy"].text


def test_the_length_is_exact(far: Far) -> None:
    for tokens in (14, 17):
        expected = far.ask("none", max_tokens=tokens, **SAMPLINGS["seeded"])
        assert far.ask("right", max_tokens=tokens, **SAMPLINGS["seeded"]).identity == expected.identity


@pytest.mark.parametrize("chunk", [9, pytest.param(6, marks=pytest.mark.slow)])
def test_target_killed_with_several_in_flight(far: Far, plain: dict[str, Answer], chunk: int) -> None:
    def kill(chunks: int) -> None:
        if chunks == chunk:
            far.workers.target.kill()
            far.workers.target.restart()

    assert far.ask("right", during=kill, **SAMPLINGS["seeded"]).identity == plain["seeded"].identity
    assert far.ask("right", **SAMPLINGS["seeded"]).identity == plain["seeded"].identity


def test_answers_cut_in_the_middle(far: Far, plain: dict[str, Answer]) -> None:
    def cut(chunks: int) -> None:
        if chunks in (4, 6, 9):
            far.proxy.cut(1 + chunks % 3)

    assert far.ask("right", during=cut, **SAMPLINGS["seeded"]).identity == plain["seeded"].identity
    far.proxy.cut(0)


@pytest.mark.slow
def test_draft_worker_killed_with_several_in_flight(far: Far, plain: dict[str, Answer]) -> None:
    drafter = far.workers.drafters["right"]

    def kill(chunks: int) -> None:
        if chunks == 7:
            drafter.kill()

    assert far.ask("right", during=kill, **SAMPLINGS["seeded"]).identity == plain["seeded"].identity
    revive(far.client, drafter)
    eventually(lambda: drafts_again(far.client, "right"), "drafting starts again")
    far.until(USED_DEEPER, "right", **SAMPLINGS["seeded"])


def test_a_client_that_leaves_leaves_nothing_behind(far: Far) -> None:
    class Gone(Exception):
        pass

    def leave(chunks: int) -> None:
        if chunks == 8:
            raise Gone

    with pytest.raises(Gone):
        far.ask("right", during=leave, **SAMPLINGS["seeded"])
    eventually(
        lambda: sessions(far.client, far.workers.target, far.workers.drafters["right"]) == 0, "no session is held"
    )
