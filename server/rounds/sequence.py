"""The token list of one request: the truth that workers only cache."""

from __future__ import annotations

from protocol.hashing import PrefixHashes
from protocol.messages import Context

_BLOCK = 64
_MAX_BLOCKS = 32


class TokenSequence:
    """Prompt and output so far, with the hash of every prefix."""

    def __init__(self, prompt: list[int], cache_salt: str | None) -> None:
        self._ids = list(prompt)
        self._hashes = PrefixHashes(cache_salt)
        self._hashes.extend(prompt)

    def __len__(self) -> int:
        return len(self._ids)

    def since(self, start: int) -> list[int]:
        return self._ids[start:]

    def append(self, token_ids: list[int]) -> None:
        self._ids += token_ids
        self._hashes.extend(token_ids)

    def context(self, start: int) -> Context:
        """The whole sequence for a worker that holds its first `start` tokens."""
        return Context(start=start, token_ids=self._ids[start:], prefix_hash=self._hashes.at(start))

    def prefixes(self) -> list[str]:
        """Hashes of prefixes at doubling lengths, shortest first: what a later turn of the same chat shares."""
        lengths: list[int] = []
        length = _BLOCK
        while length <= len(self._ids) and len(lengths) < _MAX_BLOCKS:
            lengths.append(length)
            length += max(_BLOCK, length // 4 // _BLOCK * _BLOCK)
        return [self._hashes.at(length) for length in lengths]
