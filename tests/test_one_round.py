"""The listing in docs/one_round.md runs, and shows what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).parents[1] / "docs" / "one_round.md").read_text()
[LISTING] = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("seed", range(5))
def test_the_listing_runs(seed: int) -> None:
    names: dict[str, Any] = {"__name__": "one_round"}
    exec(compile(LISTING.replace('"seed": 42', f'"seed": {seed}'), "docs/one_round.md", "exec"), names)
    assert 1 <= len(names["answer"]) <= 12
    assert set(names["content"].split()) <= set(names["WORDS"])


def test_drafts_are_accepted_and_rejected() -> None:
    """Else the listing's own assertions would show little."""
    names: dict[str, Any] = {"__name__": "one_round"}
    exec(compile(LISTING, "docs/one_round.md", "exec"), names)
    lengths = set()
    verify = names["verify"]

    def counted(request: Any) -> list[int]:
        tokens: list[int] = verify(request)
        lengths.add(len(tokens))
        return tokens

    names["verify"] = counted
    for seed in range(20):
        names["sampling"] = names["Sampling"](temperature=0.8, seed=seed)
        names["generate"](3, "deterministic")
        names["generate"](3, "probabilistic")
    assert {1, 2, 4} <= lengths


def test_the_files_it_names_exist() -> None:
    root = Path(__file__).parents[1]
    named = re.findall(r"`((?:server|engines|draft_worker|target_worker)/[\w/.]*)`", PAGE)
    assert len(named) > 8
    assert [name for name in named if not (root / name).exists()] == []
