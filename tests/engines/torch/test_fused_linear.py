"""Sibling layers as one product: the same numbers, each weight held once, whoever calls them in whatever order."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from engines.torch.fused_linear import FusedPart, fuse_siblings
from engines.torch.runner import Row, Runner
from testing.tiny_models import Architecture, make_tiny_model

IDS = [7, 3, 99, 200, 5, 5, 41]


class Siblings(nn.Module):
    def __init__(self, biases: tuple[bool, bool, bool] = (True, True, True)) -> None:
        super().__init__()
        self.q_proj = nn.Linear(8, 12, bias=biases[0])
        self.k_proj = nn.Linear(8, 4, bias=biases[1])
        self.v_proj = nn.Linear(8, 4, bias=biases[2])
        self.o_proj = nn.Linear(8, 8)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_a_fused_model_computes_the_same(architecture: Architecture, tmp_path: Path) -> None:
    make_tiny_model(tmp_path, architecture)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    rows = [Row(0, 0, IDS), Row(1, 0, IDS[:3])]
    expected = Runner(model, num_slots=2, slot_length=32).forward(rows)
    names = [name for name, _ in model.named_parameters()]
    size = sum(parameter.numel() for parameter in model.parameters())
    assert fuse_siblings(model) == 2 * len(model.model.layers)
    assert [name for name, _ in model.named_parameters()] == names
    assert sum(parameter.numel() for parameter in model.parameters()) == size
    for logits, other in zip(Runner(model, num_slots=2, slot_length=32).forward(rows), expected, strict=True):
        torch.testing.assert_close(logits, other, rtol=1e-5, atol=1e-5)


def test_parameters_are_views_of_the_one_weight() -> None:
    model = Siblings()
    before = model.k_proj.weight.detach().clone()
    assert fuse_siblings(model) == 1
    assert isinstance(model.k_proj, FusedPart)
    assert torch.equal(model.k_proj.weight, before)
    storages = {layer.weight.untyped_storage().data_ptr() for layer in (model.q_proj, model.k_proj, model.v_proj)}
    assert len(storages) == 1
    assert type(model.o_proj) is nn.Linear


@pytest.mark.parametrize("order", ["qkv", "vqk", "qqkvv", "q", "kk"])
def test_any_order_of_calls_with_any_tensors(order: str) -> None:
    model = Siblings()
    own = {name: getattr(model, f"{name}_proj") for name in "qkv"}
    fuse_siblings(model)
    for turn in range(2):
        values = torch.randn(3, 8, generator=torch.Generator().manual_seed(turn))
        for number, name in enumerate(order):
            given = values if number % 3 else values.clone()
            torch.testing.assert_close(getattr(model, f"{name}_proj")(given), own[name](given))


def test_one_product_serves_all_who_read_one_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Siblings()
    fuse_siblings(model)
    calls = []

    def counted(*arguments: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return nn.functional.linear(*arguments)

    monkeypatch.setattr("engines.torch.fused_linear.linear", counted)
    for _ in range(2):
        values = torch.randn(2, 8)
        for layer in (model.q_proj, model.k_proj, model.v_proj):
            layer(values)
    assert len(calls) == 2


def test_unlike_layers_stay_as_they_are() -> None:
    model = Siblings((True, False, True))
    assert fuse_siblings(model) == 0
    model = Siblings()
    model.k_proj = nn.Linear(9, 4)
    assert fuse_siblings(model) == 0
    model = Siblings()
    model.v_proj.half()
    assert fuse_siblings(model) == 0


def test_a_compiled_pass_is_one_graph_with_the_same_numbers() -> None:
    """What the chains are compiled with must not break at the products that wait for their layers."""

    class Attention(Siblings):
        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return self.q_proj(values)[..., :4] * self.k_proj(values) + self.v_proj(values)

    model = Attention()
    values = torch.randn(2, 8)
    with torch.no_grad():
        expected = model(values)
        fuse_siblings(model)
        graphs: list[torch.fx.GraphModule] = []

        def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
            graphs.append(graph)
            return graph

        compiled = torch.compile(model, fullgraph=True, backend=backend)
        for _ in range(2):
            torch.testing.assert_close(compiled(values), expected)
    assert len(graphs) == 1
    products = [node for node in graphs[0].graph.nodes if "linear" in str(node.target)]
    assert len(products) == 1
