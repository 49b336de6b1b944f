"""Drawing in another vocabulary than the model's: which id's noise each column takes, and which may be drawn at all."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """What the columns of a model's logits are in another vocabulary, in which the noise is shared.

    `noise_ids` int64 [V]: the id whose noise a column's token is drawn with. `mask` float32 [V]: 0, or −inf where the
    other vocabulary lacks the token. The distribution that is left is renormalised over the others.
    """

    noise_ids: Tensor
    mask: Tensor

    def masked(self, logits: Tensor) -> Tensor:
        """Float32 [n, V] → a new float32 [n, V]."""
        return logits + self.mask.to(logits.device)
