"""The shared noise: equal bits everywhere, uniform, and independent of everything but its own inputs."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from engines.sampling import noise
from tests.engines.sampling.helpers import gumbel

MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15
INT64 = st.integers(-(2**63), 2**63 - 1)


def reference_mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def reference_hash(seed: int, stream: int, position: int, token_id: int) -> int:
    """The definition, in unsigned integers of any size."""
    state = seed & MASK
    for step in (1, (stream + 1), (position + 1)):
        state = reference_mix((state + step * GAMMA) & MASK)
    return reference_mix((state + (token_id + 1) * GAMMA) & MASK)


def unsigned(values: torch.Tensor) -> list[int]:
    return [value & MASK for value in values.flatten().tolist()]


@settings(deadline=None)
@given(seed=INT64, stream=st.integers(0, 2), position=st.integers(0, 2**31), token_id=st.integers(0, 2**31 - 1))
def test_hash_equals_the_reference(seed: int, stream: int, position: int, token_id: int) -> None:
    h = noise.hash64(torch.tensor([seed]), stream, torch.tensor([position]), torch.tensor([token_id]))
    assert unsigned(h) == [reference_hash(seed, stream, position, token_id)]
    keys = noise.row_keys(torch.tensor([seed]), stream, torch.tensor([position]))
    assert keys.tolist() == [noise.row_key(seed, stream, position)]


def test_hash_is_pinned() -> None:
    """The same bits in every version: a change here would change every seeded text."""
    h = noise.hash64(torch.tensor([0, -1, 42]), noise.DRAW, torch.tensor([0, 7, 100]), torch.tensor([0, 151935]))
    assert [f"{value:016x}" for value in unsigned(h)] == [
        "2130748aaac80268",
        "2739b0ac64306ea2",
        "40adf23aef6b4e14",
        "fcad825179eb6438",
        "20648d446bb83283",
        "18d92f6b347da4d1",
    ]


def test_ids_shared_by_rows_or_given_for_each() -> None:
    seeds, positions, ids = torch.tensor([1, 2, 3]), torch.tensor([5, 5, 6]), torch.arange(100)
    shared = noise.hash64(seeds, noise.ACCEPT, positions, ids)
    assert torch.equal(shared, noise.hash64(seeds, noise.ACCEPT, positions, ids.expand(3, -1).contiguous()))
    alone = torch.cat([noise.hash64(seeds[i : i + 1], 1, positions[i : i + 1], ids[50:51]) for i in range(3)])
    assert torch.equal(shared[:, 50:51], alone)
    assert torch.equal(ids, torch.arange(100)), "arguments are left as they are"


@pytest.mark.parametrize("threads", [1, 2])
def test_gumbel_is_the_same_bits_wherever_a_token_stands(threads: int) -> None:
    """Vectorised logarithms may treat the ends of a tensor differently; that must not show."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        seeds, positions = torch.arange(5), torch.arange(5) * 7
        whole = gumbel(seeds, noise.DRAW, positions, torch.arange(70_001))
        for start, stop in ((0, 1), (3, 4), (1, 18), (5, 1006), (13, 50_000), (69_990, 70_001)):
            assert torch.equal(gumbel(seeds, noise.DRAW, positions, torch.arange(start, stop)), whole[:, start:stop])
            one = gumbel(seeds[2:3], noise.DRAW, positions[2:3], torch.arange(start, stop))
            assert torch.equal(one, whole[2:3, start:stop])
    finally:
        torch.set_num_threads(before)


def test_uniform_and_gumbel_are_finite_at_the_extremes() -> None:
    """The largest hash rounds to u = 1 in float64, and would give an infinite Gumbel."""
    h = torch.tensor([0, -1, 2**63 - 1, -(2**63), -(1 << 11), (1 << 11) - 1], dtype=torch.int64)
    u, g = noise.uniform_from_hash(h), noise.gumbel_from_hash(h)
    assert u.dtype == g.dtype == torch.float64
    assert bool(((u > 0) & (u < 1)).all())
    assert bool(torch.isfinite(g).all())
    assert u[0] == 2.0**-54
    assert u[1] == 1 - 2.0**-53
    assert float(g[0]) == pytest.approx(-math.log(54 * math.log(2)))


@settings(deadline=None)
@given(seed=INT64, choice=st.integers(1, 127))
def test_choices_have_seeds_of_their_own(seed: int, choice: int) -> None:
    assert noise.mix_choice(seed, 0) == seed
    mixed = noise.mix_choice(seed, choice)
    assert -(2**63) <= mixed < 2**63
    assert len({noise.mix_choice(seed, i) for i in range(128)}) == 128
    assert noise.mix_choice(seed + 1, choice) != mixed


def drawn(seeds: range, stream: int, positions: range, ids: range) -> torch.Tensor:
    """Uniforms [seed × position, id]."""
    grid = torch.cartesian_prod(torch.tensor(seeds), torch.tensor(positions)).reshape(-1, 2)
    return noise.uniform(grid[:, 0].contiguous(), stream, grid[:, 1].contiguous(), torch.tensor(ids))


