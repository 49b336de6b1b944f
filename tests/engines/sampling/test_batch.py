"""Many requests drawn for at once: each gets what it would get alone, and one that fails fails alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engines.sampling.batch import DrawRequest, Draws, draw_batch
from engines.sampling.rows import SamplingRow
from protocol.errors import EngineFailure
from protocol.messages import Sampling

VOCABULARY = 64


def logits_of(seed: int, rows: int = 1) -> Tensor:
    return 2 * torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed))


def rows_of(seed: int, count: int = 1, **sampling: float) -> list[SamplingRow]:
    return [SamplingRow(Sampling(seed=seed, **sampling), seed, 5 + i, [1, 2, 3, 4, 5], 5) for i in range(count)]


def asked() -> list[tuple[Tensor, DrawRequest]]:
    """One request for each way to draw, some twice and with several rows."""
    return [
        (logits_of(1), DrawRequest(rows=rows_of(1))),
        (logits_of(2, 3), DrawRequest(rows=rows_of(2, 3, temperature=0.0))),
        (logits_of(3), DrawRequest(rows=rows_of(3), top2=True)),
        (logits_of(4, 2), DrawRequest(rows=rows_of(4, 2, top_p=0.5), truncate=8)),
        (logits_of(5), DrawRequest(rows=rows_of(5, temperature=1.5), truncate=8)),
        (logits_of(6, 2), DrawRequest(rows=rows_of(6, 2), top2=True)),
        (logits_of(7), DrawRequest(rows=rows_of(7), truncate=3)),
    ]


def test_each_request_gets_what_it_would_get_alone() -> None:
    together = draw_batch(asked())
    for answer, request in zip(together, asked(), strict=True):
        (alone,) = draw_batch([request])
        assert isinstance(answer, Draws)
        assert isinstance(alone, Draws)
        assert answer.drawn == alone.drawn
        assert len(answer.drawn.tokens) == len(request[1].rows)
        assert answer.distribution().entries() == alone.distribution().entries()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_row_without_usable_logits_fails_its_request_alone(bad: float) -> None:
    requests = asked()
    requests[1][0][2] = bad
    answers = draw_batch(requests)
    assert isinstance(answers[1], EngineFailure)
    good = draw_batch(asked())
    for number in (0, 2, 3, 4, 5, 6):
        answer, expected = answers[number], good[number]
        assert isinstance(answer, Draws)
        assert isinstance(expected, Draws)
        assert answer.drawn == expected.drawn


def test_an_error_of_one_request_does_not_reach_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its origin is unclear, so each request is drawn alone."""
    from engines.sampling import batch

    process = batch.process

    def failing(logits: Tensor, rows: list[SamplingRow], allowed: Tensor | None = None) -> object:
        if any(row.seed == 3 for row in rows):
            raise RuntimeError("a fault of the machine's")
        return process(logits, rows, allowed)

    good = draw_batch(asked())
    monkeypatch.setattr(batch, "process", failing)
    answers = draw_batch(asked())
    assert [isinstance(answer, EngineFailure) for answer in answers] == [number == 2 for number in range(7)]
    for number in (0, 1, 3, 4, 5, 6):
        answer, expected = answers[number], good[number]
        assert isinstance(answer, Draws)
        assert isinstance(expected, Draws)
        assert answer.drawn == expected.drawn
