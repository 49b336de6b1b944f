"""Linear layers for passes of a few rows on a CPU, which is what verification and batched decoding are made of.

MKL's float32 product of a few rows by a transposed weight, the form in which torch's linear layer asks for it, costs
two single rows or more as soon as there are four rows. The same product asked for the other way round, the weight by
the transposed rows, reads the weight once: measured with SmolLM2's layers on two cores of an AVX-512 Xeon, 8 rows take
58 ms instead of 86, 16 rows 57 instead of 150, one row 34 either way.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

FEWEST_ROWS = 4
MOST_ROWS = 48
"""When the other form pays, measured: up to three rows and from 64 on torch's own is as fast or faster."""


class FewRowsLinear(nn.Module):
    """`layer` with another order of the product for FEWEST_ROWS to MOST_ROWS rows; it shares the layer's parameters."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, values: Tensor) -> Tensor:
        """[…, in_features] → [..., out_features], contiguous."""
        rows = values.numel() // self.in_features
        if not FEWEST_ROWS <= rows <= MOST_ROWS:
            return linear(values, self.weight, self.bias)
        product = torch.mm(self.weight, values.reshape(rows, self.in_features).t()).t().contiguous()
        if self.bias is not None:
            product += self.bias
        return product.view(*values.shape[:-1], self.out_features)


def serve_few_rows(model: nn.Module) -> None:
    """Replace the linear layers of a float32 model on a CPU with MKL, in place; leave any other model alone."""
    if not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        return
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and child.weight.dtype == torch.float32 and child.weight.device.type == "cpu":
                setattr(parent, name, FewRowsLinear(child))
