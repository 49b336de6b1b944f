"""Linear layers for passes of a few rows on a CPU, which is what verification and batched decoding are made of.

A pass of a few rows should cost what reading the weights costs. torch's own float32 layer misses that: for one row MKL
reads the weight once, but for a few it first copies the weight into the blocks that its kernel works on, in every call,
which takes longer than the product. Here that copy is made once, when the model is loaded (`cblas_sgemm_pack`), and
every product of any number of rows reads it (`cblas_sgemm_compute`). It replaces the weight, so that nothing is held
twice but a head that shares its weight with the embedding. `python -m benchmarks.rows` measures what that gains.

A row's sums are also made in one order whatever the number of rows (with `MKL_CBWR=…,STRICT` for every shape tried),
which is what bitwise mode needs.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from engines.torch.environment import CPUINFO

logger = logging.getLogger(__name__)

_PACKED_FOR_ROWS = 64
"""The number of rows that MKL chooses its blocks for. Measured from 1 to 256 rows: those for 64 are the fastest or
within 3% of it, while those for 8 take half as long again from 12 rows on."""


class PackedLinear(nn.Module):
    """A float32 linear layer whose weight exists in MKL's packed form alone.

    `weight` has the layer's shape, dtype and device but not its numbers: every entry is NaN, in four bytes of memory,
    so that code which computes with it directly can't go unseen (`pack_linear_layers` looks for such code).
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.bias = layer.bias
        self.weight = nn.Parameter(_nans_like(layer.weight), requires_grad=False)
        self._by_onednn = prefers_onednn()
        if self._by_onednn:
            self._packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), _PACKED_FOR_ROWS)
        else:
            self._packed = torch.ops.mkl._mkl_reorder_linear_weight(layer.weight.detach(), _PACKED_FOR_ROWS)

    def forward(self, values: Tensor) -> Tensor:
        """[…, in_features] → [..., out_features], contiguous."""
        rows = values.numel() // self.in_features
        if rows == 0:
            return values.new_empty(*values.shape[:-1], self.out_features)
        if self._by_onednn:
            found: Tensor = torch.ops.mkldnn._linear_pointwise(values, self._packed, self.bias, "none", [], "")
            return found
        # The last argument must be the number of rows: where it is not, the product is made with `weight`.
        product: Tensor = torch.ops.mkl._mkl_linear(values, self._packed, self.weight, self.bias, rows)
        return product


class _Hidden(nn.Module):
    """A layer that computes as ever and hides its weight as PackedLinear does, to try what the model makes of that."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.bias = layer.bias
        self.weight = nn.Parameter(_nans_like(layer.weight), requires_grad=False)
        self._layer = (layer,)  # in a tuple, so that the model does not find it

    def forward(self, values: Tensor) -> Tensor:
        return linear(values, self._layer[0].weight, self.bias)


def can_pack() -> bool:
    """Whether torch has MKL, and with it the products of packed weights."""
    return torch.backends.mkl.is_available() and hasattr(torch.ops.mkl, "_mkl_linear")  # type: ignore[no-untyped-call]


def prefers_onednn() -> bool:
    """Whether oneDNN's packed products are to be used in place of MKL's: on AMD's processors, but in bitwise mode.

    Measured on an EPYC with AVX-512, all layers of a model of 135M parameters: 21, 22, 25, 164 ms for 1, 4, 8, 256 rows
    in place of MKL's 25, 61, 70, 428. Bitwise mode keeps MKL's, whose settings (`MKL_CBWR`) it is tested with.
    """
    if "STRICT" in os.environ.get("MKL_CBWR", ""):
        return False
    if not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")):  # type: ignore[no-untyped-call]
        return False
    return CPUINFO.is_file() and "AuthenticAMD" in CPUINFO.read_text()


def pack_linear_layers(model: nn.Module, run: Callable[[], Tensor]) -> bool:
    """Pack the float32 linear layers that are on a CPU, in place; whether that was done.

    `run` makes a short pass and returns its logits. A model whose code computes with a layer's weight itself, past the
    layer, gives other logits while the weights are hidden; it is left as it is.
    """
    if not can_pack():
        return False
    layers = [
        (parent, name, child)
        for parent in list(model.modules())
        for name, child in list(parent._modules.items())
        if type(child) is nn.Linear and child.weight.dtype == torch.float32 and child.weight.device.type == "cpu"
    ]
    if not layers:
        return False
    expected = run()
    for parent, name, layer in layers:
        setattr(parent, name, _Hidden(layer))
    try:
        hidden = torch.equal(run(), expected)
    except Exception:  # noqa: BLE001 - whatever the model's code does with a weight that it can't use
        hidden = False
    for parent, name, layer in layers:
        setattr(parent, name, layer)
    if not hidden:
        logger.warning(
            "%s computes with the weights of its layers directly: its passes of a few rows stay slower",
            type(model).__name__,
        )
        return False
    packed: dict[int, PackedLinear] = {}
    while layers:
        # One at a time: a layer's own weight is freed as soon as it is packed.
        parent, name, layer = layers.pop()
        if id(layer) not in packed:
            packed[id(layer)] = PackedLinear(layer)
        setattr(parent, name, packed[id(layer)])
    return True


def packed_head_bytes(config: Any, dtype: torch.dtype, device: torch.device) -> int:
    """Bytes that packing adds to a model of this configuration: those of a head whose weight is the embedding's, which
    stays as it is."""
    text = config.get_text_config()
    tied = text.tie_word_embeddings or config.tie_word_embeddings  # a wrapper's own word counts
    if device.type != "cpu" or dtype != torch.float32 or not can_pack() or not tied:
        return 0
    return int(text.vocab_size * text.hidden_size * dtype.itemsize)


def _nans_like(weight: Tensor) -> Tensor:
    return torch.full((1, 1), torch.nan, dtype=weight.dtype, device=weight.device).expand(weight.shape)
