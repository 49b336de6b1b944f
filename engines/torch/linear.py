"""Linear layers for passes of a few rows on a CPU, which is what verification and batched decoding are made of.

A pass of a few rows should cost what reading the weights costs. torch's own float32 layer misses that: for one row MKL
reads the weight once, but for a few it first copies the weight into the blocks that its kernel works on, in every call,
which takes longer than the product. Here that copy is made once, when the model is loaded, and every product of any
number of rows reads it. It replaces the weight, so that nothing is held twice but a head that shares its weight with
the embedding. `python -m benchmarks.rows` measures what that gains.

torch has two libraries that can: MKL (`cblas_sgemm_pack`, `cblas_sgemm_compute`) and oneDNN. On AMD's processors MKL
takes more than twice as long for four rows as for one, oneDNN hardly longer; on Intel's only MKL has been measured, and
it does well there. The choice follows from the maker alone, not from a measurement at start, since a library's bits are
its own: a worker that starts again must give the same text.

A row's sums are also made in one order whatever the number of rows, which is what bitwise mode needs: by MKL with
`MKL_CBWR=…,STRICT`, on AMD from four rows on; by oneDNN from two rows on, in most shapes from one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from engines.torch.environment import CPUINFO

logger = logging.getLogger(__name__)

_PACKED_FOR_ROWS = 64
"""The number of rows that a library chooses its blocks for. Measured with MKL from 1 to 256 rows: those for 64 are the
fastest or within 3% of it, while those for 8 take half as long again from 12 rows on."""

Library = Literal["mkl", "onednn"]


class PackedLinear(nn.Module):
    """A float32 linear layer whose weight exists in a library's packed form alone.

    `weight` has the layer's shape, dtype and device but not its numbers: every entry is NaN, in four bytes of memory,
    so that code which computes with it directly can't go unseen (`pack_linear_layers` looks for such code).
    """

    def __init__(self, layer: nn.Linear, library: Library) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.bias = layer.bias
        self.weight = nn.Parameter(_nans_like(layer.weight), requires_grad=False)
        self.library = library
        pack = torch.ops.mkl._mkl_reorder_linear_weight if library == "mkl" else torch.ops.mkldnn._reorder_linear_weight
        self._packed = pack(layer.weight.detach(), _PACKED_FOR_ROWS)

    def forward(self, values: Tensor) -> Tensor:
        """[…, in_features] → [..., out_features], contiguous."""
        rows = values.numel() // self.in_features
        if rows == 0:
            return values.new_empty(*values.shape[:-1], self.out_features)
        product: Tensor
        if self.library == "mkl":
            # The last argument must be the number of rows: where it is not, the product is made with `weight`.
            product = torch.ops.mkl._mkl_linear(values, self._packed, self.weight, self.bias, rows)
        else:
            product = torch.ops.mkldnn._linear_pointwise(values, self._packed, self.bias, "none", [], "")
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


def packing_libraries() -> list[Library]:
    """The libraries of this torch that make products of packed weights, the one for this processor first."""
    has_mkl = torch.backends.mkl.is_available() and hasattr(torch.ops.mkl, "_mkl_linear")  # type: ignore[no-untyped-call]
    # Only beside MKL, so that builds for processors on which nothing was measured stay as they are.
    has_onednn = has_mkl and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")  # type: ignore[no-untyped-call]
    found: list[Library] = []
    if has_mkl:
        found.append("mkl")
    if has_onednn:
        found.insert(0 if _is_made_by_amd() else 1, "onednn")
    return found


def _is_made_by_amd() -> bool:
    try:
        return "AuthenticAMD" in CPUINFO.read_text()
    except OSError:
        return False


def library_of(model: nn.Module) -> Library | None:
    """The library that makes the products of a model's packed layers; None if it has none."""
    return next((layer.library for layer in model.modules() if isinstance(layer, PackedLinear)), None)


def pack_linear_layers(model: nn.Module, run: Callable[[], Tensor], library: Library | None = None) -> bool:
    """Pack the float32 linear layers that are on a CPU, in place; whether that was done. `library`: not the one for
    this processor, but this one.

    `run` makes a short pass and returns its logits. A model whose code computes with a layer's weight itself, past the
    layer, gives other logits while the weights are hidden; it is left as it is.
    """
    library = library or next(iter(packing_libraries()), None)
    if library is None:
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
            packed[id(layer)] = PackedLinear(layer, library)
        setattr(parent, name, packed[id(layer)])
    return True


def packed_head_bytes(config: Any, dtype: torch.dtype, device: torch.device) -> int:
    """Bytes that packing adds to a model of this configuration: those of a head whose weight is the embedding's, which
    stays as it is."""
    text = config.get_text_config()
    tied = text.tie_word_embeddings or config.tie_word_embeddings  # a wrapper's own word counts
    if device.type != "cpu" or dtype != torch.float32 or not packing_libraries() or not tied:
        return 0
    return int(text.vocab_size * text.hidden_size * dtype.itemsize)


def _nans_like(weight: Tensor) -> Tensor:
    return torch.full((1, 1), torch.nan, dtype=weight.dtype, device=weight.device).expand(weight.shape)
