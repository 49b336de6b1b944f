"""A draft on vLLM reads back what was drawn (rows only: no vLLM is needed)."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from draft_worker.vllm.rows import read, write, write_failure
from engines.sampling.batch import DrawRequest, Draws, draw_batch
from engines.sampling.rows import SamplingRow
from protocol.errors import EngineFailure
from protocol.messages import Sampling

VOCABULARY = 50
PLACE = SamplingRow(Sampling(seed=0), 0, 7, [1] * 7, 7)


def drawn(seed: int, top2: bool = False, truncate: int | None = None, **sampling: Any) -> Draws:
    logits = 3 * torch.randn(1, VOCABULARY, generator=torch.Generator().manual_seed(seed))
    row = SamplingRow(Sampling(seed=seed, **sampling), seed, 7, [1] * 7, 7)
    (answer,) = draw_batch([(logits, DrawRequest(rows=[row], top2=top2, truncate=truncate))])
    assert isinstance(answer, Draws)
    return answer


def told(row: Tensor, entries: int) -> tuple[int, dict[int, Any]]:
    """What vLLM would draw from a row, and return of it."""
    token = int(row.argmax())
    best = row.topk(entries)
    ids = [token, *best.indices.tolist()]
    return token, {token_id: SimpleNamespace(logprob=float(row[token_id])) for token_id in ids}


@pytest.mark.parametrize("seed", range(8))
def test_a_drawn_token_with_its_q(seed: int) -> None:
    draws = drawn(seed, truncate=6)
    row = torch.zeros(VOCABULARY)
    write(row, draws, {"top2": False, "truncate": 6}, PLACE)
    found = read(*told(row, 6), wants_q=True)
    assert found.token == draws.drawn.tokens[0]
    ((ids, logprobs),) = draws.distribution().entries()
    assert found.q is not None
    assert sorted(found.q.token_ids) == sorted(ids)
    for token_id, logprob in zip(found.q.token_ids, found.q.logprobs, strict=True):
        assert logprob == pytest.approx(logprobs[ids.index(token_id)], rel=1e-6, abs=1e-6)
    assert math.fsum(map(math.exp, found.q.logprobs)) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_drawn_token_with_its_runner_up(temperature: float) -> None:
    draws = drawn(3, top2=True, temperature=temperature)
    row = torch.zeros(VOCABULARY)
    write(row, draws, {"top2": True, "truncate": None}, PLACE)
    found = read(*told(row, 2), wants_q=False)
    assert (found.token, found.second) == (draws.drawn.tokens[0], draws.drawn.second[0])
    assert found.gap == pytest.approx(draws.drawn.gaps[0])


def test_a_certain_token_has_no_runner_up() -> None:
    row = torch.zeros(VOCABULARY)
    write(row, drawn(1, top2=True, top_k=1), {"top2": True, "truncate": None}, PLACE)
    found = read(*told(row, 2), wants_q=False)
    assert (found.second, found.gap) == (-1, math.inf)


def test_a_failure_is_known_as_one() -> None:
    row = torch.full((VOCABULARY,), math.nan)
    write_failure(row)
    with pytest.raises(EngineFailure):
        read(*told(row, 1), wants_q=False)
