"""docs/models.md lists the families that test_families.py runs."""

from __future__ import annotations

from pathlib import Path

from engines.torch.batch_invariant import has_experts
from engines.torch.support import changing_length, recurrent_layers
from target_worker.strategies import STRATEGIES
from tests.engines.torch.families import FAMILIES, Family
from tests.engines.torch.further_families import FURTHER
from tests.engines.torch.wrapped import WRAPPERS, Wrapper

PAGE = Path(__file__).parents[3] / "docs" / "models.md"
COLUMNS = ["family", "type in transformers", "with", "strategies", "trees", "bitwise mode", "tested"]
HEAD = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"


def row(family: Family | Wrapper) -> str:
    whole = family.make_config()
    config = whole.get_text_config()
    recurs = bool(recurrent_layers(config))
    beside = []
    if getattr(config, "sliding_window", None):
        beside.append("windows")
    if getattr(config, "attn_logit_softcapping", None):
        beside.append("capped scores")
    if config.model_type == "gpt_oss":
        beside.append("sinks")
    if changing_length(config) is not None:
        beside.append("longrope")
    if getattr(config, "kv_lora_rank", None):
        beside.append("latent attention")
    if has_experts(config):
        beside.append("experts")
    if recurs:
        beside.append("recurrent layers")
    strategies = "all" if len(STRATEGIES) == 4 else str(len(STRATEGIES))
    bitwise = "float32, unless rows need padding" if has_experts(config) else "✓"
    trees, bitwise = ("refused", "refused") if recurs else ("✓", bitwise)
    kinds = [whole.model_type] if whole is config else [whole.model_type, config.model_type]
    kind = ", ".join(f"`{kind}`" for kind in kinds)
    tested = "`-m slow`" if family.slow else "CI"
    return f"| {family.name} | {kind} | {', '.join(beside)} | {strategies} | {trees} | {bitwise} | {tested} |"


def table(families: list[Family] | list[Wrapper]) -> str:
    rows = [row(family) for family in sorted(families, key=lambda family: family.name.lower())]
    return "\n".join([HEAD, *rows, ""])


def test_the_page_has_the_families_that_are_tested() -> None:
    page = PAGE.read_text()
    for mark, expected in (
        ("<!-- families: served -->\n", table([*FAMILIES, *FURTHER])),
        ("<!-- families: wrappers -->\n", table(WRAPPERS)),
    ):
        assert page.partition(mark)[2].startswith(expected), expected
