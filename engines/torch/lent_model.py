"""A model over tensors that another one has: nothing is copied, and the other one is not changed."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from engines.errors import ModelError
from engines.model_building import build_model

_SAMPLE = 1024


def shares_with(given: Any, dtype: torch.dtype, device: torch.device) -> Any:
    """A model of the same class and configuration whose parameters and buffers are those of `given`.

    Layers may then be replaced in it and its configuration changed: `given` has modules of its own. Raises ModelError
    where the tensors can't be used as they are: of another dtype or device, or quantised.
    """
    if given.dtype != dtype or given.device != device:
        raise ModelError(f"its tensors are {given.dtype} on {given.device}, where {dtype} on {device} is asked for")
    if getattr(given, "hf_quantizer", None) is not None:
        raise ModelError("its weights are quantised")
    with torch.device("meta"):
        model = build_model(type(given), copy.deepcopy(given.config))
    modules = dict(given.named_modules())
    for name, module in model.named_modules():
        theirs = modules.get(name)
        if theirs is None or type(theirs) is not type(module):
            raise ModelError(f"its module {name or 'itself'} is not what its configuration makes of it")
        for of, tensor in _tensors(theirs):
            if of in module._parameters:
                module._parameters[of] = nn.Parameter(tensor.detach(), requires_grad=False)
            elif of in module._buffers:
                module._buffers[of] = tensor
            else:
                setattr(module, of, tensor)
    left = [name for name, tensor in [*model.named_parameters(), *model.named_buffers()] if tensor.is_meta]
    if left:
        raise ModelError(f"its tensor {left[0]} is missing")
    if given.generation_config is not None:
        model.generation_config = copy.deepcopy(given.generation_config)
    return model.eval()


def samples(given: Any) -> Iterator[bytes]:
    """Of every parameter its name, its shape, and its first, middle and last entries: what a fingerprint is made of."""
    for name, tensor in sorted(given.state_dict().items()):
        flat = tensor.detach().reshape(-1)
        yield f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode()
        for at in (0, len(flat) // 2, max(0, len(flat) - _SAMPLE)):
            yield flat[at : at + _SAMPLE].contiguous().view(torch.uint8).cpu().numpy().tobytes()


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """A module's own tensors by name: parameters, buffers, and those that are merely attributes."""
    for name, tensor in [*module._parameters.items(), *module._buffers.items(), *vars(module).items()]:
        if isinstance(tensor, Tensor):
            yield name, tensor
