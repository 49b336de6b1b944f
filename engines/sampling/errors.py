"""Logits that no token can be drawn from."""

from __future__ import annotations

from collections.abc import Sequence


class UnusableLogits(ValueError):
    """`rows`: indices of the rows at fault. Their requests fail; the others can be processed without them."""

    reason = "unusable logits"

    def __init__(self, rows: Sequence[int]) -> None:
        super().__init__(f"{self.reason} in rows {list(rows)}")
        self.rows = tuple(rows)


class NanLogits(UnusableLogits):
    """The model computed NaN or +inf."""

    reason = "NaN or infinite logits"


class NoTokenLeft(UnusableLogits):
    """Every token of the row is masked out or −inf."""

    reason = "no token left"
