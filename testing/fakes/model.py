"""A language model that is a function: cheap, deterministic, and different for every context."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b

VOCABULARY = 50
STOP = 49


def target_token(ids: list[int]) -> int:
    """Depends on the last three tokens and the position; never STOP before position 500."""
    tail = ",".join(map(str, [len(ids), *ids[-3:]]))
    return blake2b(tail.encode(), digest_size=4).digest()[0] % (VOCABULARY - 1)


def top_token(ids: list[int]) -> int:
    """The target's most likely token, which is never the one it draws."""
    return (target_token(ids) + 2) % (VOCABULARY - 1)


def probability(ids: list[int], token: int) -> float:
    """The target's probability of a token: its most likely one, the one it draws, a wrong draft's; 0 for others."""
    return {top_token(ids): 0.5, target_token(ids): 0.3, wrong_token(ids): 0.2}.get(token, 0.0)


def continuation(ids: list[int], count: int, token: Callable[[list[int]], int] = target_token) -> list[int]:
    """The target's `count` tokens after `ids`."""
    ids = list(ids)
    for _ in range(count):
        ids.append(token(ids))
    return ids[len(ids) - count :]


def wrong_token(ids: list[int]) -> int:
    return (target_token(ids) + 1) % (VOCABULARY - 1)


def draft_token(ids: list[int], wrong: float) -> int:
    """The target's token, but wrong in this share of contexts."""
    noise = blake2b(f"draft{len(ids)},{ids[-1]}".encode(), digest_size=2).digest()
    return wrong_token(ids) if int.from_bytes(noise, "big") < wrong * 65536 else target_token(ids)
