"""What a rejection costs a model with recurrent layers: that its text stays right, test_families.py shows."""

from __future__ import annotations

import pytest

from engines.torch.runner import Row
from tests.engines.torch.families import FAMILIES, tokens


@pytest.mark.parametrize("name", ["LFM 2", "Mamba 2"])
def test_a_rejection_feeds_nothing_again_that_was_certain(name: str) -> None:
    """A snapshot lies behind the last certain token, so a draft rejected whole costs nothing, and one of which two
    tokens were right those two."""
    runner = next(family for family in FAMILIES if family.name == name).make_runner(num_slots=1, slot_length=160)
    fed: list[int] = []
    runner.model.get_input_embeddings().register_forward_hook(lambda _, given, __: fed.append(given[0].shape[-1]))
    runner.forward([Row(0, 0, tokens(20, 1), logits_from=19)])
    for start in range(20, 26):
        runner.forward([Row(0, start, tokens(5, start))])
    assert fed == [20, *[5] * 6]
    runner.forward([Row(0, 28, tokens(5, 28))])
    assert fed[-1] == 2 + 5
