"""What the two halves of the gateway say to each other: whose draft tokens a round accepted, and the pair it names."""

from __future__ import annotations

from typing import Any

import pytest

from server.backend import Round


def round_of(**changes: Any) -> Round:
    defaults: dict[str, Any] = {
        "token_ids": [1],
        "num_drafted": 0,
        "num_accepted": 0,
        "logprobs": None,
        "stop_reason": None,
        "stop_token_id": None,
        "lossless": True,
    }
    return Round(**{**defaults, **changes})


@pytest.mark.parametrize(
    ("accepted", "counts"),
    [
        (0, [("lookup", 2, 0), ("model", 3, 0)]),
        (1, [("lookup", 2, 1), ("model", 3, 0)]),
        (2, [("lookup", 2, 2), ("model", 3, 0)]),
        (4, [("lookup", 2, 2), ("model", 3, 2)]),
        (5, [("lookup", 2, 2), ("model", 3, 3)]),
    ],
)
def test_what_was_accepted_goes_to_the_drafters_in_their_order(
    accepted: int, counts: list[tuple[str, int, int]]
) -> None:
    assert round_of(num_drafted=5, parts=(("lookup", 2), ("model", 3))).by_source(accepted) == counts


def test_parts_beyond_what_was_drafted_count_nothing() -> None:
    """A draft may be cut after its parts were named."""
    parts = (("lookup", 2), ("model", 3), ("history", 1))
    assert round_of(num_drafted=3, parts=parts).by_source(3) == [("lookup", 2, 2), ("model", 1, 1)]


def test_one_drafter_has_the_whole_draft_and_plain_decoding_has_none() -> None:
    assert round_of(num_drafted=4, source="lookup").by_source(3) == [("lookup", 4, 3)]
    assert round_of().by_source(0) == []


def test_a_pair_is_named_after_both_models() -> None:
    assert round_of(target="big", draft="small").pair == "big+small"
    assert round_of(target="big").pair == "big"
