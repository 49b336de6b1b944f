"""Bitwise mode: a token's logits have the same bits whatever pass computed them.

The parts: MKL's strict reproducibility makes float32 matrix products independent of the number of rows (it is set in
engines.torch.environment, before torch loads); attention pads key lengths by the query's own position
(engines.torch.batch); and activations are written here in operations whose vector and scalar forms agree, since torch
computes the tail of an array, wherever it falls, with other code than its body. Where a processor's products have other
bits for few rows all the same (MKL and oneDNN on AMD, oneDNN in bfloat16), passes are filled up with rows:
`settle_padding` finds how many by trying, on the machine and the layers at hand, and refuses where no number helps. The
idea and the name are those of He and Thinking Machines, "Defeating Nondeterminism in LLM Inference" (2025).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from transformers import activations

from engines.errors import BatchInvarianceError
from engines.runtime.rows import Row
from engines.torch.linear import PackedLinear
from engines.torch.padding import Padding, row_paddings
from engines.torch.runner import Runner
from engines.torch.support import recurrent_layers

_LARGE_LAYER = 32_000_000
_MOST_PRODUCTS = 2**35
"""Multiplications of one try with a prefill chunk: about a second on a core or two."""
_EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_CHECK_SEED = 20_250_910


def check_environment(device: torch.device, dtype: torch.dtype, config: Any) -> None:
    """Refuse devices, dtypes, builds and models for which the mode is not known to hold.

    Raises:
        BatchInvarianceError
    """
    if device.type != "cpu":
        raise BatchInvarianceError(
            f"batch_invariant is not available on {device.type}: its matrix products change with the number of rows"
        )
    if dtype not in (torch.float32, torch.bfloat16):
        raise BatchInvarianceError(f"batch_invariant is not available in {dtype}")
    if recurrent_layers(config):
        raise BatchInvarianceError(
            f"batch_invariant is not available for {config.get_text_config().model_type}: "
            "its recurrent layers sum in another order where a pass begins elsewhere"
        )
    if dtype != torch.float32 and has_experts(config):
        raise BatchInvarianceError(
            f"batch_invariant needs float32 for {config.get_text_config().model_type}: its experts share out the rows"
        )
    if dtype == torch.float32 and _has_mkl() and "STRICT" not in os.environ.get("MKL_CBWR", ""):
        raise BatchInvarianceError(
            "batch_invariant needs MKL_CBWR=AVX512,STRICT (or AVX2,STRICT) set before torch is imported"
        )


def has_experts(config: Any) -> bool:
    """Whether layers of this model route tokens to experts."""
    text = config.get_text_config()
    parts = [text, getattr(text, "ffn_config", None)]  # DBRX has them in a part of their own
    return any(getattr(part, name, None) for part in parts for name in _EXPERT_COUNTS)


def _has_mkl() -> bool:
    return bool(torch.backends.mkl.is_available())  # type: ignore[no-untyped-call]


class Activation(nn.Module):
    """An activation computed in float32 by operations that are exact, or the same for every place in an array."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, values: Tensor) -> Tensor:
        return self.function(values.float()).to(values.dtype)


def _sigmoid(values: Tensor) -> Tensor:
    return values.neg().exp_().add_(1.0).reciprocal_()


def _silu(values: Tensor) -> Tensor:
    return values / values.neg().exp_().add_(1.0)


def _gelu(values: Tensor) -> Tensor:
    return values.mul(math.sqrt(0.5)).erf_().add_(1.0).mul_(values).mul_(0.5)


def _gelu_tanh(values: Tensor) -> Tensor:
    inner = (values * values).mul_(0.044715).add_(1.0).mul_(values).mul_(math.sqrt(2.0 / math.pi))
    return inner.tanh_().add_(1.0).mul_(values).mul_(0.5)


def _quick_gelu(values: Tensor) -> Tensor:
    return values * _sigmoid(values * 1.702)


_INVARIANT: dict[type[nn.Module], Callable[[Tensor], Tensor]] = {
    nn.SiLU: _silu,
    activations.SiLUActivation: _silu,
    nn.Sigmoid: _sigmoid,
    activations.GELUActivation: _gelu,
    activations.NewGELUActivation: _gelu_tanh,
    activations.FastGELUActivation: _gelu_tanh,
    activations.GELUTanh: _gelu_tanh,
    activations.QuickGELUActivation: _quick_gelu,
}


