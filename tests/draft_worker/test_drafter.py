"""What drafters share: drafts that no model made, drafts cut to a grammar, and one draft after another."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from draft_worker.drafter import Asked, certain, joined, permitted
from draft_worker.grammars import SessionGrammars
from protocol.messages import Candidate, DraftRequest, TopK
from testing.wire import request
from worker.session import Session


def asked(**fields: Any) -> Asked:
    message = DraftRequest.model_validate_json(json.dumps(request([1, 2, 3], draft_tokens=4, **fields)))
    session: Any = Session.__new__(Session)
    session.ids, session.key, session.serial = [1, 2, 3], "s", 9
    return Asked(message, session, unchanged=2, deadline=0.0)


def one_hot(*token_ids: int) -> list[TopK]:
    return [TopK(token_ids=[token_id], logprobs=[0.0]) for token_id in token_ids]


def test_a_draft_that_no_model_made_is_certain_where_q_is_asked_for() -> None:
    drafted = certain(asked(want_q=True), [[5, 6], [7]])
    assert [(one.token_ids, one.logprobs, one.q) for one in drafted.candidates] == [
        ([5, 6], [0.0, 0.0], one_hot(5, 6)),
        ([7], [0.0], one_hot(7)),
    ]
    assert drafted.cached_tokens == 2
    without = certain(asked(), [[5, 6]])
    assert [(one.logprobs, one.q) for one in without.candidates] == [(None, None)]


class UpToSix:
    """A grammar that refuses what is greater than six."""

    def __init__(self) -> None:
        self.before: list[list[int]] = []

    def permitted(self, request: DraftRequest, ids: list[int], owner: int | None, draft: list[int]) -> list[int]:
        self.before.append(ids)
        assert owner == 9
        return draft[: next((place for place, token_id in enumerate(draft) if token_id > 6), len(draft))]


def test_drafts_are_cut_at_what_the_grammar_refuses_and_empty_ones_are_left_out() -> None:
    grammar = UpToSix()
    known = cast(SessionGrammars, grammar)
    assert permitted(asked(), [[5, 7, 6], [8], [6]], known, ahead=[4]) == [[5], [6]]
    assert grammar.before == [[1, 2, 3, 4]] * 3
    assert permitted(asked(), [[5, 7], []], None) == [[5, 7]]


def test_nothing_is_cut_where_it_would_bias_the_text() -> None:
    assert permitted(asked(want_q=True), [[5, 7, 6]], cast(SessionGrammars, UpToSix())) == [[5, 7, 6]]


@pytest.mark.parametrize("has_q", [True, False])
def test_joined_drafts_keep_each_tokens_q(has_q: bool) -> None:
    first = Candidate(token_ids=[5], logprobs=[-0.5], q=[TopK(token_ids=[5, 6], logprobs=[-0.5, -1.0])])
    second = Candidate(token_ids=[7, 8], logprobs=[0.0, 0.0] if has_q else None, q=one_hot(7, 8) if has_q else None)
    whole = joined([first], [second])
    assert whole.token_ids == [5, 7, 8]
    assert whole.logprobs == ([-0.5, 0.0, 0.0] if has_q else None)
    assert whole.q == ([*(first.q or ()), *one_hot(7, 8)] if has_q else None), "of all tokens, or of none"
