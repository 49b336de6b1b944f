"""A trained draft's parts: the head that says some ids only, int8 weights, and the target's hash."""

from __future__ import annotations

import torch
from torch import nn

from engines.torch.draft_weights import UNSAID, CutHead, quantised, tensor_hash


def test_a_cut_head_says_its_own_ids_and_no_others() -> None:
    rows = nn.Linear(4, 3)
    kept = torch.tensor([1, 4, 5])
    hidden = torch.randn(2, 5, 4)
    logits = CutHead(rows, kept, 7)(hidden)
    assert logits.shape == (2, 5, 7)
    assert torch.equal(logits[..., kept], rows(hidden))
    assert (logits[..., [0, 2, 3, 6]] == UNSAID).all()
    assert (logits.softmax(-1)[..., [0, 2, 3, 6]] == 0).all()


def test_int8_is_within_half_a_step_of_each_rows_largest_value() -> None:
    weight = torch.tensor([[0.1, -2.0, 0.7], [0.0, 0.0, 0.0], [1e-3, 5e-4, -1e-3]])
    values, scale = quantised(weight)
    assert values.dtype == torch.int8
    assert values[0].tolist()[1] == -127
    assert values[1].tolist() == [0, 0, 0]
    assert torch.allclose(values.float() * scale[:, None], weight, rtol=0, atol=0.5 * float(scale.max()))
    error = (values.float() * scale[:, None] - weight).abs()
    assert (error <= scale[:, None] / 2 + 1e-9).all()


def test_a_hash_is_of_the_values_whatever_their_precision() -> None:
    values = torch.tensor([[1.0, -0.5], [0.25, 3.0]])
    assert tensor_hash(values) == tensor_hash(values.bfloat16()) == tensor_hash(values.double())
    assert tensor_hash(values) == tensor_hash(values.t().contiguous().t())
    assert tensor_hash(values) != tensor_hash(values.t())
    assert tensor_hash(values) != tensor_hash(values + 0.125)
