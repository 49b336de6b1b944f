"""The other order of a product gives the same numbers, and stands where it may."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from engines.torch.linear import FEWEST_ROWS, MOST_ROWS, FewRowsLinear, serve_few_rows


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [0, 1, FEWEST_ROWS - 1, FEWEST_ROWS, 17, MOST_ROWS, MOST_ROWS + 1])
def test_the_layer_computes_what_torchs_own_does(rows: int, bias: bool) -> None:
    torch.manual_seed(rows)
    layer = nn.Linear(24, 40, bias=bias)
    values = torch.randn(1, rows, 24)
    with torch.inference_mode():
        found = FewRowsLinear(layer)(values)
        expected = layer(values)
    assert found.is_contiguous()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_several_leading_axes_and_transposed_values() -> None:
    layer = nn.Linear(6, 3)
    values = torch.randn(6, 2, 5).permute(1, 2, 0)
    with torch.inference_mode():
        torch.testing.assert_close(FewRowsLinear(layer)(values), layer(values))


def test_float32_layers_are_replaced_and_keep_their_parameters() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 2)), nn.Linear(4, 4).bfloat16())
    weights = dict(model.named_parameters())
    serve_few_rows(model)
    assert [type(module) for module in (model[0], model[1][0], model[2])] == [FewRowsLinear, FewRowsLinear, nn.Linear]
    assert all(parameter is weights[name] for name, parameter in model.named_parameters())
    assert len(weights) == len(dict(model.named_parameters()))
