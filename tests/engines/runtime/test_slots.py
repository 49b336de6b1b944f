"""Which slot a sequence gets, and with how much of its prefix."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from engines.runtime.slots import Slot, SlotCache

LONG = list(range(100, 140))


class Slots:
    """A cache with a clock to turn and a note of copies."""

    def __init__(self, num_slots: int = 2, hold_seconds: float = 2.0) -> None:
        self.now = 0.0
        self.copies: list[tuple[int, int, int]] = []
        self.reusable: Callable[[int, int], int] = lambda slot, length: length
        self.cache = SlotCache(
            num_slots,
            lambda *copy: self.copies.append(copy),
            hold_seconds=hold_seconds,
            clock=lambda: self.now,
            reusable=lambda slot, length: self.reusable(slot, length),
        )

    def use(self, ids: list[int], owner: int | None = None, salt: str | None = None, held: bool = False) -> Slot:
        """Run a job that leaves `ids` in its slot; returns the slot. With `held` the job goes on."""
        self.now += 1.0
        slot = self.cache.acquire(ids, salt, owner, len(ids) - 1)
        assert slot is not None
        slot.ids[len(slot.ids) :] = ids[len(slot.ids) :]
        if not held:
            self.cache.release(slot)
        return slot

    def cached(self, ids: list[int], owner: int | None = None, salt: str | None = None) -> tuple[int, int]:
        """(slot, tokens reused) for a job that is then dropped."""
        slot = self.cache.acquire(ids, salt, owner, len(ids) - 1)
        assert slot is not None
        answer = (slot.index, len(slot.ids))
        self.cache.release(slot)
        return answer


def test_a_session_finds_its_own_slot_again() -> None:
    slots = Slots()
    mine, other = slots.use(LONG, owner=1), slots.use([*LONG[:20], 7, 7], owner=2)
    assert mine is not other
    assert slots.cached([*LONG, 1], owner=1) == (mine.index, len(LONG))
    assert slots.cached([*LONG[:10], 5], owner=1) == (mine.index, 10)


def test_all_but_one_token_may_be_reused() -> None:
    slots = Slots()
    slot = slots.use(LONG, owner=1)
    assert slots.cached(LONG, owner=1) == (slot.index, len(LONG) - 1)


def test_no_more_is_reused_than_a_slot_can_go_back_to() -> None:
    slots = Slots()
    long, short = slots.use(LONG, owner=1), slots.use([*LONG[:20], 7], owner=2)
    # The longer one can't go back far, so that the shorter one has more to give.
    slots.reusable = lambda slot, length: min(length, 12) if slot == long.index and length < len(LONG) else length
    assert slots.cached([*LONG[:20], 8], owner=1) == (long.index, 12)
    assert slots.cache.held([*LONG[:20], 8], None) == 20
    slots.use([*LONG[:20], 8], owner=2)
    assert slots.cached([*LONG[:20], 9], owner=2) == (short.index, 20)


def test_what_was_read_and_what_was_generated_are_each_taken_for_their_like() -> None:
    cache = SlotCache(1, lambda *copy: None, reads_apart=True)

    def reused(ids: list[int], prompt: int) -> int:
        slot = cache.acquire(ids, None, None, len(ids) - 1, prompt=prompt)
        assert slot is not None
        held = len(slot.ids)
        # As the loop does: the rest of the prompt, then what was drawn.
        slot.note_read(held, max(0, prompt - held))
        slot.note_read(max(held, prompt), 0)
        slot.ids[held:] = ids[held:]
        cache.release(slot)
        return held

    assert reused(LONG[:30], 20) == 0
    assert reused(LONG[:31], 20) == 30, "the same request goes on"
    assert reused(LONG[:35], 34) == 20, "its answer is now part of a prompt"
    assert reused(LONG[:36], 34) == 35
    assert reused(LONG[:30], 10) == 10, "an answer is not taken from a prompt"
    assert reused(LONG[:15], 10) == 14
    assert reused(LONG[:15], 14) == 10
    assert cache.held(LONG, None, 14) == 15
    assert cache.held(LONG, None, 39) == 14


def test_a_copy_is_of_the_same_kinds() -> None:
    cache = SlotCache(2, lambda *copy: None, reads_apart=True)
    for ids, prompt, owner in ((LONG, 39, 1), ([1, 2, 3, 4, 5, 6, 7], 5, None)):
        slot = cache.acquire(ids, None, owner, len(ids) - 1, prompt=prompt)
        assert slot is not None
        slot.note_read(0, prompt)
        slot.ids[:] = ids
        cache.release(slot)
    copied = cache.acquire(LONG[:12], None, 2, 11, prompt=11)
    assert copied is slot
    assert copied.ids == LONG[:11]
    cache.release(copied)
    cache.disown(2)
    cache.slots[0].ids.clear()
    assert cache.held(LONG, None, 5) == 5
    assert cache.held(LONG, None, 11) == 11


def test_what_a_dead_session_left_is_taken_over() -> None:
    slots = Slots()
    slot = slots.use(LONG, owner=1)
    slots.cache.disown(1)
    assert slots.cached([*LONG, 3], owner=2) == (slot.index, len(LONG))
    assert slots.copies == []


def test_what_a_living_session_holds_is_copied() -> None:
    slots = Slots()
    slot = slots.use(LONG, owner=1)
    index, reused = slots.cached([*LONG[:30], 3, 3], owner=2)
    assert (index, reused) == (1 - slot.index, 30)
    assert slots.copies == [(slot.index, index, 30)]
    assert slot.ids == LONG


def test_a_prefix_in_use_is_copied() -> None:
    slots = Slots()
    slot = slots.use(LONG, held=True)
    assert slots.cached([*LONG[:30], 3], owner=2) == (1 - slot.index, 30)
    assert slots.copies == [(slot.index, 1 - slot.index, 30)]


def test_a_small_part_of_a_long_prefix_is_copied_rather_than_the_rest_lost() -> None:
    slots = Slots()
    slot = slots.use(LONG)
    assert slots.cached([*LONG[:12], 3]) == (1 - slot.index, 12)
    assert slot.ids == LONG


def test_a_few_tokens_are_not_worth_a_copy() -> None:
    slots = Slots()
    slots.use(LONG, owner=1)
    assert slots.cached([*LONG[:4], 9], owner=2) == (1, 0)
    assert slots.copies == []


def test_another_salt_shares_nothing() -> None:
    slots = Slots()
    slots.use(LONG, owner=1, salt="a")
    assert slots.cached([*LONG, 1], owner=2, salt="b")[1] == 0
    assert slots.cached([*LONG, 1], owner=1, salt="b")[1] == 0


def test_the_least_recently_used_slot_makes_room_the_ownerless_first() -> None:
    slots = Slots(num_slots=3, hold_seconds=0.0)
    one, two, three = slots.use([1, 1], owner=1), slots.use([2, 2]), slots.use([3, 3], owner=3)
    assert slots.use([4, 4], owner=4) is two
    assert slots.use([5, 5], owner=5) is one
    assert slots.use([6, 6], owner=6) is three
    assert slots.cache.evictions == 3
    assert not slots.cache.owns(1)
    assert slots.cache.owns(6)


def test_a_living_session_keeps_its_slot_for_a_while() -> None:
    slots = Slots(num_slots=1)
    slots.use(LONG, owner=1)
    slots.now += 1.9
    assert slots.cache.acquire([5, 6], None, 2, 1) is None
    assert slots.cached([*LONG, 1], owner=1)[1] == len(LONG), "its own at any time"
    slots.now += 2.0
    assert slots.cache.acquire([5, 6], None, 2, 1) is not None


def test_no_slot_is_free_while_jobs_run() -> None:
    slots = Slots(num_slots=1, hold_seconds=0.0)
    slot = slots.use(LONG, held=True)
    assert slots.cache.acquire(LONG, None, None, 5) is None
    slots.cache.release(slot)
    assert slots.cache.acquire(LONG, None, None, 5) is slot


def test_a_session_leaves_its_slot_for_one_with_much_more_of_its_context() -> None:
    slots = Slots(num_slots=2, hold_seconds=0.0)
    longer = list(range(200))
    first = slots.use([1, 2, 3], owner=1)
    best = slots.use(longer)
    assert slots.cached([*longer, 5], owner=1) == (best.index, len(longer))
    assert first.owner is None
    assert slots.cache.owns(1)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(0, 1), min_size=1, max_size=24)), max_size=12))
def test_whatever_happens_a_slots_ids_are_what_it_holds(calls: list[tuple[int, list[int]]]) -> None:
    """A model of the memory: copies move it, jobs write it; the cache's ids must always agree with it."""
    memory: dict[int, list[int]] = {0: [], 1: [], 2: []}

    def copy(source: int, target: int, length: int) -> None:
        memory[target] = memory[source][:length]

    cache = SlotCache(3, copy, hold_seconds=0.0)
    for owner, ids in calls:
        slot = cache.acquire(ids, None, owner or None, len(ids) - 1)
        assert slot is not None
        assert len(slot.ids) < len(ids)
        assert slot.ids == ids[: len(slot.ids)] == memory[slot.index][: len(slot.ids)]
        slot.ids[:] = ids
        memory[slot.index] = list(ids)
        cache.release(slot)
