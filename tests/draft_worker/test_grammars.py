"""Drafts of what a grammar leaves no choice about."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from tokenizers import Tokenizer

from draft_worker.grammars import SessionGrammars
from engines.grammar.compiler import GrammarCompiler
from engines.grammar.service import Grammars
from protocol.messages import DraftRequest
from testing.patience import until
from testing.wire import async_test, request
from tests.engines.grammar.conftest import compiler, tokenizer  # noqa: F401 - fixtures

SCHEMA = {"type": "object", "properties": {"name": {"type": "boolean"}}, "required": ["name"]}


def asked(ids: list[int], **fields: Any) -> DraftRequest:
    grammar = {"type": "json_schema", "value": json.dumps(SCHEMA), "start": 1}
    return DraftRequest.model_validate_json(
        json.dumps(request(ids, **{"draft_tokens": 4, "grammar": grammar, **fields}))
    )


@pytest.fixture
def grammars(compiler: GrammarCompiler, tokenizer: Tokenizer) -> SessionGrammars:  # noqa: F811
    return SessionGrammars(lambda: (Grammars(compiler), tokenizer))


@async_test
async def test_it_spells_what_must_come(grammars: SessionGrammars, tokenizer: Tokenizer) -> None:  # noqa: F811
    assert grammars.forced(asked([5]), [5], 1, 8) == [], "nothing is known before the grammar was read"
    await grammars.read(asked([5], draft_tokens=0), 1, float("inf"))
    draft = grammars.forced(asked([5]), [5], 1, 8)
    assert len(draft) > 1
    assert '{"name": '.startswith(tokenizer.decode(draft))
    assert grammars.forced(asked([5]), [5], 1, 2) == draft[:2]
    begun = [5, *tokenizer.encode('{"name": true').ids]
    assert tokenizer.decode(grammars.forced(asked(begun), begun, 1, 8)) == "}"
    assert grammars.forced(asked([5]), [5], None, 8) == [], "a session is needed"


@async_test
async def test_other_drafts_end_where_the_grammar_refuses(
    grammars: SessionGrammars,
    tokenizer: Tokenizer,  # noqa: F811
) -> None:
    right, wrong = tokenizer.encode('{"name": ').ids, tokenizer.encode("3}").ids
    assert grammars.permitted(asked([5]), [5], 1, [*right, *wrong]) == [*right, *wrong], "not yet known"
    await grammars.read(asked([5]), 1, float("inf"))
    assert grammars.permitted(asked([5]), [5], 1, [*right, *wrong]) == right
    assert grammars.permitted(asked([5]), [5], 1, wrong) == []
    assert grammars.permitted(asked([5], grammar=None), [5], 1, wrong) == wrong


@async_test
async def test_a_context_that_the_grammar_refuses_is_the_targets_business(
    grammars: SessionGrammars,
    tokenizer: Tokenizer,  # noqa: F811
) -> None:
    await grammars.read(asked([5]), 1, float("inf"))
    ids = [5, *tokenizer.encode("not JSON").ids]
    assert grammars.forced(asked(ids), ids, 1, 8) == []


@async_test
async def test_a_grammar_that_was_compiled_too_late_for_one_call_is_there_for_the_next(
    grammars: SessionGrammars,
) -> None:
    one = asked([5], grammar={"type": "choice", "value": '["certainly so"]', "start": 1})
    await grammars.read(one, 1, time.monotonic())
    await until(lambda: grammars.forced(one, [5], 1, 8), "a thread has compiled it")


@async_test
async def test_what_cannot_be_loaded_is_done_without(caplog: pytest.LogCaptureFixture) -> None:
    def load() -> Any:
        raise OSError("no such model")

    grammars = SessionGrammars(load)
    for _ in range(2):
        await grammars.read(asked([5]), 1, float("inf"))
        assert grammars.forced(asked([5]), [5], 1, 8) == []
    assert caplog.text.count("no such model") == 1


@async_test
async def test_a_grammar_that_cannot_be_compiled_is_left_to_the_target(grammars: SessionGrammars) -> None:
    bad = asked([5], grammar={"type": "regex", "value": "(", "start": 0})
    await grammars.read(bad, 1, float("inf"))
    assert grammars.forced(bad, [5], 1, 8) == []
