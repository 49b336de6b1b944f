"""What vLLM refuses or cannot take is reported as such, never as an engine failure."""

from __future__ import annotations

import pytest
import vllm.exceptions
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from engines.vllm.failures import as_wire_errors
from protocol.errors import BadRequest, EngineFailure, QueueFull, WireError

CASES: list[tuple[Exception, type[WireError]]] = [
    (ValueError("no"), BadRequest),
    (vllm.exceptions.VLLMValidationError("no"), BadRequest),
    (EngineDeadError(), EngineFailure),
    (EngineGenerateError("no"), EngineFailure),
]
for name, becomes, arguments in (
    ("VLLMClientError", BadRequest, ("no",)),
    ("VLLMServerError", EngineFailure, ("no",)),
    ("QueueOverflowError", QueueFull, ()),
    ("MaxQueuedTokensError", QueueFull, ()),
):
    if hasattr(vllm.exceptions, name):  # 0.24 has none of them
        CASES.append((getattr(vllm.exceptions, name)(*arguments), becomes))


@pytest.mark.parametrize(
    ("raised", "becomes"), CASES, ids=lambda value: getattr(value, "__name__", type(value).__name__)
)
def test_each_has_its_meaning_on_the_wire(raised: Exception, becomes: type[WireError]) -> None:
    with pytest.raises(becomes) as found, as_wire_errors():
        raise raised
    assert found.value.__cause__ is raised


def test_anything_else_is_let_through() -> None:
    with pytest.raises(KeyError), as_wire_errors():
        raise KeyError("a fault of our own")
