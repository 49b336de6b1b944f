"""The garbage collector of a process that serves."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from serving.runner import settle_heap


@pytest.fixture
def collector() -> Iterator[None]:
    """Leaves the collector as it was."""
    threshold = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*threshold)


@pytest.mark.usefixtures("collector")
def test_what_was_loaded_is_left_out_of_collections_and_what_comes_later_is_not() -> None:
    loaded: list[object] = []
    settle_heap()
    later: list[object] = []
    collected = gc.get_objects()
    assert not any(one is loaded for one in collected)
    assert any(one is later for one in collected)
