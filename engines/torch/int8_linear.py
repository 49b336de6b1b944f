"""Linear layers whose weight is int8, one scale a row: a quarter of the bytes to read for a few rows on a CPU.

The product is torch's own (`quantized.linear_dynamic`, FBGEMM): the input is quantised too, with one scale for the
whole of it. That is right for the few tokens of a draft's step; where many are read at once, one token's large values
would cost all the others their precision, so these are multiplied by the same weight in float32.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

MOST_ROWS = 8


class Int8Linear(nn.Module):
    """`rows` int8 [out_features, in_features] and `scales` float32 [out_features]: y = x · (rows · scales)ᵀ + bias."""

    def __init__(self, rows: Tensor, scales: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.out_features, self.in_features = rows.shape
        self.weight = nn.Parameter(rows.float() * scales[:, None], requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias.float(), requires_grad=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # quantised tensors are to go some day; here they are a step
            packed = self._quantised(rows, scales)
        self._packed = torch.ops.quantized.linear_prepack(packed, self.bias)

    @staticmethod
    def _quantised(rows: Tensor, scales: Tensor) -> Tensor:
        return torch._make_per_channel_quantized_tensor(
            rows, scales.double(), torch.zeros(len(scales), dtype=torch.long), 0
        )

    def forward(self, values: Tensor) -> Tensor:
        """float32 […, in_features] → [..., out_features]."""
        if values.numel() > MOST_ROWS * self.in_features:
            return linear(values, self.weight, self.bias)
        product: Tensor = torch.ops.quantized.linear_dynamic(values, self._packed)
        return product


def has_int8() -> bool:
    """Whether this build of torch multiplies int8 weights on this machine's CPU."""
    return torch.backends.quantized.engine in ("x86", "fbgemm", "qnnpack", "onednn")
