"""Which token each character of a choice's text comes from, and who made that token."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from server.backend import Round
from server.text.detokenizer import Detokenizer

TokenOrigin = Literal["draft", "target", "bonus", "plain"]
"""An accepted draft token; the target's own in place of one it rejected, after a draft that it accepted whole, or if
nothing was drafted."""

_TAILS = 4  # a character has at most four bytes, and so four tokens


@dataclass(frozen=True, slots=True)
class Token:
    """The `index`-th kept token of the `round`-th round of a choice, both from 0. `source`: the drafter, of a draft."""

    round: int
    index: int
    origin: TokenOrigin
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """Text that one token brought, or a part of it."""

    text: str
    token: Token


@dataclass(frozen=True, slots=True)
class Attributed:
    """What one round brought: its kept tokens, and the text that is shown now, whichever round it is from."""

    number: int
    round: Round
    tokens: list[Token]
    spans: list[Span]


def origin_of(round: Round, index: int) -> TokenOrigin:
    """Of the `index`-th token of a round."""
    if index < round.num_accepted:
        return "draft"
    if round.num_drafted == 0:
        return "plain"
    return "bonus" if round.num_accepted >= round.num_drafted else "target"


def tokens_of(round: Round, number: int, kept: int) -> list[Token]:
    """Of its first `kept` tokens."""
    sources = [source for source, tokens, _ in round.by_source(round.num_accepted) for _ in range(tokens)]
    tokens = []
    for index in range(kept):
        origin = origin_of(round, index)
        source = sources[index] if origin == "draft" and index < len(sources) else None
        tokens.append(Token(number, index, origin, source))
    return tokens


def _common(first: str, second: str) -> int:
    """The length of their common beginning, in characters."""
    same = 0
    while same < min(len(first), len(second)) and first[same] == second[same]:
        same += 1
    return same


class Attribution:
    """Follows a choice's text from its detokenizer to what is shown.

    A character belongs to the first token after which the text, had it ended there, would have had it: an "é" of two
    byte tokens to the second, the U+FFFD for a character that was never finished to the token that began it. Text that
    is held back (for a stop string that it may begin) keeps its tokens.
    """

    def __init__(self, detokenizer: Detokenizer) -> None:
        self._detokenizer = detokenizer
        # What the detokenizer held back lately: how each would have come out at the end of the text, and whose it was.
        self._tails: deque[tuple[str, list[Token]]] = deque(maxlen=_TAILS)
        self._waiting: deque[tuple[str, Token]] = deque()  # decoded but not yet shown
        self._spans: list[Span] = []

    def decoded(self, piece: str, token: Token) -> None:
        """The detokenizer has just returned `piece` for `token`."""
        text = piece + self._detokenizer.peek()
        owners: list[Token] = []
        for tail, tail_owners in self._tails:
            same = _common(text, tail)
            if same > len(owners):
                owners = tail_owners[:same]
        owners = owners + [token] * (len(text) - len(owners))
        self._waiting.extend(zip(piece, owners, strict=False))
        held = [(tail[len(piece) :], whose[len(piece) :]) for tail, whose in self._tails if tail.startswith(piece)]
        self._tails.clear()
        if len(text) > len(piece):
            self._tails.extend([*held, (text[len(piece) :], owners[len(piece) :])])

    def shown(self, text: str) -> None:
        """`text` is shown: as many of the decoded characters, in their order."""
        taken = [self._waiting.popleft() for _ in range(len(text))]
        for token, characters in groupby(taken, key=lambda taken: taken[1]):
            self._spans.append(Span("".join(character for character, _ in characters), token))

    def take(self) -> list[Span]:
        """The spans that have been shown since the last time."""
        spans, self._spans = self._spans, []
        return spans
