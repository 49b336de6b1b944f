"""The chained hash by which gateway and workers agree on a token prefix without resending it."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

_DIGEST_BYTES = 8


class PrefixHashes:
    """Hashes of every prefix of a growing token list.

    hash(0) = blake2b(cache_salt), hash(i + 1) = blake2b(hash(i) ‖ id as 4 bytes, little-endian), 8 bytes each.
    One digest is kept for every position, so truncation is O(1) and no prefix is ever hashed twice.
    """

    def __init__(self, cache_salt: str | None = None) -> None:
        self._digests: list[bytes] = [blake2b((cache_salt or "").encode(), digest_size=_DIGEST_BYTES).digest()]

    def __len__(self) -> int:
        """How many tokens have been hashed."""
        return len(self._digests) - 1

    def extend(self, token_ids: Iterable[int]) -> None:
        digests = self._digests
        last = digests[-1]
        for token_id in token_ids:
            last = blake2b(last + token_id.to_bytes(4, "little"), digest_size=_DIGEST_BYTES).digest()
            digests.append(last)

    def then(self, token_ids: Iterable[int]) -> str:
        """What the hash over all tokens would be, were these appended."""
        last = self._digests[-1]
        for token_id in token_ids:
            last = blake2b(last + token_id.to_bytes(4, "little"), digest_size=_DIGEST_BYTES).digest()
        return last.hex()

    def truncate(self, length: int) -> None:
        """Forget every token from `length` on."""
        del self._digests[length + 1 :]

    def at(self, length: int) -> str:
        """The hash over the first `length` tokens, as 16 hexadecimal digits."""
        return self._digests[length].hex()
