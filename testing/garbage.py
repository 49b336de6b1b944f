"""What lives on without the garbage collector: a server whose collector comes seldom keeps it until then."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from testing.patience import until

Alive = Callable[..., Counter[str]]


@contextmanager
def collector_off() -> Iterator[Alive]:
    """No collection until the end. What it gives counts the objects of some classes, and of classes derived from them,
    that were made since and are still there, whether anything refers to them or only they to one another."""

    def alive(*kinds: type) -> Counter[str]:
        # type(), not isinstance(): a lazy module's or a mock's __class__ may do anything.
        return Counter(type(one).__name__ for one in gc.get_objects() if issubclass(type(one), kinds))

    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield alive
    finally:
        gc.enable()
        gc.unfreeze()


async def all_gone(alive: Alive, *kinds: type) -> None:
    """Wait until none is left: until callbacks have been called and other threads have gone on. Fails if one stays."""
    try:
        await until(lambda: not alive(*kinds))
    except AssertionError:
        raise AssertionError(alive(*kinds)) from None
