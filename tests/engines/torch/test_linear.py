"""Packed layers compute what torch's own do, and stand where they may."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from engines.torch import linear as linear_module
from engines.torch.linear import Library, PackedLinear, library_of, pack_linear_layers, packing_libraries

LIBRARIES = packing_libraries()

pytestmark = pytest.mark.skipif(not LIBRARIES, reason="this torch has no library that packs")
each_library = pytest.mark.parametrize("library", LIBRARIES)


@each_library
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 2, 7, 63, 64, 65, 300])
def test_the_layer_computes_what_torchs_own_does(rows: int, bias: bool, library: Library) -> None:
    torch.manual_seed(rows)
    layer = nn.Linear(24, 40, bias=bias)
    values = torch.randn(1, rows, 24)
    with torch.inference_mode():
        found = PackedLinear(layer, library)(values)
        expected = layer(values)
    assert found.is_contiguous()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@each_library
def test_several_leading_axes_and_transposed_values(library: Library) -> None:
    layer = nn.Linear(6, 3)
    values = torch.randn(6, 2, 5).permute(1, 2, 0)
    with torch.inference_mode():
        torch.testing.assert_close(PackedLinear(layer, library)(values), layer(values))


@each_library
@pytest.mark.parametrize("shape", [(192, 576), (1536, 576), (576, 1536)])
def test_a_row_has_the_same_bits_among_any_number_of_others(shape: tuple[int, int], library: Library) -> None:
    """Of layers as large as real models' this holds without strict reproducibility too, on every processor tried."""
    torch.manual_seed(0)
    layer = nn.Linear(shape[1], shape[0], bias=False)
    values = torch.randn(256, shape[1])
    with torch.inference_mode():
        packed = PackedLinear(layer, library)
        whole = packed(values)
        for rows in (4, 5, 8, 16, 31, 64, 100):
            assert torch.equal(packed(values[3 : 3 + rows]), whole[3 : 3 + rows])


@each_library
def test_float32_layers_are_packed_and_others_left_alone(library: Library) -> None:
    torch.manual_seed(0)
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.Sequential(nn.Linear(4, 4), shared), nn.Linear(4, 4), nn.Linear(4, 2).bfloat16())

    def run() -> Tensor:
        values: Tensor = model[2](model[1](model[0](torch.ones(2, 4))))
        return values

    with torch.inference_mode():
        expected = run()
        assert library_of(model) is None
        assert pack_linear_layers(model, run, library)
        assert library_of(model) == library
        torch.testing.assert_close(run(), expected)
    kinds = [type(module) for module in (model[0], model[1][0], model[1][1], model[2], model[3])]
    assert kinds == [PackedLinear, PackedLinear, PackedLinear, PackedLinear, nn.Linear]
    assert model[0] is model[1][1], "a layer that stands in two places is held once"


class _Direct(nn.Module):
    """A model whose code takes a layer's weight and multiplies by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.gate = nn.Linear(4, 4)

    def forward(self, values: Tensor) -> Tensor:
        return linear(self.layer(values), self.gate.weight)


def test_a_model_that_uses_weights_directly_is_left_as_it_is() -> None:
    model = _Direct()
    values = torch.ones(2, 4)
    with torch.inference_mode():
        expected = model(values)
        assert not pack_linear_layers(model, lambda: model(values))
        assert torch.equal(model(values), expected)
    assert type(model.layer) is nn.Linear
    assert type(model.gate) is nn.Linear


@each_library
def test_the_weight_that_remains_computes_nothing(library: Library) -> None:
    """So that code which would use it past the layer can't give plausible numbers."""
    packed = PackedLinear(nn.Linear(5, 3), library)
    assert packed.weight.shape == (3, 5)
    assert torch.isnan(linear(torch.ones(1, 5), packed.weight)).all()
    assert packed.weight.untyped_storage().nbytes() == 4


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [("vendor_id\t: AuthenticAMD\n", "onednn"), ("vendor_id\t: GenuineIntel\n", "mkl"), (None, "mkl")],
)
@pytest.mark.skipif(len(LIBRARIES) < 2, reason="this torch has one library that packs")
def test_the_library_follows_from_the_processors_maker(
    cpuinfo: str | None, expected: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cpuinfo"
    if cpuinfo is not None:
        path.write_text(cpuinfo)
    monkeypatch.setattr(linear_module, "CPUINFO", path)
    layer = nn.Sequential(nn.Linear(4, 4))
    with torch.inference_mode():
        assert pack_linear_layers(layer, lambda: layer(torch.ones(1, 4)))
    assert library_of(layer) == expected
