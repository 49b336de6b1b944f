"""One verification for all engines: whether it has the distributions or only sees what was emitted."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engines.drawing import Limits, RequestSampling
from engines.sampling.draw import draw
from engines.sampling.process import process
from protocol.messages import VerifyRequest
from target_worker.verification import Verification
from testing.fakes.runner import VOCABULARY, hash_logits
from testing.wire import request

STOP = 31
CONTEXT = [3, 1, 4]


def verification(candidates: list[list[int]], **fields: Any) -> Verification:
    message = request(CONTEXT, **{"candidates": [{"token_ids": ids} for ids in candidates], **fields})
    asked = VerifyRequest.model_validate_json(json.dumps(message))
    return Verification(asked, RequestSampling(asked, list(CONTEXT), Limits(frozenset({STOP}), 256)), log_all=True)


def own_tokens(one: Verification, top: bool) -> tuple[Any, list[int]]:
    """The target's distributions by place, and what it draws there, or its likeliest token."""
    places = one.places()
    logits = torch.stack([hash_logits([*CONTEXT, *row.history[len(CONTEXT) :]]) for row in places.rows])
    distribution = process(logits, places.rows)
    return distribution, (distribution.top1() if top else draw(distribution, places.rows)).tolist()


def likely(path: list[int], sharp: int) -> int:
    """A token that the target often draws itself."""
    return int(hash_logits([*CONTEXT, *path]).topk(sharp).indices[-1])


@given(
    st.lists(st.lists(st.integers(1, 2), max_size=4), max_size=3),
    st.sampled_from(["deterministic", "greedy"]),
    st.integers(1, 6),
    st.sampled_from([0.0, 0.3]),
)
def test_the_verdict_follows_from_what_is_emitted(
    ranks: list[list[int]], strategy: str, max_tokens: int, temperature: float
) -> None:
    candidates: list[list[int]] = []
    for chain in ranks:
        ids: list[int] = []
        for rank in chain:
            ids.append(likely(ids, rank))
        candidates.append(ids)
    one = verification(candidates, strategy=strategy, max_tokens=max_tokens, sampling={"temperature": temperature})
    distribution, drawn = own_tokens(one, top=False)
    expected = one.judge(one.places(), distribution, drawn)
    emitted = drawn if strategy == "deterministic" else own_tokens(one, top=True)[1]
    told = dict(enumerate(emitted))
    found = one.judge_emitted(told)
    assert found == expected
    assert one.cut(found) == one.cut(expected)


def test_both_log_the_same_decisions(caplog: pytest.LogCaptureFixture) -> None:
    right = likely([], 1)
    wrong = (likely([right], 1) + 1) % VOCABULARY
    one = verification([[right, wrong, 5], [right]], sampling={"temperature": 0.0})
    distribution, drawn = own_tokens(one, top=False)
    with caplog.at_level(logging.INFO, "target_worker.verification"):
        one.judge(one.places(), distribution, drawn)
        judged = caplog.messages
        caplog.clear()
        one.judge_emitted(dict(enumerate(drawn)))
    unsaid = re.compile(r"(p|q|own)=[^,]+, ")
    assert [unsaid.sub("", line) for line in caplog.messages] == [unsaid.sub("", line) for line in judged]
    assert len(judged) == 4
    assert "accepted=True, reason='accepted'" in judged[0]
    assert "differs from the target's own draw" in judged[1]


def test_the_response_reports_what_was_kept() -> None:
    one = verification([[5, 6], [likely([], 1)]], sampling={"temperature": 0.0})
    verdict = one.judge_emitted(dict(enumerate(own_tokens(one, top=False)[1])))
    assert (verdict.candidate, verdict.num_accepted, len(verdict.token_ids)) == (1, 1, 2)
