"""The table of docs/structured_output.md is what really happens."""

from __future__ import annotations

from tokenizers import Tokenizer

from engines.grammar.compiler import GrammarCompiler
from tests.engines.grammar import schema_table


def test_the_page_says_what_becomes_of_every_keyword_and_pair(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    made = schema_table.table(compiler, tokenizer)
    assert schema_table.on_the_page() == made, "run python -m tests.engines.grammar.schema_table"
    assert made.count(schema_table.ALL) > 250