FAR = 1e-4  # the tests below have fixed inputs: a p-value under this is a defect, not bad luck


@pytest.mark.parametrize("stream", [noise.DRAW, noise.ACCEPT, noise.RESIDUAL])
@pytest.mark.parametrize(
    ("seeds", "positions", "ids"),
    [(range(1), range(1), range(200_000)), (range(1), range(200_000), range(1)), (range(200_000), range(1), range(1))],
    ids=["over token ids", "over positions", "over seeds"],
)
def test_uniform(stream: int, seeds: range, positions: range, ids: range) -> None:
    u = drawn(seeds, stream, positions, ids).flatten().numpy()
    assert stats.kstest(u, "uniform").pvalue > FAR
    counts = torch.histc(torch.from_numpy(u), 1000, 0, 1).numpy()
    assert stats.chisquare(counts).pvalue > FAR
    gumbel = -torch.log(-torch.log(torch.from_numpy(u))).numpy()
    assert stats.kstest(gumbel, "gumbel_r").pvalue > FAR


@pytest.mark.parametrize("shift", [0, 11, 30, 56])
def test_every_byte_of_the_hash_is_uniform(shift: int) -> None:
    h = noise.hash64(torch.arange(20), noise.DRAW, torch.arange(20), torch.arange(10_000)).flatten()
    assert stats.chisquare(torch.bincount(h >> shift & 255, minlength=256).numpy()).pvalue > FAR


def independence_pvalue(a: torch.Tensor, b: torch.Tensor, cells: int = 16) -> float:
    """chi² of the joint histogram of two samples of uniforms against the product of uniforms."""
    joint = torch.bincount((a * cells).to(torch.int64) * cells + (b * cells).to(torch.int64), minlength=cells**2)
    return float(stats.chisquare(joint.numpy()).pvalue)


@pytest.mark.parametrize("step", [1, 2, 3, 64, 1024])
def test_neighbours_are_independent(step: int) -> None:
    n = 100_000
    over_ids = drawn(range(1), 0, range(1), range(n + step))[0]
    over_positions = drawn(range(1), 0, range(n + step), range(1))[:, 0]
    over_seeds = drawn(range(n + step), 0, range(1), range(1))[:, 0]
    for series in (over_ids, over_positions, over_seeds):
        assert independence_pvalue(series[:n], series[step : n + step]) > FAR
        assert abs(float(torch.corrcoef(torch.stack([series[:n], series[step : n + step]]))[0, 1])) < 5 / math.sqrt(n)


def test_inputs_do_not_stand_in_for_each_other() -> None:
    """Streams, and pairs of inputs moved against each other, share nothing."""
    n = 100_000
    base = drawn(range(1000), 0, range(1, 2), range(100)).flatten()
    others = {
        "stream 1": drawn(range(1000), 1, range(1, 2), range(100)),
        "stream 2": drawn(range(1000), 2, range(1, 2), range(100)),
        "next position": drawn(range(1000), 0, range(2, 3), range(100)),
        "position for stream": drawn(range(1000), 1, range(1), range(100)),
        "token for position": drawn(range(1000), 0, range(2, 3), range(-1, 99)),
        "seed for position": drawn(range(1, 1001), 0, range(1), range(100)),
    }
    assert base.numel() == n
    for name, other in others.items():
        assert independence_pvalue(base, other.flatten()) > FAR, name
        assert not bool((base == other.flatten()).any()), name


def test_no_collisions() -> None:
    grid = drawn(range(100), 0, range(50), range(200)).flatten()
    assert grid.unique().numel() == grid.numel()


def test_one_flipped_input_bit_flips_half_the_output_bits() -> None:
    chance = random.Random(0)
    flipped, trials = [0] * 64, 4000
    for _ in range(trials):
        fields = [chance.getrandbits(63), 0, chance.getrandbits(20), chance.getrandbits(17)]
        other = list(fields)
        which = chance.choice((0, 2, 3))
        other[which] ^= 1 << chance.randrange((63, 0, 20, 17)[which])
        difference = reference_hash(*fields) ^ reference_hash(*other)
        for bit in range(64):
            flipped[bit] += difference >> bit & 1
    assert all(abs(count / trials - 0.5) < 5 * 0.5 / math.sqrt(trials) for count in flipped)


def test_no_choice_of_a_seed_is_a_choice_of_a_neighbouring_one() -> None:
    """It would be if the index were added to the seed: choice 1 of seed 7 would be choice 0 of seed 8."""
    assert noise.mix_choice(7, 1) != noise.mix_choice(8, 0)
    mixed = [noise.mix_choice(seed, choice) for seed in range(-64, 64) for choice in range(32)]
    assert len(set(mixed)) == len(mixed)
    assert noise.mix_choice(7, 2) - noise.mix_choice(7, 1) != noise.mix_choice(7, 3) - noise.mix_choice(7, 2)
