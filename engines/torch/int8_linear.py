"""Linear layers whose weight is int8, one scale a row: a quarter of the bytes to read for a few rows on a CPU.

The product is torch's own (`quantized.linear_dynamic`, FBGEMM): the input is quantised too, with one scale for the
whole of it. That is right for the few tokens of a draft's step; where many are read at once, one token's large values
would cost all the others their precision, so these are multiplied by the same weight in float32.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

MOST_ROWS = 8
Packed = Any
"""A weight, and a bias if there is one, as `linear_dynamic` reads them: a torch.ScriptObject."""


class Int8Linear(nn.Module):
    """`rows` int8 [out_features, in_features] and `scales` float32 [out_features]: y = x · (rows · scales)ᵀ + bias."""

    def __init__(self, rows: Tensor, scales: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.out_features, self.in_features = rows.shape
        self.weight = nn.Parameter(rows.float() * scales[:, None], requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias.float(), requires_grad=False)
        self.packed = _pack(rows, scales, self.bias)

    def forward(self, values: Tensor) -> Tensor:
        """float32 […, in_features] → [..., out_features]."""
        if values.numel() > MOST_ROWS * self.in_features:
            return linear(values, self.weight, self.bias)
        return product(self.packed, values)


def product(packed: Packed, values: Tensor) -> Tensor:
    """float32 […, in_features] → [..., out_features], the input quantised; for up to MOST_ROWS rows."""
    found: Tensor = torch.ops.quantized.linear_dynamic(values, packed, saturates())
    return found


@cache
def saturates() -> bool:
    """Whether sums of two products are cut off at 16 bits, found by trying; the input is then quantised to 7 bits.

    So it is on x86-64 without VNNI, whose instruction multiplies and adds pairs of bytes (vpmaddubsw): FBGEMM leaves it
    to the caller not to need more, and large values are wrong otherwise.
    """
    columns = 64
    packed = _pack(torch.full((16, columns), 127, dtype=torch.int8), torch.ones(16), None)
    found: Tensor = torch.ops.quantized.linear_dynamic(torch.ones(1, columns), packed, False)
    return bool((found < 127 * columns * 0.99).any())


def joined(layers: Sequence[Int8Linear]) -> Packed:
    """Several layers that read one tensor as one, their outputs behind each other."""
    weights = [torch.ops.quantized.linear_unpack(layer.packed)[0] for layer in layers]
    biases: list[Tensor] = [layer.bias for layer in layers if layer.bias is not None]
    if biases and len(biases) < len(layers):
        biases = [torch.zeros(layer.out_features) if layer.bias is None else layer.bias for layer in layers]
    return _pack(
        torch.cat([weight.int_repr() for weight in weights]),
        torch.cat([weight.q_per_channel_scales() for weight in weights]),
        torch.cat(biases) if biases else None,
    )


def _pack(rows: Tensor, scales: Tensor, bias: Tensor | None) -> Packed:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # quantised tensors are to go some day; here they are a step
        zeros = torch.zeros(len(scales), dtype=torch.long)
        weight = torch._make_per_channel_quantized_tensor(rows, scales.double(), zeros, 0)
    return torch.ops.quantized.linear_prepack(weight, bias)


def has_int8() -> bool:
    """Whether this build of torch multiplies int8 weights on this machine's CPU."""
    return torch.backends.quantized.engine in ("x86", "fbgemm", "qnnpack", "onednn")
