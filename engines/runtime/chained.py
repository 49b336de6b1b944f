"""Pieces of a pass that need no ordinary pass: those drawn as chains (engines/torch/chains.py), and contexts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from engines.runtime.jobs import Passed
from engines.runtime.rows import Row
from engines.runtime.runner import ChainRow, Chains
from engines.runtime.runs import Piece
from engines.sampling.batch import DrawnTokens, Draws
from engines.sampling.distribution import Distribution

_NO_LOGITS = torch.empty(0, 0)


@dataclass(frozen=True, slots=True)
class Chained:
    """The pieces that were `fed`, their rows with all drawn tokens but the last, and what was `drawn` for each (nothing
    for context alone), what of their places was `kept`, and what was drawn `apart`."""

    fed: list[Piece]
    drawn: list[list[int]]
    sessions: int
    seconds: float
    kept: list[list[Tensor | int]] = field(default_factory=list)
    apart: list[list[DrawnTokens]] = field(default_factory=list)

    def results(self) -> Iterator[tuple[Piece, Passed]]:
        """The answer of each fed piece whose job gets one. To be called after the runs' times are noted."""
        rows = sum(len(piece.row.token_ids) for piece in self.fed)
        for number, (piece, tokens) in enumerate(zip(self.fed, self.drawn, strict=True)):
            if piece.whole:
                kept = self.kept[number][: len(tokens)] if self.kept else []
                second = [one for one in kept if isinstance(one, int)]
                whole = [one for one in kept if isinstance(one, Tensor)]
                draws = Draws(DrawnTokens(tokens, second), _no_distribution) if tokens else None
                logits = torch.stack(whole) if whole else _NO_LOGITS
                apart = self.apart[number] if self.apart else []
                yield piece, Passed(logits, draws, piece.run.timings(rows, self.sessions), apart)


def is_chain(chains: Chains, piece: Piece) -> bool:
    """Whether the job allows a chain here, and the runner can draw it."""
    feed = piece.feed
    return piece.whole and feed.chain > 0 and chains.takes(piece.row, feed.rows[0])


def is_context(piece: Piece) -> bool:
    """Whether only keys and values are wanted of the piece, no logits."""
    row = piece.row
    return row.parents is None and row.logits_from == len(row.token_ids)


def shortened(chains: Chains, pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces; of those whose context alone is too long for a chain all but its last token, so that one comes next.

    Otherwise a drafter that fell behind by a few tokens would go on token by token, and fall behind for good.
    """
    return [_context(piece) if _is_late(chains, piece) else piece for piece in pieces]


def draw_chains(chains: Chains, pieces: Sequence[Piece]) -> Chained:
    """Draw all pieces' chains, and those apart from them. A piece that gives no token is not fed: its feed then asks
    for a pass, the ordinary way.

    Raises whatever the runner does.
    """
    began = time.perf_counter()
    rows = [
        ChainRow(piece.row, piece.feed.rows[0], piece.feed.chain, [] if piece.feed.keeps else None) for piece in pieces
    ]
    beside = [_apart(chains, piece) for piece in pieces]
    found = chains.run([*rows, *(row for of_piece in beside for row in of_piece if row is not None)])
    seconds = time.perf_counter() - began
    fed: list[Piece] = []
    drawn: list[list[int]] = []
    kept: list[list[Tensor | int]] = []
    apart: list[list[DrawnTokens]] = []
    drawn_apart = iter(found[len(rows) :])
    for piece, row, tokens, of_piece in zip(pieces, rows, found[: len(rows)], beside, strict=True):
        told = [_drawn(one, next(drawn_apart)) if one is not None else DrawnTokens([]) for one in of_piece]
        if tokens:
            fed.append(replace(piece, row=piece.row.followed_by(tokens[:-1])))
            drawn.append(tokens)
            kept.append(row.kept or [])
            apart.append(told)
        else:
            piece.feed.chain = 0
    return Chained(fed, drawn, len(pieces), seconds, kept, apart)


def _apart(chains: Chains, piece: Piece) -> list[ChainRow | None]:
    """Those that the feed has drawn apart; None for one that the runner can't draw."""
    found: list[ChainRow | None] = []
    for one in piece.feed.apart:
        row = Row(piece.row.slot, one.start, one.token_ids, None, len(one.token_ids) - 1)
        fits = chains.apart > 0 and len(one.token_ids) + one.count <= chains.longest_apart
        takes = fits and chains.takes(row, one.sampling)
        found.append(ChainRow(row, one.sampling, one.count, [], apart=True) if takes else None)
    return found


def _drawn(row: ChainRow, tokens: list[int]) -> DrawnTokens:
    return DrawnTokens(tokens, [one for one in (row.kept or [])[: len(tokens)] if isinstance(one, int)])


def read_contexts(chains: Chains, pieces: Sequence[Piece]) -> Chained:
    """Feed the pieces. Raises whatever the runner does."""
    began = time.perf_counter()
    chains.read([piece.row for piece in pieces])
    return Chained([*pieces], [[] for _ in pieces], len(pieces), time.perf_counter() - began)


def _is_late(chains: Chains, piece: Piece) -> bool:
    row, feed = piece.row, piece.feed
    if not piece.whole or not feed.chain or len(row.token_ids) < 2 or is_chain(chains, piece):
        return False
    return chains.takes(replace(row, token_ids=row.token_ids[-1:], logits_from=0), feed.rows[0])


def _context(piece: Piece) -> Piece:
    token_ids = piece.row.token_ids[:-1]
    return replace(piece, row=replace(piece.row, token_ids=token_ids, logits_from=len(token_ids)), whole=False)


def _no_distribution() -> Distribution:
    raise RuntimeError("a chain keeps no distributions")
