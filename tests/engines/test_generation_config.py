"""A generation_config.json is read, or refused; never taken for none."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.errors import ModelError
from engines.generation_config import read_generation_config
from engines.models import ModelFiles


def test_a_file_is_optional_and_read(tmp_path: Path) -> None:
    files = ModelFiles("tiny", tmp_path)
    assert read_generation_config(files) is None
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [3, 7]}')
    found = read_generation_config(files)
    assert found is not None
    assert found.eos_token_id == [3, 7]


@pytest.mark.parametrize(
    "text",
    [
        '{"eos_token_id": ',
        "",
        "[1]",
        '"x"',
        '{"eos_token_id": "x"}',
        '{"eos_token_id": [1, null]}',
        '{"eos_token_id": -1}',
    ],
)
def test_a_damaged_file_is_refused_by_name(text: str, tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises(ModelError, match=r"^tiny: its generation_config\.json"):
        read_generation_config(ModelFiles("tiny", tmp_path))
