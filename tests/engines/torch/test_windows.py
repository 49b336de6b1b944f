"""Layers with windows that hold only a stretch of a sequence, against the same model that keeps every key."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from engines.errors import ModelError
from engines.runtime.rows import Row, depths, paths
from engines.torch.kv_cache import WINDOW_SNAPSHOTS, CacheShape, LayerShape, Stretch
from engines.torch.memory import cache_shape, check_fits
from engines.torch.runner import Runner
from tests.engines.torch.families import ALTERNATE, FAMILIES, Family, tokens

CLOSE = {"rtol": 1e-4, "atol": 1e-4}
SLOT = 240
EVERYTHING = 10**6
"""So much to spare that nothing is ever given up."""


def family(name: str) -> Family:
    return next(family for family in FAMILIES if family.name == name)


class Pair:
    """A runner with stretches, and one that keeps every key; both do the same, and what they find is compared."""

    def __init__(self, family: Family, num_slots: int = 3, spare: int = 8) -> None:
        self.few = family.make_runner(num_slots, SLOT, spare=spare)
        self.all = family.make_runner(num_slots, SLOT, spare=EVERYTHING)
        assert self.few.cache.shape.windowed
        assert not self.all.cache.shape.windowed
        self.ids: list[list[int]] = [[] for _ in range(num_slots)]

    def forward(self, rows: list[Row]) -> list[Tensor]:
        found = self.few.forward(rows)
        for one, other in zip(found, self.all.forward(rows), strict=True):
            torch.testing.assert_close(one, other, **CLOSE)
        for row in rows:
            del self.ids[row.slot][row.start :]
            if row.parents is None:
                self.ids[row.slot] += row.token_ids
        return found

    def commit(self, row: Row, path: list[int]) -> None:
        for runner in (self.few, self.all):
            runner.commit(row.slot, row.start, path)
        self.ids[row.slot] += [row.token_ids[node] for node in path]

    def copy(self, source: int, target: int, length: int) -> None:
        for runner in (self.few, self.all):
            runner.copy(source, target, length)
        self.ids[target] = self.ids[source][:length]


def random_row(pair: Pair, slot: int, chance: random.Random) -> Row:
    held = len(pair.ids[slot])
    back = chance.choice([0, 0, 0, chance.randrange(6), chance.randrange(30), held])
    start = max(0, held - back)
    stem = chance.choice([0, 1, 4, 25]) if chance.random() < 0.5 else None
    count = chance.choice([1, 1, 5, 9, 40])
    if stem is None:
        count = min(count, SLOT - start)
        return Row(slot, start, [chance.randrange(3, 100) for _ in range(count)], logits_from=chance.randrange(count))
    stem = min(stem, SLOT - start - 6)
    parents = list(range(-1, stem - 1))
    for node in range(stem, stem + chance.randrange(1, 7)):
        parents.append(chance.randrange(max(stem - 1, -1), node) if node else -1)
    return Row(slot, start, [chance.randrange(3, 100) for _ in parents], parents, chance.randrange(len(parents)))


@pytest.mark.parametrize("name", ["Mistral", "Gemma 3", "gpt-oss", "Gemma 4"])
def test_whatever_happens_logits_are_those_of_every_key_kept(name: str) -> None:
    chance = random.Random(name)
    pair = Pair(family(name))
    split = again = moved = 0
    for _ in range(160):
        if chance.random() < 0.15 and len(pair.ids[0]) > 20:
            source, target = chance.sample(range(3), 2)
            pair.copy(source, target, chance.randrange(len(pair.ids[source]) + 1))
        for slot, ids in enumerate(pair.ids):
            if len(ids) > SLOT - 50:
                ids[chance.randrange(0, SLOT - 60) :] = []
            elif chance.random() < 0.05:
                # What is reused is what the runner says, so nothing is fed again.
                del ids[pair.few.reusable(slot, len(ids)) :]
        rows = [random_row(pair, slot, chance) for slot in chance.sample(range(3), chance.randrange(1, 4))]
        split += any(len(row.token_ids) > 10 for row in rows)
        again += any(row.start > pair.few.reusable(row.slot, row.start) for row in rows)
        pair.forward(rows)
        moved += any(pair.few.cache.bases)
        for row in rows:
            if row.parents is not None and chance.random() < 0.7:
                path = chance.choice(paths(row.parents))
                pair.commit(row, path[: chance.randrange(1, len(path) + 1)])
    assert split > 10
    assert again > 10
    assert moved > 100


def test_what_may_be_reused_is_not_fed_again() -> None:
    fed: list[int] = []
    pair = Pair(family("Gemma 3"))
    forward = pair.few._builder.build
    pair.few._builder.build = lambda rows, reach=None: (  # type: ignore[method-assign]
        fed.append(sum(len(row.token_ids) for row in rows)) or forward(rows, reach)  # type: ignore[func-returns-value]
    )
    ids = tokens(100, 1)
    for at in range(0, 100, 10):
        pair.forward([Row(0, at, ids[at : at + 10])])
    for length, most_again in ((100, 0), (93, 0), (60, 60)):
        pair.copy(0, 1, length)
        start = pair.few.reusable(1, length)
        assert length - most_again <= start <= length
        fed.clear()
        pair.forward([Row(1, start, ids[start:100])])
        assert sum(fed) == 100 - start


def test_a_pass_that_fails_midway_takes_nothing_with_it() -> None:
    pair = Pair(family("Gemma 3"))
    ids = tokens(90, 1)
    pair.forward([Row(0, 0, ids[:60], logits_from=60)])
    layer = pair.few.model.model.layers[1]
    whole = layer.forward

    def fail(*arguments: object, **keywords: object) -> Tensor:
        raise RuntimeError("out of memory")

    for start in (60, 20):
        layer.forward = fail
        with pytest.raises(RuntimeError, match="out of memory"):
            pair.few.forward([Row(0, start, tokens(25, 7))])
        layer.forward = whole
        pair.forward([Row(0, start, ids[start:])])


def test_a_tree_with_a_long_stem_is_fed_in_parts_and_one_that_is_too_deep_is_refused() -> None:
    pair = Pair(family("Gemma 3"))
    pair.forward([Row(0, 0, tokens(30, 1), logits_from=30)])
    stem = list(range(-1, 39))
    row = Row(0, 30, tokens(45, 2), [*stem, 39, 39, 40, 41, 43], 12)
    assert max(depths(row.parents or [])) + 1 == 43
    for path in ([*range(40), 41, 43], [*range(40)], [*range(7)]):
        pair.forward([row, Row(1, 0, tokens(5, 3))])
        pair.commit(row, path)
        end = 30 + len(path)
        pair.forward([Row(0, end, tokens(20, 4))])
        pair.forward([Row(0, 30, [])])
    pair.few.forward([row])
    with pytest.raises(ValueError, match="does not lead from the root"):
        pair.few.commit(0, 30, [*range(39), 41])
    deep = Row(0, 30, tokens(42, 2), [-1, *range(-1, 40)])
    with pytest.raises(ValueError, match="21 tokens deep, where a pass has room for 10"):
        pair.few.forward([deep])


def test_nothing_can_follow_what_a_slot_does_not_hold() -> None:
    pair = Pair(family("Gemma 3"))
    pair.few.forward([Row(0, 0, [5, 6, 7])])
    with pytest.raises(ValueError, match="slot 0 holds 3 tokens"):
        pair.few.forward([Row(0, 4, [8])])


@pytest.mark.usefixtures("bitwise")
def test_bits_are_those_of_every_key_kept() -> None:
    gemma = replace(family("Gemma 3"), options={**family("Gemma 3").options, "max_position_embeddings": 1024})
    few = gemma.make_runner(2, 896, batch_invariant=True, spare=16)
    every = gemma.make_runner(2, 896, batch_invariant=True, spare=EVERYTHING)
    assert few.cache.shape.windowed
    ids = tokens(700, 1)
    found: dict[int, list[Tensor]] = {}
    for runner, chunk in ((few, 19), (few, 3), (every, 64)):
        logits = [runner.forward([Row(0, at, ids[at : at + chunk])])[0] for at in range(0, 700, chunk)]
        found.setdefault(id(runner), []).append(torch.cat(logits))
    reference = found[id(every)][0]
    assert all(torch.equal(logits, reference) for logits in found[id(few)])
    few.copy(0, 1, 300)
    assert few.reusable(1, 300) < 300
    assert torch.equal(few.forward([Row(1, 300, ids[300:330])])[0], reference[300:330])
    assert min(few.cache.bases) > 0


def test_places_follow_from_the_window() -> None:
    for bucket, places in ((1, 16 + 8 + 10), (64, 256)):
        stretch = Stretch(16, 8, bucket)
        assert stretch.places == places
        for start in range(0, 500, 7):
            base = stretch.begins(start)
            assert base % bucket == 0
            assert base <= stretch.lowest(start) <= max(0, start - 15)
            assert start + stretch.room <= base + places
    shape = CacheShape({0: LayerShape(1, 2, 2), 1: LayerShape(1, 2, 2)})
    assert not shape.with_windows({0: 16, 1: None}, 80, spare=8).windowed  # not a quarter of 80 is saved
    assert not shape.with_windows({0: None, 1: None}, 1000).windowed
    assert shape.with_windows({0: 16, 1: None}, 100, spare=8).windowed == {0}


def test_memory_is_counted_as_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    gemma = replace(family("Gemma 3"), options={**family("Gemma 3").options, "max_position_embeddings": 4096})
    config = gemma.make_config()
    runner = Runner(gemma.make_model(), 2, 2048)
    shape = cache_shape(config, 2048)
    assert shape == runner.cache.shape
    stretch = shape.stretch
    assert stretch is not None
    # A token's keys and values in a layer: 2 heads, 8 + 8 numbers of 4 bytes.
    snapshots = WINDOW_SNAPSHOTS * 16
    assert shape.slot_bytes(2048, torch.float32) == 2 * 16 * 4 * (2048 + 16 + 256 + 320 + snapshots)
    ids = tokens(1000, 1)
    runner.forward([Row(0, 0, ids, logits_from=1000)])
    assert runner._windows is not None
    taken = [snapshot for held in runner._windows._held for snapshot in held.snapshots]
    assert len(taken) == WINDOW_SNAPSHOTS
    assert all(snapshot.position - snapshot.low <= 16 for snapshot in taken)
    held = [*runner.cache._keys.values(), *runner.cache._values.values()]
    of_snapshots = 2 * snapshots * 2 * 16 * 4
    assert sum(tensor.nbytes for tensor in held) + of_snapshots == 2 * shape.slot_bytes(2048, torch.float32)
    monkeypatch.setattr("engines.torch.memory.free_bytes", lambda device: 1)
    with pytest.raises(ModelError, match=r"2 sessions × 2048 tokens × 128 B and [0-9,]+ B of windows"):
        check_fits(1, shape, 2, 2048, torch.float32, torch.device("cpu"))


def test_layers_of_other_windows_share_the_widest_stretch() -> None:
    assert CacheShape({0: LayerShape(1, 2, 2), 1: LayerShape(1, 2, 2)}).with_windows(
        {0: 16, 1: 4}, 100, spare=8
    ).stretch == Stretch(16, 8, 1)
    assert ALTERNATE["layer_types"][0] == "sliding_attention"
