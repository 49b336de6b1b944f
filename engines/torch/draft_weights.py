"""A trained draft put together with its target's embeddings and head (engines/own_parts.py).

The head may be cut to the ids that are said most often, as in FR-Spec (Zhao et al. 2025, arXiv 2502.14856) and
EAGLE-3: for a small model it is most of the work. What can't be said gets a logit so low that it is never drawn, but
not −∞: where a grammar leaves nothing else, the draft is a guess among what it leaves, as any draft may be.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from engines.errors import ModelError
from engines.generation_config import read_generation_config
from engines.model_building import build_model
from engines.models import ModelFiles, weight_files
from engines.own_parts import KEPT, SCALE, WEIGHTS, own_parts
from engines.torch.int8_linear import Int8Linear, has_int8

UNSAID = -10_000.0
"""exp of it is 0 in every precision, and float16 can hold it."""


class CutHead(nn.Module):
    """An output layer that has rows for the ids `kept` alone (int64 [k], ascending) of `vocabulary`."""

    kept: Tensor

    def __init__(self, rows: nn.Module, kept: Tensor, vocabulary: int) -> None:
        super().__init__()
        self.rows = rows
        self.register_buffer("kept", kept, persistent=False)
        self.out_features = vocabulary

    @property
    def weight(self) -> Tensor:
        weight = self.rows.weight
        assert isinstance(weight, Tensor)
        return weight

    def forward(self, hidden: Tensor) -> Tensor:
        """[…, hidden] → [..., vocabulary], UNSAID where no row is."""
        said: Tensor = self.rows(hidden)
        logits = said.new_full((*said.shape[:-1], self.out_features), UNSAID)
        return logits.index_copy_(-1, self.kept, said)


def load_draft(
    files: ModelFiles, dtype: torch.dtype, device: torch.device, *, exact_rows: bool, whole_head: bool = False
) -> Any:
    """The draft in `files.folder` with what it lacks from `files.parts`, a transformers model.

    On a CPU int8 weights stay int8, unless `exact_rows` asks that a row's numbers do not depend on the rows beside it.
    `whole_head`: with all of the target's ids, whatever the draft was trained to say.
    Raises ModelError: for a target whose embeddings are others, or weights that don't fit the configuration.
    """
    assert files.parts is not None
    try:
        return _assembled(files, files.parts, dtype, device, exact_rows, whole_head)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"{files.id}: could not be loaded: {error}") from error


def _assembled(
    files: ModelFiles,
    target: ModelFiles,
    dtype: torch.dtype,
    device: torch.device,
    exact_rows: bool,
    whole_head: bool,
) -> Any:
    description = own_parts(files.folder)
    config = transformers.AutoConfig.from_pretrained(files.folder, trust_remote_code=False)
    with torch.device("cpu"):
        model = build_model(transformers.AutoModelForCausalLM.from_config, config, dtype=dtype)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    embedding_name, head_name = names[id(embedding.weight)], names[id(head.weight)]
    theirs = _tensors(target, {embedding_name, head_name, head_name.replace("weight", "bias")})
    if embedding_name not in theirs:
        raise ModelError(f"{files.id}: its target {target.id} has no {embedding_name}")
    if description is None or tensor_hash(theirs[embedding_name]) != description.embeddings_sha256:
        raise ModelError(f"{files.id} was trained for other weights than those of {target.id}: train it anew for these")
    with safe_open(files.folder / WEIGHTS, framework="pt") as file:
        stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (safe_open is no mapping)
    kept = stored.pop(KEPT, None)
    if whole_head:
        kept = None
    whole = theirs.get(head_name, theirs[embedding_name])
    bias = theirs.get(head_name.replace("weight", "bias"))
    own = {
        name: p
        for name, p in model.named_parameters()
        if name not in (embedding_name, head_name) and p is not head.bias
    }
    missing = sorted(own.keys() - stored.keys())
    unused = sorted(name for name in stored.keys() - own.keys() if name.removesuffix(SCALE) not in own)
    if missing or unused:
        raise ModelError(f"{files.id}: {WEIGHTS} lacks {missing[:1]} or has no place for {unused[:1]}")
    keeps_int8 = device.type == "cpu" and dtype == torch.float32 and not exact_rows and has_int8()
    with torch.no_grad():
        embedding.weight.copy_(theirs[embedding_name])
        for name, parameter in own.items():
            scale = stored.get(name + SCALE)
            value = stored[name].float() if scale is None else stored[name].float() * scale[:, None]
            if value.shape != parameter.shape:
                raise ModelError(f"{files.id}: {name} has shape {list(value.shape)}, not {list(parameter.shape)}")
            parameter.copy_(value)
    rows = whole if kept is None else whole[kept.long()]
    row_bias = None if bias is None else bias if kept is None else bias[kept.long()]
    if keeps_int8:
        for name in own:
            if name + SCALE in stored:
                layer = model.get_submodule(name.removesuffix(".weight"))
                model.set_submodule(
                    name.removesuffix(".weight"), Int8Linear(stored[name], stored[name + SCALE], layer.bias)
                )
        made: nn.Module = Int8Linear(*quantised(rows), row_bias)
    else:
        made = nn.Linear(rows.shape[1], rows.shape[0], bias=row_bias is not None, dtype=dtype)
        with torch.no_grad():
            made.weight.copy_(rows)
            if row_bias is not None:
                made.bias.copy_(row_bias)
    model.set_output_embeddings(
        made if kept is None else CutHead(made, kept.long(), config.get_text_config().vocab_size)
    )
    model.generation_config = read_generation_config(target) or model.generation_config
    return model.to(device)


def quantised(weight: Tensor) -> tuple[Tensor, Tensor]:
    """int8 [rows, columns] and float32 scales [rows] of a float matrix, by each row's largest value."""
    scale = weight.float().abs().amax(dim=1).clamp(min=1e-12) / 127
    return (weight.float() / scale[:, None]).round().clamp(-127, 127).to(torch.int8), scale


def tensor_hash(values: Tensor) -> str:
    """sha256 of a tensor's values as little-endian bfloat16: the same in whatever precision from that up it is kept."""
    data = values.detach().cpu().bfloat16().contiguous().view(torch.int16).numpy().astype("<i2").tobytes()
    return hashlib.sha256(data).hexdigest()


def _tensors(target: ModelFiles, names: set[str]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for path in weight_files(target.folder):
        with safe_open(path, framework="pt") as file:
            for name in names & set(file.keys()):
                found[name] = file.get_tensor(name)
    return found
