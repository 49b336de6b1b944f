"""The memory of answers: what it finds, whose it is, and how much it takes."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draft_worker import memory_file
from draft_worker.memory import AnswerMemory
from draft_worker.segment import LONGEST_MATCH, SHORTEST_MATCH, Segment

IDS = st.lists(st.integers(0, 3), max_size=40)


def memory_of(*answers: Sequence[int], scope: str = "a") -> AnswerMemory:
    memory = AnswerMemory(2**20)
    for answer in answers:
        memory.add(scope, answer)
    return memory


def after(memory: AnswerMemory, context: list[int], tokens: int = 8, scope: str = "a") -> list[int] | None:
    found = memory.continuation(scope, context, tokens)
    return found.token_ids if found is not None else None


def test_what_followed_the_last_time_follows() -> None:
    memory = memory_of([1, 2, 3, 4, 5, 6])
    assert after(memory, [9, 2, 3, 4]) == [5, 6]
    assert after(memory, [2, 3, 4], tokens=1) == [5]
    assert after(memory, [3, 4]) is None, "too short a match"
    assert after(memory, [4, 5, 6]) is None, "it ended there"


def test_what_most_answers_say_wins_and_of_equals_the_latest() -> None:
    memory = memory_of([1, 2, 3, 7, 7], [1, 2, 3, 7, 7], [1, 2, 3, 8, 8])
    assert after(memory, [1, 2, 3]) == [7, 7]
    memory.add("a", [1, 2, 3, 8, 8])
    assert after(memory, [1, 2, 3]) == [8, 8]


def test_a_longer_match_that_is_sure_beats_what_is_frequent() -> None:
    frequent = [[5, 1, 2, 3, number, 0] for number in range(10, 20)]
    memory = memory_of(*frequent, [9, 8, 1, 2, 3, 4, 4, 4, 4])
    assert after(memory, [9, 8, 1, 2, 3]) == [4, 4, 4, 4]


def test_the_draft_grows_with_the_match() -> None:
    answer = list(range(60))
    memory = memory_of(answer)
    assert len(after(memory, [*answer[:3]], tokens=32) or []) == 12
    assert len(after(memory, [*answer[:8]], tokens=32) or []) == 32


def test_nothing_goes_across_two_answers() -> None:
    memory = memory_of([1, 2, 3], [4, 5, 6, 7])
    assert after(memory, [1, 2, 3]) is None
    assert after(memory, [3, 4, 5]) is None
    assert after(memory, [2, 3, 4, 5, 6]) == [7], "found by its own last three"


def test_nobody_finds_what_another_was_answered() -> None:
    memory = memory_of([1, 2, 3, 4])
    assert after(memory, [1, 2, 3], scope="b") is None
    memory.add("b", [1, 2, 3, 5])
    assert after(memory, [1, 2, 3], scope="a") == [4]
    assert after(memory, [1, 2, 3], scope="b") == [5]


def naive(answers: list[list[int]], context: list[int]) -> Counter[int]:
    """The lengths of all matches, SHORTEST_MATCH and up."""
    found: Counter[int] = Counter()
    for answer in answers:
        for end in range(1, len(answer) + 1):
            length = 0
            while length < min(end, len(context), LONGEST_MATCH) and answer[end - 1 - length] == context[-1 - length]:
                length += 1
            if length >= SHORTEST_MATCH:
                found[length] += 1
    return found


@given(st.lists(IDS, max_size=5), IDS)
def test_every_match_is_found_with_its_length(answers: list[list[int]], context: list[int]) -> None:
    segment = Segment()
    for answer in answers:
        segment.add(answer)
    assert Counter(length for length, _ in segment.matches(context)) == naive(answers, context)
    assert list(segment.answers()) == answers


def test_it_takes_no_more_than_it_may_and_the_least_recently_used_goes() -> None:
    most = 2**18
    memory = AnswerMemory(most)
    used = [1, 2, 3, 4, 5]
    memory.add("used", used)
    tracemalloc.start()
    for number in range(200):
        memory.add(f"scope {number % 8}", [(number * 7919 + token * token) % 50_021 for token in range(500)])
        assert memory.bytes <= most
        assert after(memory, used[:3], scope="used") == [4, 5], "what is used stays"
    # Its own alone: earlier tests of this process have left threads, which may take memory meanwhile.
    own = tracemalloc.Filter(inclusive=True, filename_pattern="*/draft_worker/*")
    taken = sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces([own]).traces)
    tracemalloc.stop()
    assert memory.evictions > 0
    assert taken < 1.2 * most, "what it counts is what it takes"
    assert memory.tokens * 28 > most // 2, "and it is not wasted"


def test_strangers_who_bring_a_scope_each_fill_no_more_than_that() -> None:
    memory = AnswerMemory(2**20)
    for number in range(8_000):
        memory.add(f"{number:032x}", [1, 2, 3, 4, 5])
    assert memory.bytes <= 2**20
    assert memory.scopes < 2_500
    assert sum(1 for _ in memory.answers()) == memory.scopes


def test_an_answer_longer_than_a_segment_is_kept_in_pieces() -> None:
    answer = [number % 10_007 for number in range(80_000)]
    memory = AnswerMemory(8 * 2**20)
    memory.add("a", answer)
    for at in (100, 40_000, 79_000):
        assert after(memory, answer[at - 8 : at], tokens=5) == answer[at : at + 5]


def test_a_file_brings_it_back(tmp_path: Path) -> None:
    file = tmp_path / "history"
    memory = memory_of([1, 2, 3, 4], [1, 2, 3, 5], [7, 8, 9, 6])
    memory.add("b", [4, 4, 4, 4])
    memory_file.save(memory.answers(), file)
    assert file.stat().st_mode & 0o777 == 0o600
    again = AnswerMemory(2**20)
    memory_file.load(again, file)
    assert list(again.answers()) == list(memory.answers())
    assert after(again, [1, 2, 3]) == after(memory, [1, 2, 3]) == [5]


@pytest.mark.parametrize(
    "text", ["", "null\n", '{"tandem_history": 2}\n', '{"tandem_history": 1}\n["a", [1, -2]]\n', "\x00"]
)
def test_a_file_that_is_none_brings_nothing(tmp_path: Path, text: str) -> None:
    file = tmp_path / "history"
    file.write_text(text)
    memory = AnswerMemory(2**20)
    memory_file.load(memory, file)
    assert memory.tokens == 0
