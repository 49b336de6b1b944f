"""What a worker says of a message that it cannot read."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from protocol.messages import Sampling
from worker.errors import invalid_message


@pytest.mark.parametrize("fields", [{"n" * 5000: 1}, {"logit_bias": {"n" * 5000: "much"}}])
def test_a_name_of_the_senders_own_is_cut_at_the_same_length_wherever_it_stands(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        Sampling.model_validate({"seed": 0, **fields})
    error = invalid_message(caught.value, Sampling)
    assert error.field is not None
    assert error.field.split(".")[-1] == "n" * 40 + "…"
    assert len(error.message) < 100
