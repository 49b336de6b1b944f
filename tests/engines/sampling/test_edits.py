"""Penalties over histories that share a context: counted once, and exactly what counting each row's would give."""

from __future__ import annotations

from collections import Counter
from typing import Any, SupportsIndex

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engines.history import History
from engines.sampling.edits import edit_logits
from engines.sampling.rows import SamplingRow
from protocol.messages import Sampling

VOCABULARY = 12
TOKEN = st.integers(0, VOCABULARY + 2)  # some have no logit
PENALTIES = st.sampled_from([(1.0, 0.0, 0.0), (1.3, 0.0, 0.0), (0.8, 0.3, -1.5), (1.0, -0.7, 0.1), (1.1, 0.1, 0.4)])


def slowly(logits: Tensor, rows: list[SamplingRow]) -> Tensor:
    """Token by token over each row's whole history."""
    logits = logits.clone()
    for i, row in enumerate(rows):
        s, history = row.sampling, list(row.history)
        counts = Counter(history[row.num_prompt_tokens :])
        for token in {t for t in history if t < logits.shape[1]}:
            value = logits[i, token]
            factor = torch.tensor(s.repetition_penalty, dtype=torch.float32)
            value = value / factor if value > 0 else value * factor
            value = value - torch.tensor(s.frequency_penalty * counts[token], dtype=torch.float32)
            logits[i, token] = value - torch.tensor(s.presence_penalty if counts[token] else 0.0, dtype=torch.float32)
    return logits


def penalised(history: Any, num_prompt_tokens: int, penalties: tuple[float, float, float]) -> SamplingRow:
    repetition, frequency, presence = penalties
    sampling = Sampling(seed=0, repetition_penalty=repetition, frequency_penalty=frequency, presence_penalty=presence)
    return SamplingRow(sampling, 0, len(history), history, num_prompt_tokens)


@st.composite
def batches(draw: st.DrawFn) -> list[SamplingRow]:
    """Requests, each with a context of its own and some rows: the tails of a tree of drafts, or a history alone."""
    rows: list[SamplingRow] = []
    for _ in range(draw(st.integers(1, 4))):
        context = draw(st.lists(TOKEN, max_size=20))
        length = draw(st.integers(0, len(context)))
        prompt = draw(st.integers(0, length + 2))
        for tail in draw(st.lists(st.lists(TOKEN, max_size=5), min_size=1, max_size=4)):
            history = draw(st.sampled_from([History(context, length, tail), (*context[:length], *tail)]))
            rows.append(penalised(history, min(prompt, len(history)), draw(PENALTIES)))
    return draw(st.permutations(rows))


@settings(max_examples=300, deadline=None)
@given(batches(), st.integers(0, 2**31))
def test_penalties_are_those_of_each_rows_whole_history(rows: list[SamplingRow], seed: int) -> None:
    logits = torch.randn(len(rows), VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3
    logits[torch.rand(logits.shape, generator=torch.Generator().manual_seed(seed)) < 0.1] = -torch.inf
    found = edit_logits(logits, rows, None)
    assert torch.equal(found.view(torch.int32), slowly(logits, rows).view(torch.int32)), "bit for bit"


class Watched(list[int]):
    """A context that counts how many of its ids are looked at."""

    looked_at = 0

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        found = super().__getitem__(index)
        self.looked_at += len(found) if isinstance(found, list) else 1
        return found


def test_a_context_is_counted_once_for_all_its_rows() -> None:
    context = Watched(range(2000))
    rows = [penalised(History(context, len(context), [i]), 1000, (1.1, 0.1, 0.4)) for i in range(200)]
    edit_logits(torch.zeros(len(rows), 2000), rows, None)
    assert 0 < context.looked_at <= 2 * len(context)
