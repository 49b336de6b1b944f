"""The token list of one request: the truth that workers only cache."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.hashing import PrefixHashes
from protocol.messages import Context

_BLOCK = 64
_MAX_BLOCKS = 32


@dataclass(frozen=True, slots=True)
class Assumed:
    """A text that goes on from the sequence as it was when it had `start` tokens, as verdicts under way may."""

    start: int
    token_ids: list[int]

    @property
    def length(self) -> int:
        return self.start + len(self.token_ids)

    def then(self, token_ids: list[int]) -> Assumed:
        return Assumed(self.start, [*self.token_ids, *token_ids])

    def beyond(self, sequence: TokenSequence) -> list[int]:
        """What of it is not in the sequence yet."""
        return self.token_ids[len(sequence) - self.start :]

    def holds(self, sequence: TokenSequence) -> bool:
        """Whether the sequence has gone on like that so far."""
        came = sequence.since(self.start)
        length = min(len(came), len(self.token_ids))
        return came[:length] == self.token_ids[:length]


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

    def context(self, start: int, beyond: list[int] | None = None) -> Context:
        """The whole sequence, and what is assumed beyond it, for a worker that holds its first `start` tokens."""
        token_ids = self._ids[start:] + (beyond or [])
        return Context(start=start, token_ids=token_ids, prefix_hash=self._hashes.at(start))

    def held(self, assumed: Assumed) -> Context:
        """The sequence and what is assumed beyond it, for a worker that will hold all of that."""
        return Context(start=assumed.length, token_ids=[], prefix_hash=self._hashes.then(assumed.beyond(self)))

    def prefixes(self) -> list[str]:
        """Hashes of prefixes at doubling lengths, shortest first: what a later turn of the same chat shares."""
        lengths: list[int] = []
        length = _BLOCK
        while length <= len(self._ids) and len(lengths) < _MAX_BLOCKS:
            lengths.append(length)
            length += max(_BLOCK, length // 4 // _BLOCK * _BLOCK)
        return [self._hashes.at(length) for length in lengths]
