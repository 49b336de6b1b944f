"""What the target's processor makes of rows that no token can be drawn from (no engine is started)."""

from __future__ import annotations

import math

import pytest
import torch

from target_worker.vllm_processor import VerifyingProcessor


@pytest.mark.parametrize("values", [[math.nan, 1.0], [math.inf, 1.0], [-math.inf, -math.inf]])
def test_unusable_logits_show_in_vllms_own_log_probabilities(values: list[float]) -> None:
    row = torch.tensor(values)
    assert row.log_softmax(-1).isnan().all()  # what the worker sees, and refuses (vllm_answers.check_drawn)
    VerifyingProcessor.write_failure(VerifyingProcessor.__new__(VerifyingProcessor), row)
    assert int(row.argmax()) == 0


def test_no_token_is_made_up_for_usable_logits() -> None:
    with pytest.raises(RuntimeError, match="no token could be drawn"):
        VerifyingProcessor.write_failure(VerifyingProcessor.__new__(VerifyingProcessor), torch.tensor([1.0, 2.0]))
