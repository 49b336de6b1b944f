"""The attention that transformers calls: what it hands on to the pass, what it refuses, and capped scores and sinks."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from engines.torch.attention import (
    PASS_ARGUMENT,
    ShapeProbe,
    Special,
    UnsupportedAttention,
    special_attention,
    tandem_attention,
)

QUERY, KEY, VALUE = torch.zeros(1, 4, 3, 16), torch.zeros(1, 2, 3, 16), torch.zeros(1, 2, 3, 8)


@dataclass
class Noted:
    """A pass that notes what it is asked."""

    slot_length: int = 64
    calls: list[tuple[int, float, Special | None]] = field(default_factory=list)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, special: Any) -> Tensor:
        self.calls.append((layer, scaling, special))
        return query


def call(layer: Any = 5, mask: Tensor | None = None, **arguments: Any) -> list[tuple[int, float, Special | None]]:
    noted = Noted()
    module = cast(nn.Module, SimpleNamespace(layer_idx=layer, is_causal=True))
    tandem_attention(module, QUERY, KEY, VALUE, mask, **{PASS_ARGUMENT: noted, **arguments})
    return noted.calls


def test_a_plain_layer_is_plain_and_scaled_by_its_width() -> None:
    assert call() == [(5, 0.25, None)]
    assert call(scaling=0.5, dropout=0.0, position_ids=QUERY) == [(5, 0.5, None)]


def test_what_a_layer_does_beyond_it_reaches_the_pass() -> None:
    sinks = torch.zeros(4)
    assert call(sliding_window=63) == [(5, 0.25, Special(window=63))]
    assert call(sliding_window=64) == [(5, 0.25, None)], "no sequence gets longer than that"
    [(_, _, special)] = call(softcap=30.0, s_aux=sinks)
    assert special is not None
    assert (special.window, special.softcap) == (None, 30.0)
    assert special.sinks is sinks


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({PASS_ARGUMENT: None}, "does not pass its arguments on"),
        ({"is_causal": False}, "is not causal"),
        ({"head_mask": torch.ones(4)}, "needs head_mask"),
        ({"layer": None}, "layer_idx"),
        ({"mask": torch.zeros(1, 1, 3, 3)}, "its own attention mask"),
    ],
)
def test_what_it_does_not_compute_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedAttention, match=words):
        call(**arguments)


def test_a_probe_learns_every_layers_shapes_and_that_it_attends_once() -> None:
    probe = ShapeProbe(64)
    assert probe.attend(0, QUERY, KEY, VALUE, 1.0, Special(window=7)).shape == (1, 3, 4, 8)
    assert (probe.heads, probe.shapes) == ({0: 4}, {0: (2, 16, 8)})
    assert probe.special == {0: Special(window=7)}
    with pytest.raises(UnsupportedAttention, match="more than once"):
        probe.attend(0, QUERY, KEY, VALUE, 1.0, None)


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("has_sinks", [False, True])
def test_capped_scores_and_sinks_are_as_defined(softcap: float | None, has_sinks: bool) -> None:
    generator = torch.Generator().manual_seed(2)
    groups, heads, tokens, length, dim = 2, 2, 3, 5, 4
    queries = torch.randn(1, groups, tokens * heads, dim, generator=generator)
    keys = torch.randn(1, groups, length, dim, generator=generator)
    values = torch.randn(1, groups, length, dim, generator=generator)
    sinks = torch.randn(groups * heads, generator=generator) if has_sinks else None
    mask = torch.zeros(tokens * heads, length)
    mask[:2, 3:] = -torch.inf
    found = special_attention(queries, keys, values, mask, 0.7, Special(softcap=softcap, sinks=sinks))
    for group in range(groups):
        for row in range(tokens * heads):
            scores = [float(queries[0, group, row] @ keys[0, group, at]) * 0.7 for at in range(length)]
            capped = torch.tensor(scores)
            if softcap is not None:
                capped = softcap * torch.tanh(capped / softcap)
            weights = (capped + mask[row]).exp()
            rest = 0.0 if sinks is None else float(sinks[group * heads + row % heads].exp())
            expected = (weights[:, None] * values[0, group]).sum(0) / (weights.sum() + rest)
            assert torch.allclose(found[0, group, row], expected, atol=1e-5)
