"""No code of a room builds a model but through build_model, which does so one at a time."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["root_packages"]
NO_MODELS = ("Tokenizer", "Config", "Processor", "loader")  # `loader`: one of the two kinds of tokenizers


def builders(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Where a model's `from_pretrained` or `from_config` is called, rather than handed to build_model."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        of = call.func.value
        name = of.attr if isinstance(of, ast.Attribute) else getattr(of, "id", "")
        if call.func.attr in ("from_pretrained", "from_config", "_from_config") and not name.endswith(NO_MODELS):
            yield call.func


@pytest.mark.parametrize("room", ROOMS)
def test_models_are_built_by_build_model(room: str) -> None:
    found = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in sorted((ROOT / room).rglob("*.py"))
        for node in builders(ast.parse(file.read_text()))
    ]
    assert found == []


@pytest.mark.parametrize(
    "code", ["AutoModelForCausalLM.from_config(c)", "t.AutoModel.from_pretrained(f)", "k()._from_config(c)"]
)
def test_a_model_built_alone_is_found(code: str) -> None:
    assert len(list(builders(ast.parse(code)))) == 1
    assert not list(builders(ast.parse(f"build_model({code.rpartition('(')[0]}, c)")))
