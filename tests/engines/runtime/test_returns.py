"""Whether a pass waits for sessions that are about to come back, on a virtual clock."""

from __future__ import annotations

import heapq
import random

import pytest

from engines.runtime.pass_seconds import PassSeconds
from engines.runtime.returns import Returns

TOKENS = 8


def rounds(
    sessions: int,
    away: float,
    fixed: float,
    per_token: float = 0.0,
    noise: float = 0.1,
    waits: bool = True,
    leave: float = 0.0,
    until: float = 20.0,
    seed: int = 0,
) -> int:
    """Rounds that the sessions make until then: each verifies TOKENS in a pass with whoever is there, then is away.

    With chance `leave` a session does not come back, and another takes its place half a second later.
    """
    chance = random.Random(seed)
    measured = {tokens: fixed + per_token * tokens for tokens in (1, 2, 4, 8, 16, 32, 64)}
    returns = Returns(PassSeconds(measured))
    arrivals = [(0.003 * number, number) for number in range(sessions)]
    fresh, now, made = sessions, 0.0, 0
    here: list[int] = []

    def arrive() -> None:
        while arrivals and arrivals[0][0] <= now:
            at, owner = heapq.heappop(arrivals)
            returns.came(owner, at)
            here.append(owner)

    while now < until:
        arrive()
        if not here:
            now = arrivals[0][0]
            continue
        seconds = returns.wait(now, len(here)) if waits else 0.0
        if seconds > 0.0:
            now = min(now + seconds, max(now, arrivals[0][0]) if arrivals else now + seconds)
            continue
        returns.passed()
        served, here = here, []
        now += (fixed + per_token * TOKENS * len(served)) * max(0.5, chance.gauss(1.0, noise / 2))
        for owner in served:
            made += 1
            returns.left(owner, now, TOKENS)
            if chance.random() < leave:
                fresh += 1
                heapq.heappush(arrivals, (now + 0.5, fresh))
            else:
                heapq.heappush(arrivals, (now + max(0.0005, chance.gauss(away, noise * away)), owner))
    return made


def gain(**settings: float | int) -> float:
    """Over passes that begin at once."""
    waiting = sum(rounds(**settings, seed=seed) for seed in range(3))  # type: ignore[arg-type]
    return waiting / sum(rounds(**settings, waits=False, seed=seed) for seed in range(3))  # type: ignore[arg-type]


@pytest.mark.parametrize(("sessions", "away", "least"), [(2, 0.003, 1.5), (8, 0.003, 1.5), (8, 0.008, 1.25)])
def test_sessions_that_are_away_for_less_than_a_pass_share_one(sessions: int, away: float, least: float) -> None:
    assert gain(sessions=sessions, away=away, fixed=0.025) > least


@pytest.mark.parametrize("sessions", [1, 2, 3, 8, 32])
@pytest.mark.parametrize("away", [0.002, 0.01, 0.02, 0.03, 0.06, 0.2])
@pytest.mark.parametrize("per_token", [0.0, 0.0002, 0.002])
@pytest.mark.parametrize("noise", [0.05, 0.5])
def test_waiting_never_costs_much(sessions: int, away: float, per_token: float, noise: float) -> None:
    assert gain(sessions=sessions, away=away, fixed=0.025, per_token=per_token, noise=noise) > 0.97


def test_those_who_do_not_come_back_cost_little() -> None:
    assert gain(sessions=8, away=0.008, fixed=0.025, leave=0.1) > 1.07


def test_where_tokens_cost_as_much_as_passes_nobody_waits() -> None:
    returns = Returns(PassSeconds({1: 0.003, 2: 0.005, 4: 0.009, 8: 0.017}))
    for owner in (1, 2):
        for at in (0.0, 0.1):
            returns.came(owner, at)
            returns.left(owner, at + 0.098, TOKENS)
    returns.came(1, 0.2)
    assert returns.wait(0.2, 1) == 0.0


def test_a_pass_waits_no_longer_than_it_takes() -> None:
    returns = Returns(PassSeconds({1: 0.02, 64: 0.02}))
    for owner in range(1, 9):
        for number in range(9):  # each a bit later than the one before
            returns.came(owner, 0.02 * number)
            returns.left(owner, 0.02 * (number + 1) - 0.002 * owner, TOKENS)
    returns.came(0, 0.18)
    now = 0.18
    while (seconds := returns.wait(now, 1)) > 0.0:
        now += seconds
    assert 0.18 < now <= 0.2
    returns.passed()
    assert returns.wait(1.0, 1) == 0.0  # they are not expected any more


def test_a_session_that_is_gone_is_not_waited_for() -> None:
    returns = Returns(PassSeconds({1: 0.02, 64: 0.02}))
    for at in (0.0, 0.03):
        returns.came(1, at)
        returns.left(1, at + 0.025, TOKENS)
    returns.came(2, 0.056)
    assert returns.wait(0.056, 1) > 0.0
    returns.forget(1)
    assert returns.wait(0.056, 1) == 0.0
