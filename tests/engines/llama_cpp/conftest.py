"""All tests here need llama-cpp-python."""

from __future__ import annotations

import pytest

from tests.engines.llama_cpp.tiny_gguf import require_llama_cpp


@pytest.fixture(autouse=True, scope="package")
def _llama_cpp() -> None:
    require_llama_cpp()
