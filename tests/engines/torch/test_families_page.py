"""docs/models.md lists the families that test_families.py runs."""

from __future__ import annotations

from pathlib import Path

from engines.torch.support import changing_length, recurrent_layers
from tests.engines.torch.families import FAMILIES, Family

PAGE = Path(__file__).parents[3] / "docs" / "models.md"
MARK = "<!-- families: served -->\n"


def row(family: Family) -> str:
    config = family.make_config()
    recurs = bool(recurrent_layers(config))
    beside = []
    if getattr(config, "sliding_window", None):
        beside.append("windows")
    if getattr(config, "attn_logit_softcapping", None):
        beside.append("capped scores")
    if family.config == "GptOssConfig":
        beside.append("sinks")
    if changing_length(config) is not None:
        beside.append("longrope")
    if recurs:
        beside.append("recurrent layers")
    trees, bitwise = ("refused", "refused") if recurs else ("✓", "tried at start")
    tested = "`-m slow`" if family.slow else "CI"
    kind = f"`{config.model_type}`"
    return f"| {family.name} | {kind} | {', '.join(beside)} | {trees} | {bitwise} | {tested} |"


def test_the_page_has_the_families_that_are_tested() -> None:
    rows = [row(family) for family in sorted(FAMILIES, key=lambda family: family.name.lower())]
    head = "| family | type in transformers | with | trees | bitwise mode | tested |\n|---|---|---|---|---|---|"
    table = "\n".join([head, *rows, ""])
    assert PAGE.read_text().partition(MARK)[2].startswith(table), table
