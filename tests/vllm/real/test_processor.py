"""The processor that draws: as vLLM's batch changes around it, and for rows without a token to draw (no engine)."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality

from engines.history import History
from engines.sampling.draw import draw
from engines.sampling.process import process
from engines.sampling.rows import SamplingRow
from engines.vllm.requests import Place, sampling_params
from protocol.messages import Sampling
from target_worker.vllm.processor import VerdictProcessor
from tests.vllm.real.one_row import logits_after, processor

SWAP, MOVE = MoveDirectionality.SWAP, MoveDirectionality.UNIDIRECTIONAL


@pytest.mark.parametrize("values", [[math.nan, 1.0], [math.inf, 1.0], [-math.inf, -math.inf]])
def test_unusable_logits_show_in_vllms_own_log_probabilities(values: list[float]) -> None:
    row = torch.tensor(values)
    assert row.log_softmax(-1).isnan().all()  # what the worker sees, and refuses (target_worker/vllm/answers.py)
    VerdictProcessor.write_failure(row)
    assert int(row.argmax()) == 0


def test_no_token_is_made_up_for_usable_logits() -> None:
    with pytest.raises(RuntimeError, match="no token could be drawn"):
        VerdictProcessor.write_failure(torch.tensor([1.0, 2.0]))


class Request:
    """One request: what vLLM keeps of it, and the token that engines/sampling draws for it next."""

    def __init__(self, seed: int, prompt: list[int], output: list[int] | None = None) -> None:
        few = {str(token_id): 100.0 for token_id in range(11, 15)}  # so that tokens recur, and penalties matter
        self.sampling = Sampling(
            seed=seed, temperature=0.9, presence_penalty=1.5, frequency_penalty=2.0, logit_bias=few
        )
        self.prompt = prompt
        self.output = output if output is not None else []
        self.params = sampling_params(Place(self._row()), max_tokens=8)

    def logits(self) -> torch.Tensor:
        return logits_after([*self.prompt, *self.output])

    def expected(self) -> int:
        rows = [self._row()]
        return int(draw(process(self.logits()[None], rows), rows)[0])

    def _row(self) -> SamplingRow:
        history = History(self.prompt, len(self.prompt), self.output)
        length = len(self.prompt) + len(self.output)
        return SamplingRow(self.sampling, self.sampling.seed, length, history, len(self.prompt))


class Batch:
    """Rows of requests, None for one that carries nothing of ours; `change` is vLLM's report of what moved."""

    def __init__(self) -> None:
        self.processor = processor()

    def change(self, removed: Any = (), added: Any = (), moved: Any = ()) -> None:
        told = [
            (row, request.params, request.prompt, request.output)
            if request is not None
            else (row, SamplingParams(temperature=0.0), [1, 2], [])
            for row, request in added
        ]
        self.processor.update_state(BatchUpdate(batch_size=8, removed=removed, added=told, moved=moved))

    def step(self, *rows: Request | None) -> None:
        """Draw for all rows, and give each request its token."""
        logits = torch.stack([request.logits() if request is not None else logits_after([1, 2]) for request in rows])
        after = self.processor.apply(logits.clone())
        for row, request in enumerate(rows):
            if request is None:
                assert torch.equal(after[row], logits[row]), "not ours to change"
                continue
            expected = request.expected()
            assert int(after[row].argmax()) == expected, row
            request.output.append(expected)


def test_each_request_keeps_its_own_draws_as_the_batch_changes() -> None:
    batch = Batch()
    a, b, c = Request(1, [3, 4]), Request(2, [5, 6, 7]), Request(3, [8])
    batch.change(added=[(0, a), (1, None), (2, b)])
    batch.step(a, None, b)
    batch.change(moved=[(0, 2, SWAP)])
    batch.step(b, None, a)
    batch.change(removed=[1], moved=[(2, 1, MOVE)])
    batch.step(b, a)
    batch.processor.update_state(None)
    batch.step(b, a)
    batch.change(added=[(2, c)], moved=[(0, 2, SWAP), (1, 0, SWAP)])
    batch.step(a, c, b)
    batch.change(removed=[0, 2], moved=[(1, 0, MOVE)])
    batch.step(c)
    assert sorted(batch.processor.rows) == [0]


def test_a_row_taken_over_by_a_foreign_request_is_left_alone() -> None:
    batch = Batch()
    a = Request(1, [3, 4])
    batch.change(added=[(0, a)])
    batch.step(a)
    batch.change(added=[(0, None)])
    batch.step(None)


def test_a_request_resumed_after_preemption_goes_on_where_it_was() -> None:
    """vLLM takes it out of the batch and adds it anew, with what it had drawn."""
    batch = Batch()
    a, b = Request(1, [3, 4]), Request(2, [5, 6, 7])
    batch.change(added=[(0, a), (1, b)])
    batch.step(a, b)
    batch.step(a, b)
    batch.change(removed=[0], moved=[(1, 0, MOVE)])
    batch.step(b)
    resumed = Request(1, [3, 4], list(a.output))
    batch.change(added=[(1, resumed)])
    batch.step(b, resumed)
    assert resumed.output[:2] == a.output


def test_a_place_that_vllm_fills_in_later_is_not_drawn_over() -> None:
    batch = Batch()
    a = Request(1, [3, 4])
    batch.change(added=[(0, a)])
    a.output.append(-1)
    with pytest.raises(RuntimeError, match="async_scheduling"):
        batch.processor.apply(torch.zeros(1, 300))
