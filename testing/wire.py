"""Messages for workers, and coroutines as tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any

from protocol.hashing import PrefixHashes
from testing.patience import PATIENCE


def request(
    ids: Sequence[int], held: int = 0, salt: str | None = None, sampling: dict[str, Any] | None = None, **fields: Any
) -> dict[str, Any]:
    """A message for the context `ids`, whose first `held` ids are not sent again."""
    hashes = PrefixHashes(salt)
    hashes.extend(ids)
    return {
        "session_id": "s",
        "round": 0,
        "context": {"start": held, "token_ids": list(ids[held:]), "prefix_hash": hashes.at(held)},
        "num_prompt_tokens": 0,
        "max_tokens": 16,
        "sampling": {"seed": 7, **(sampling or {})},
        "cache_salt": salt,
        **fields,
    }


async def pause() -> None:
    """Let other tasks and threads run; for loops that poll for something without an event."""
    await asyncio.sleep(0.001)


def async_test(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a coroutine function as a test. It ends after twice PATIENCE seconds, lest it hang; `until` says before that
    what it waits for."""

    @wraps(test)
    def run(*args: Any, **fields: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **fields), 2 * PATIENCE))

    return run
