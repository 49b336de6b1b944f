"""Places that a grammar leaves no token for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engines.drawing import Limits, RequestSampling
from engines.grammar.errors import GrammarError
from protocol.messages import VerifyRequest
from testing.wire import request

IDS = [1, 2, 3]


def drawing(*masks: list[int]) -> RequestSampling:
    """Under a grammar that permits these packed words after the context and after each draft token."""
    bitmask = torch.tensor(masks, dtype=torch.int32)
    state: Any = SimpleNamespace(
        sync=lambda ids: None, masks_along=lambda ids, parents=None: SimpleNamespace(bitmask=bitmask[: len(ids) + 1])
    )
    message = request(IDS, grammar={"type": "regex", "value": "a", "start": 3}, candidates=[])
    return RequestSampling(VerifyRequest.model_validate(message), IDS, Limits(frozenset(), 64), state)


def test_a_place_without_a_permitted_token_is_the_requests_fault() -> None:
    with pytest.raises(GrammarError, match="permits no token here") as raised:
        drawing([0, 0]).after([[]])
    assert raised.value.status == 400
    with pytest.raises(GrammarError, match="permits no token here"):
        drawing([0, 4], [0, 0]).along([9], [-1])


def test_one_permitted_token_is_enough() -> None:
    assert len(drawing([0, 4]).after([[]]).rows) == 1
    assert len(drawing([0, 4], [-(2**31), 0]).along([9], [-1]).rows) == 2
