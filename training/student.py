"""The student: a few of the target's layers, its embeddings and its head, the last two frozen and the target's own."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from engines.model_building import build_model
from training.errors import TrainingError

_LAYER = re.compile(r"^(?P<before>(?:.*\.)?(?:layers|h|blocks)\.)(?P<index>\d+)\.(?P<rest>.+)$")


class Float32Head(nn.Module):
    """An output layer whose logits are float32, whatever the precision before it: bfloat16 would tie likely tokens.

    Where `places` is set, indices into the batch's flattened tokens [n], the logits are those tokens' alone,
    [n, ids]: a large vocabulary's logits over prompts, which are not needed, are not computed.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach().float().clone(), requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias.detach().float().clone(), requires_grad=False)
        self.places: Tensor | None = None

    def forward(self, hidden: Tensor) -> Tensor:
        if self.places is not None:
            hidden = hidden.flatten(0, -2).index_select(0, self.places)
        with torch.autocast(hidden.device.type, enabled=False):
            return linear(hidden.float(), self.weight, self.bias)


def default_layers(count: int, of: int) -> list[int]:
    """Which of the target's layers a student of `count` begins as: half from the front, the rest from the end."""
    if not 1 <= count <= of:
        raise TrainingError(f"a student of {count} layers can't be made of a target of {of}")
    front = (count + 1) // 2
    return [*range(front), *range(of - (count - front), of)]


def student_config(config: Any, layers: Sequence[int]) -> Any:
    """The target's configuration with these of its layers alone."""
    made = copy.deepcopy(config)
    made.num_hidden_layers = len(layers)
    types = getattr(made, "layer_types", None)
    if types is not None:
        made.layer_types = [types[index] for index in layers]
    made.tie_word_embeddings = False
    made.use_cache = False
    return made


def make_student(target: Any, layers: Sequence[int], kept: Tensor | None) -> Any:
    """A model of the target's kind in float32: `layers` of it, copied, all trained; its input embeddings (shared with
    the target) and the rows `kept` of its head (None: all of them), frozen.

    Raises:
        TrainingError: for a target whose layers aren't found.
    """
    from transformers import AutoModelForCausalLM

    config = student_config(target.config, layers)
    with torch.device(target.device):
        student = build_model(AutoModelForCausalLM.from_config, config, dtype=torch.float32, attn_implementation="sdpa")
    head = target.get_output_embeddings()
    student.set_input_embeddings(target.get_input_embeddings())
    rows = head.weight if kept is None else head.weight[kept]
    bias = getattr(head, "bias", None)
    student.set_output_embeddings(Float32Head(rows, bias if bias is None or kept is None else bias[kept]))
    source = target.state_dict()
    wanted = student.state_dict()
    found = {}
    for name, value in source.items():
        match = _LAYER.match(name)
        if match is None:
            place = name
        elif int(match["index"]) in layers:
            place = f"{match['before']}{list(layers).index(int(match['index']))}.{match['rest']}"
        else:
            continue
        if place in wanted and wanted[place].shape == value.shape and value.is_floating_point():
            found[place] = value.float()
    shared = {
        id(p) for p in (*student.get_input_embeddings().parameters(), *student.get_output_embeddings().parameters())
    }
    trained = [name for name, parameter in student.named_parameters() if id(parameter) not in shared]
    missing = [name for name in trained if name not in found]
    if missing or not any(_LAYER.match(name) for name in trained):
        raise TrainingError(f"the target's layers are not where they are looked for ({(missing or trained)[0]})")
    with torch.no_grad():
        for name, parameter in student.named_parameters():
            if id(parameter) in shared:
                parameter.requires_grad_(False)
            else:
                parameter.copy_(found[name])
                parameter.requires_grad_(True)
    return student


def trained_state(student: Any) -> dict[str, Tensor]:
    """The weights that are the student's own, by name."""
    return {name: parameter.detach() for name, parameter in student.named_parameters() if parameter.requires_grad}
