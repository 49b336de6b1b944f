"""Linear layers that read the same input, as one product: a small model's step on a GPU lasts as its kernels are many.

For a row or two every product of a 0.5B model takes a kernel's least time, about 4 µs on an H100, whatever its size.
Queries, keys and values, and a gated MLP's two halves, need two kernels a layer in this form instead of five.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

_SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names by which models call layers of one module that are applied to one tensor."""


class _Product:
    """One product for several layers; what it gives waits for each of them to take its part.

    Correct whatever the layers are called with, and in whatever order; saves something if all are called in turn
    with the very same tensor.
    """

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        self.sizes = [layer.out_features for layer in layers]
        self.weight = torch.cat([layer.weight.detach() for layer in layers])
        biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
        self.bias = torch.cat(biases) if biases else None
        self._input: Tensor | None = None
        self._waiting: list[Tensor | None] = []

    def part(self, index: int, values: Tensor) -> Tensor:
        if self._input is not values or self._waiting[index] is None:
            self._input = values
            self._waiting = list(linear(values, self.weight, self.bias).split_with_sizes(self.sizes, -1))
        part = self._waiting[index]
        assert part is not None
        self._waiting[index] = None
        if all(other is None for other in self._waiting):
            self._input = None  # neither tensor is to outlive the pass
        return part


class FusedPart(nn.Module):
    """In place of one of the layers. Its parameters are views of the product's, so that nothing is held twice."""

    def __init__(self, layer: nn.Linear, product: _Product, index: int) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self._product, self._index = product, index
        own = product.weight.split_with_sizes(product.sizes)[index]
        self.weight = nn.Parameter(own, requires_grad=False)
        bias = None if product.bias is None else product.bias.split_with_sizes(product.sizes)[index]
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def forward(self, values: Tensor) -> Tensor:
        """[…, in_features] → [..., out_features], rows not contiguous."""
        return self._product.part(self._index, values)


def fuse_siblings(model: nn.Module) -> int:
    """Replace in place the layers that can be computed as one; how many such products there are now.

    Passes must follow each other, as they do in an engine's loop.
    """
    products = 0
    for parent in list(model.modules()):
        for names in _SIBLINGS:
            layers = [layer for name in names if type(layer := getattr(parent, name, None)) is nn.Linear]
            if len(layers) < len(names) or not _alike(layers):
                continue
            product = _Product(layers)
            for index, (name, layer) in enumerate(zip(names, layers, strict=True)):
                setattr(parent, name, FusedPart(layer, product, index))
            products += 1
    return products


def _alike(layers: Sequence[nn.Linear]) -> bool:
    kinds = {(layer.in_features, layer.bias is None, layer.weight.dtype, layer.weight.device) for layer in layers}
    return len(kinds) == 1
