"""A language model that is a function: cheap, deterministic, and different for every context."""

from __future__ import annotations

from hashlib import blake2b

VOCABULARY = 50
STOP = 49


def target_token(ids: list[int]) -> int:
    """Depends on the last three tokens and the position; never STOP before position 500."""
    tail = ",".join(map(str, [len(ids), *ids[-3:]]))
    return blake2b(tail.encode(), digest_size=4).digest()[0] % (VOCABULARY - 1)


def continuation(ids: list[int], count: int) -> list[int]:
    """What the target says after `ids`."""
    ids = list(ids)
    for _ in range(count):
        ids.append(target_token(ids))
    return ids[len(ids) - count :]


def draft_token(ids: list[int], wrong: float) -> int:
    """The target's token, but wrong in this share of contexts."""
    token = target_token(ids)
    noise = blake2b(f"draft{len(ids)},{ids[-1]}".encode(), digest_size=2).digest()
    return (token + 1) % (VOCABULARY - 1) if int.from_bytes(noise, "big") < wrong * 65536 else token
