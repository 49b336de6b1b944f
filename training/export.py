"""The trained draft as a folder: `draft.json`, `config.json`, `draft.safetensors`; the target's parts are not in it.

Matrices are int8 with one float32 scale a row (row = int8 · scale), or float32 or bfloat16 as asked; everything else is
float32. `kept_ids` (int32, ascending) are the ids of a cut head's rows, absent where the head is whole.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor

from engines.own_parts import DESCRIPTION, FORMAT, KEPT, SCALE, WEIGHTS
from engines.torch.draft_weights import quantised, tensor_hash

Precision = Literal["int8", "bfloat16", "float32"]


def write_draft(
    folder: Path,
    *,
    weights: Mapping[str, Tensor],
    kept: Tensor | None,
    config: Any,
    target: str,
    embeddings: Tensor,
    layers: Sequence[int],
    precision: Precision = "int8",
) -> None:
    """Write a student's own weights, and which target's embeddings and head it needs (by the embeddings' hash)."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = {}
    for name, value in weights.items():
        value = value.detach().cpu().float()
        if value.dim() != 2 or precision == "float32":
            tensors[name] = value.contiguous()
        elif precision == "bfloat16":
            tensors[name] = value.bfloat16().contiguous()
        else:
            tensors[name], tensors[name + SCALE] = quantised(value)
    if kept is not None:
        tensors[KEPT] = kept.cpu().to(torch.int32)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    config.save_pretrained(folder)
    shutil.copymode(folder / "config.json", folder / WEIGHTS)  # safetensors writes for its own user alone
    description = {
        "format": FORMAT,
        "target": target,
        "embeddings_sha256": tensor_hash(embeddings),
        "target_layers": list(layers),
        "precision": precision,
        "output_ids": None if kept is None else len(kept),
    }
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
