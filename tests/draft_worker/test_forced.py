"""Drafts of what a grammar leaves no choice about."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tokenizers import Tokenizer

from draft_worker.drafters.forced import ForcedDrafter
from engines.grammar.compiler import GrammarCompiler
from engines.grammar.service import Grammars
from protocol.messages import DraftRequest
from testing.wire import async_test, request
from tests.engines.grammar.conftest import compiler, tokenizer  # noqa: F401 - fixtures

SCHEMA = {"type": "object", "properties": {"name": {"type": "boolean"}}, "required": ["name"]}


def asked(ids: list[int], **fields: Any) -> DraftRequest:
    grammar = {"type": "json_schema", "value": json.dumps(SCHEMA), "start": 1}
    return DraftRequest.model_validate_json(
        json.dumps(request(ids, **{"draft_tokens": 4, "grammar": grammar, **fields}))
    )


@pytest.fixture
def drafter(compiler: GrammarCompiler, tokenizer: Tokenizer) -> ForcedDrafter:  # noqa: F811
    return ForcedDrafter(lambda: (Grammars(compiler), tokenizer))


@async_test
async def test_it_spells_what_must_come(drafter: ForcedDrafter, tokenizer: Tokenizer) -> None:  # noqa: F811
    assert drafter.draft(asked([5]), [5], 1, 8) == [], "nothing is known before the grammar was read"
    await drafter.read(asked([5], draft_tokens=0), 1, float("inf"))
    draft = drafter.draft(asked([5]), [5], 1, 8)
    assert len(draft) > 1
    assert '{"name": '.startswith(tokenizer.decode(draft))
    assert drafter.draft(asked([5]), [5], 1, 2) == draft[:2]
    begun = [5, *tokenizer.encode('{"name": true').ids]
    assert tokenizer.decode(drafter.draft(asked(begun), begun, 1, 8)) == "}"
    assert drafter.draft(asked([5]), [5], None, 8) == [], "a session is needed"


@async_test
async def test_other_drafts_end_where_the_grammar_refuses(
    drafter: ForcedDrafter,
    tokenizer: Tokenizer,  # noqa: F811
) -> None:
    right, wrong = tokenizer.encode('{"name": ').ids, tokenizer.encode("3}").ids
    assert drafter.permitted(asked([5]), [5], 1, [*right, *wrong]) == [*right, *wrong], "not yet known"
    await drafter.read(asked([5]), 1, float("inf"))
    assert drafter.permitted(asked([5]), [5], 1, [*right, *wrong]) == right
    assert drafter.permitted(asked([5]), [5], 1, wrong) == []
    assert drafter.permitted(asked([5], grammar=None), [5], 1, wrong) == wrong


@async_test
async def test_a_context_that_the_grammar_refuses_is_the_targets_business(
    drafter: ForcedDrafter,
    tokenizer: Tokenizer,  # noqa: F811
) -> None:
    await drafter.read(asked([5]), 1, float("inf"))
    ids = [5, *tokenizer.encode("not JSON").ids]
    assert drafter.draft(asked(ids), ids, 1, 8) == []


@async_test
async def test_what_cannot_be_loaded_is_done_without(caplog: pytest.LogCaptureFixture) -> None:
    def load() -> Any:
        raise OSError("no such model")

    drafter = ForcedDrafter(load)
    for _ in range(2):
        await drafter.read(asked([5]), 1, float("inf"))
        assert drafter.draft(asked([5]), [5], 1, 8) == []
    assert caplog.text.count("no such model") == 1


@async_test
async def test_a_grammar_that_cannot_be_compiled_is_left_to_the_target(drafter: ForcedDrafter) -> None:
    bad = asked([5], grammar={"type": "regex", "value": "(", "start": 0})
    await drafter.read(bad, 1, float("inf"))
    assert drafter.draft(bad, [5], 1, 8) == []
