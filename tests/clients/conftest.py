"""A running Tandem for the clients that people have: a tiny random model, whose calls a grammar makes valid."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field

from testing.in_process import Stack, running_stack
from testing.tiny_models import make_tiny_model, truncate_model

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the internet for prices when imported

# Everything that could be lost on the way back is in the prompt.
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}<tool_call>{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Sum(BaseModel):
    """Two numbers to add."""

    a: int = Field(ge=0, le=99)
    b: int = Field(ge=0, le=99)


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_tiny_model(tmp_path_factory.mktemp("models") / "target", layers=3, context_length=4096)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="session")
def stack(bitwise: None, target: Path) -> Iterator[Stack]:
    with running_stack(target, truncate_model(target, target.parent / "draft", layers=2)) as stack:
        yield stack


@pytest.fixture
def sdk(stack: Stack) -> Any:
    return stack.sdk