def make_batch_invariant(model: nn.Module) -> None:
    """Replace the model's activations, in place."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            function = _invariant_form(child)
            if function is not None:
                setattr(parent, name, Activation(function))


def _invariant_form(module: nn.Module) -> Callable[[Tensor], Tensor] | None:
    if isinstance(module, nn.GELU):
        return _gelu if module.approximate == "none" else _gelu_tanh
    return _INVARIANT.get(type(module))


def settle_padding(runner: Runner, prefill_chunk_tokens: int = 256) -> None:
    """Give the runner the least padding with which a row has the same bits in passes of every size, at every place.

    Found by comparing bits: of every shape of linear layer for 1 to 64 rows and for prefill chunks, then of whole
    passes cut, batched and branched. `prefill_chunk_tokens` are the most prompt tokens a pass will read. Overwrites the
    runner's slots.

    Raises:
        BatchInvarianceError: naming the difference found with the most padding there is to try.
    """
    layers = _one_of_each_shape(runner.model, prefill_chunk_tokens)
    unpaddable = has_experts(runner.model.config)
    difference: str | None = None
    for padding in row_paddings(torch.get_num_threads()):
        if unpaddable and padding != Padding():
            raise BatchInvarianceError(
                f"batch_invariant does not hold here: {difference}, and padding does not help experts"
            )
        difference = next(filter(None, (_layer_difference(*layer, padding) for layer in layers)), None)
        if difference is not None:
            continue
        # Attention multiplies as many queries at a time as a sequence has in the pass, with the same libraries.
        for multiple in sorted({1, padding.least}):
            runner.padding = replace(padding, attention=multiple)
            difference = _pass_difference(runner)
            if difference is None:
                return
    raise BatchInvarianceError(f"batch_invariant does not hold here: {difference}, whatever is padded")


def _one_of_each_shape(model: Any, prefill_chunk_tokens: int) -> list[tuple[str, nn.Linear | PackedLinear, int]]:
    """(name, layer, most prefill rows). A router that returns its experts too is tried in whole passes alone."""
    layers: dict[tuple[int, int, bool], tuple[str, nn.Linear | PackedLinear, int]] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, (nn.Linear, PackedLinear)) and _returns_its_product(layer):
            # Logits are computed of a chunk's last token alone, not of the whole chunk.
            chunk = prefill_chunk_tokens if layer is not model.get_output_embeddings() else 1
            layers.setdefault((layer.in_features, layer.out_features, layer.bias is not None), (name, layer, chunk))
    return list(layers.values())


@torch.inference_mode()
def _returns_its_product(layer: nn.Linear | PackedLinear) -> bool:
    """Not so for some models' routers, which are an nn.Linear with a `forward` of their own."""
    return isinstance(layer(layer.weight.new_zeros(1, 1, layer.in_features)), Tensor)


def _row_counts(layer: nn.Linear | PackedLinear, padding: Padding, prefill_chunk_tokens: int) -> list[int]:
    """What passes come to: up to 64 rows all of them (of large layers some), and a few prefill chunks, the largest
    included where that is not too much work. More of them where MKL does not promise that they are alike."""
    counts = [*range(1, 65), 100, 128]
    if layer.weight.numel() > _LARGE_LAYER:
        counts = [*range(1, 17), 24, 31, 32, 33, 48, 63, 64]
    elif padding != Padding() or not _has_mkl():
        counts += range(65, 256, 9)
    chunks = [256, prefill_chunk_tokens]
    counts += [count for count in chunks if count * layer.weight.numel() <= _MOST_PRODUCTS]
    return sorted({padding.rows(count) for count in counts})


@torch.inference_mode()
def _layer_difference(
    name: str, layer: nn.Linear | PackedLinear, prefill_chunk_tokens: int, padding: Padding
) -> str | None:
    """Passes of every size hold the rows of the largest pass, from another place on each."""
    generator = torch.Generator().manual_seed(_CHECK_SEED)
    counts = _row_counts(layer, padding, prefill_chunk_tokens)
    most = counts[-1]
    rows = torch.randn(most, layer.in_features, generator=generator).to(layer.weight.dtype)
    reference = layer(rows[None])[0]
    for shift, count in enumerate(counts, start=1):
        chosen = (torch.arange(count) + shift) % most
        if not torch.equal(layer(rows[chosen][None])[0], reference[chosen]):
            shape = f"{name} ({layer.in_features} → {layer.out_features})"
            return f"{shape} gives other bits for {count} rows than for {most}"
    return None


def _pass_difference(runner: Runner) -> str | None:
    context = min(60, runner.slot_length // 2)
    count = min(12, runner.slot_length - context)
    generator = torch.Generator().manual_seed(_CHECK_SEED)
    vocabulary = runner.model.get_input_embeddings().num_embeddings
    ids = torch.randint(vocabulary, (context + count,), generator=generator).tolist()
    tail = ids[context:]
    runner.forward([Row(0, 0, ids[:context], logits_from=context)])
    reference = torch.cat([runner.forward([Row(0, context + i, [token])])[0] for i, token in enumerate(tail)])
    for what, logits in _other_ways(runner, ids, context):
        if not torch.equal(logits, reference):
            return f"{what} gives other bits than one token at a time"
    return None


def _other_ways(runner: Runner, ids: list[int], context: int) -> Iterator[tuple[str, Tensor]]:
    """Logits of ids[context:], computed in other ways."""
    tail = ids[context:]
    count = len(tail)
    yield "a chunk", runner.forward([Row(0, context, tail)])[0]
    cuts = [0, min(2, count), min(5, count), count]
    yield (
        "uneven chunks",
        torch.cat([runner.forward([Row(0, context + a, tail[a:b])])[0] for a, b in pairwise(cuts)]),
    )
    chain = list(range(-1, count - 1))
    branch = [*chain, *[-1, *range(count, 2 * count - 1)]]
    if context + count <= runner.slot_length:
        other = [(token + 1) % runner.vocab_size for token in tail]
        tree = runner.forward([Row(0, context, [*other, *tail], parents=branch)])[0]
        yield "a tree", tree[count:]
    yield "one prefill", runner.forward([Row(0, 0, ids, logits_from=context)])[0]
    if runner.num_slots > 1:
        for start in range(0, context, 7):
            runner.forward([Row(1, start, ids[start : min(start + 7, context)], logits_from=0)])
        for companion in (ids[:5], ids):
            rows = [Row(0, 0, companion), Row(1, context, tail)]
            yield (
                f"prefill in small chunks and a batch of {sum(len(row.token_ids) for row in rows)}",
                runner.forward(rows)[1],
            )
