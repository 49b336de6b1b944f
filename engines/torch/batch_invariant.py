"""Bitwise mode: a token's logits have the same bits whatever pass computed them.

The parts: MKL's strict reproducibility makes float32 matrix products independent of the number of rows (it is set in
engines.torch.environment, before torch loads); attention pads key lengths by the query's own position
(engines.torch.batch); and activations are written here in operations whose vector and scalar forms agree, since torch
computes the tail of an array, wherever it falls, with other code than its body. The idea and the name are those of
He and Thinking Machines, "Defeating Nondeterminism in LLM Inference" (2025). `self_check` believes none of it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import activations

from engines.errors import BatchInvarianceError
from engines.runtime.rows import Row
from engines.torch.runner import Runner

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
    text = config.get_text_config()
    if dtype != torch.float32 and any(getattr(text, name, None) for name in _EXPERT_COUNTS):
        raise BatchInvarianceError(
            f"batch_invariant needs float32 for {text.model_type}: its experts share out the rows"
        )
    if dtype == torch.float32:
        if not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
            raise BatchInvarianceError("batch_invariant needs a torch built with MKL for float32")
        if "STRICT" not in os.environ.get("MKL_CBWR", ""):
            raise BatchInvarianceError(
                "batch_invariant needs MKL_CBWR=AVX512,STRICT (or AVX2,STRICT) set before torch is imported"
            )


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


def self_check(runner: Runner, prefill_chunk_tokens: int = 256) -> None:
    """Compare bits: every shape of linear layer for 1 to 64 rows and for prefill chunks, then whole passes cut, batched
    and branched.

    `prefill_chunk_tokens` are the most prompt tokens a pass will read. Overwrites the runner's slots.

    Raises:
        BatchInvarianceError: naming the first difference found.
    """
    with torch.inference_mode():
        _check_linear_layers(runner.model, runner.row_multiple, prefill_chunk_tokens)
    _check_passes(runner)


def _row_counts(layer: nn.Linear, multiple: int, prefill_chunk_tokens: int) -> list[int]:
    """What passes come to: up to 64 rows all of them (of large layers some), and a few prefill chunks, the largest
    included if that is not too much work."""
    counts = [*range(1, 65), 100, 128]
    if layer.weight.numel() > _LARGE_LAYER:
        counts = [*range(1, 17), 24, 31, 32, 33, 48, 63, 64]
    chunks = [256, prefill_chunk_tokens]
    counts += [count for count in chunks if count * layer.weight.numel() <= _MOST_PRODUCTS]
    return sorted({-(-count // multiple) * multiple for count in counts})


def _check_linear_layers(model: Any, multiple: int, prefill_chunk_tokens: int) -> None:
    generator = torch.Generator().manual_seed(_CHECK_SEED)
    shapes: dict[tuple[int, int, bool], tuple[str, nn.Linear]] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear):
            shapes.setdefault((layer.in_features, layer.out_features, layer.bias is not None), (name, layer))
    for name, layer in shapes.values():
        # Logits are computed of a chunk's last token alone, not of the whole chunk.
        chunk = prefill_chunk_tokens if layer is not model.get_output_embeddings() else 1
        counts = _row_counts(layer, multiple, chunk)
        rows = torch.randn(max(counts), layer.in_features, generator=generator).to(layer.weight.dtype)
        reference = layer(rows)
        for count in counts:
            if not torch.equal(layer(rows[-count:]), reference[-count:]):
                raise BatchInvarianceError(
                    f"batch_invariant does not hold here: {name} ({layer.in_features} → {layer.out_features}) gives "
                    f"other bits for {count} rows than for {max(counts)}"
                )


def _check_passes(runner: Runner) -> None:
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
            raise BatchInvarianceError(
                f"batch_invariant does not hold here: {what} gives other bits than one token at a time"
            )


def _other_ways(runner: Runner, ids: list[int], context: int) -> Iterator[tuple[str, Tensor]]:
    """Logits of ids[context:], computed in other ways."""
    tail = ids[context:]
    count = len(tail)
    yield "a chunk", runner.forward([Row(0, context, tail)])[0]
    third = count // 3
    yield (
        "uneven chunks",
        torch.cat(
            [
                runner.forward([Row(0, context, tail[:third])])[0],
                runner.forward([Row(0, context + third, tail[third:])])[0],
            ]
        ),
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
        rows = [Row(0, 0, ids[:5]), Row(1, context, tail)]
        yield "prefill in small chunks and a batch", runner.forward(rows)[1]
