"""The draws checked at start: a correct engine passes whatever its model, and wrong ones are detected."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch

from engines.errors import ModelError
from engines.vllm.draw_check import check_draws
from engines.vllm.requests import EXTRA
from testing.wire import async_test
from tests.vllm.real.one_row import VOCABULARY, OneRow


@pytest.mark.parametrize("scale", [0.0, 3.0, 20.0])
def test_a_right_engine_passes(scale: float, caplog: pytest.LogCaptureFixture) -> None:
    @async_test
    async def passes() -> None:
        await check_draws(OneRow(scale), VOCABULARY)

    passes()
    assert not caplog.records


def test_a_model_that_outweighs_the_noise_is_not_refused(caplog: pytest.LogCaptureFixture) -> None:
    @async_test
    async def passes() -> None:
        await check_draws(OneRow(scale=1000.0), VOCABULARY)

    with caplog.at_level(logging.WARNING):
        passes()
    assert "could not be checked" in caplog.text


class NoProcessor(OneRow):
    class Idle:
        def update_state(self, update: Any) -> None: ...

        def apply(self, logits: torch.Tensor) -> torch.Tensor:
            return logits

    def processor(self) -> Any:
        return self.Idle()


class CopiedOutput(OneRow):
    """The processor gets a list of output tokens that never grows."""

    def added(self, params: Any, ids: list[int], output: list[int]) -> tuple[int, Any, list[int], list[int]]:
        return (0, params, ids, output.copy())


class LongerPrompt(OneRow):
    """The processor gets another prompt than was asked."""

    def added(self, params: Any, ids: list[int], output: list[int]) -> tuple[int, Any, list[int], list[int]]:
        return (0, params, [*ids, 0], output)


def changing(change: Callable[[dict[str, Any]], dict[str, Any]]) -> type[OneRow]:
    """The request reaches the processor altered."""

    class Changed(OneRow):
        def added(self, params: Any, ids: list[int], output: list[int]) -> tuple[int, Any, list[int], list[int]]:
            params = params.clone()
            params.extra_args[EXTRA] |= change(params.extra_args[EXTRA])
            return (0, params, ids, output)

    return Changed


@pytest.mark.parametrize(
    "wrong",
    [
        NoProcessor,
        CopiedOutput,
        LongerPrompt,
        changing(lambda asked: {"allowed": None}),
        changing(lambda asked: {"seed": 12345}),
        changing(lambda asked: {"sampling": asked["sampling"] | {"temperature": 0.0}}),
    ],
)
def test_wrong_engines_are_refused(wrong: Callable[[], OneRow]) -> None:
    @async_test
    async def refused() -> None:
        with pytest.raises(ModelError, match="this vLLM drew"):
            await check_draws(wrong(), VOCABULARY)

    refused()
