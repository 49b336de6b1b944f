"""docs/configuration.md matches the settings."""

from __future__ import annotations

from pathlib import Path

from config.pairs import PAIRS
from config.roles import ROLES
from tandem.settings_table import table, with_tables

PAGE = Path(__file__).parents[2] / "docs/configuration.md"


def test_the_tables_are_up_to_date() -> None:
    text = PAGE.read_text()
    assert text == with_tables(text), "run: python -m tandem.settings_table docs/configuration.md"
    for role in ROLES:
        assert table(role) in text


def test_the_page_lists_every_built_in_pair() -> None:
    text = PAGE.read_text()
    for pair in PAIRS:
        assert f"| {pair.draft} | {pair.draft_tokens} |" in text
        assert pair.draft == "lookup" or f"| {pair.target} |" in text
