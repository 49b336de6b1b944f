"""process() against a slow reference, and its promise that a row's bits depend on that row alone."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engines.sampling import cuts
from engines.sampling.draw import draw
from engines.sampling.process import NanLogits, NoTokenLeft, UnusableLogits, process
from engines.sampling.rows import SamplingRow
from tests.engines.sampling.helpers import sampling_row


def f32(value: float) -> float:
    return float(torch.tensor(value, dtype=torch.float32))


def reference(logits: list[float], row: SamplingRow, allowed: list[bool] | None = None) -> dict[int, float]:
    """Token id → processed logit, one plain step after the other; float32 where the definition says so."""
    s = row.sampling
    x = dict(enumerate(logits))
    output = list(row.history[row.num_prompt_tokens :])
    if allowed is not None:
        x = {t: v for t, v in x.items() if allowed[t]}
    if len(output) < s.min_tokens:
        x = {t: v for t, v in x.items() if t not in row.stop_token_ids}
    for key, bias in s.logit_bias.items():
        if int(key) in x:
            x[int(key)] = f32(x[int(key)] + f32(bias))
    counts = Counter(output)
    for t in x:
        if t in row.history:
            factor = f32(s.repetition_penalty)
            x[t] = f32(x[t] / factor if x[t] > 0 else x[t] * factor)
        if t in counts:
            x[t] = f32(x[t] - f32(s.frequency_penalty * counts[t]))
            x[t] = f32(x[t] - f32(s.presence_penalty))
    x = {t: v for t, v in x.items() if v > -math.inf}
    order = sorted(x, key=lambda t: (-x[t], t))
    if s.temperature < 1e-5:
        return {order[0]: 0.0}
    x = {t: f32(v / f32(s.temperature)) for t, v in x.items()}
    order = sorted(x, key=lambda t: (-x[t], t))
    best = x[order[0]]
    if s.min_p > 0:
        order = [t for t in order if x[t] - best >= math.log(s.min_p)]
    if s.top_k > 0:
        order = order[: s.top_k]
    if s.top_p < 1:
        total = math.fsum(math.exp(x[t] - best) for t in order)
        kept, before = [], 0.0
        for t in order:
            if before >= s.top_p * total:
                break
            kept.append(t)
            before += math.exp(x[t] - best)
        order = kept
    return {t: x[t] for t in order}


def as_dict(logits: Tensor, row: SamplingRow, allowed: Tensor | None = None) -> dict[int, float]:
    """process() of one row, in the reference's form."""
    (part,) = process(logits[None], [row], None if allowed is None else allowed[None]).parts
    ids = range(len(logits)) if part.token_ids is None else part.token_ids[0].tolist()
    return {t: v for t, v in zip(ids, part.logits[0].tolist(), strict=True) if v > -math.inf}


# Coarse values tie often; thirds make masses that no cut lands on exactly.
LOGIT = st.one_of(st.integers(-6, 6).map(lambda n: f32(n / 3)), st.just(-math.inf), st.floats(-30, 30, width=32))
PARAMETERS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.0, 0.3, 0.7, 1.0, 1.5, 100.0]),
        "top_p": st.sampled_from([0.053, 0.31, 0.77, 0.913, 0.999]),
        "top_k": st.integers(0, 50),
        "min_p": st.sampled_from([0.013, 0.21, 0.9]),
        "presence_penalty": st.sampled_from([-1.5, 0.5, 2.0]),
        "frequency_penalty": st.sampled_from([-0.7, 0.3]),
        "repetition_penalty": st.sampled_from([0.8, 1.3]),
        "logit_bias": st.dictionaries(st.integers(0, 45).map(str), st.sampled_from([-100.0, -1.3, 0.7, 5.0])),
        "min_tokens": st.integers(0, 4),
    },
)


@st.composite
def cases(draw_: st.DrawFn) -> tuple[list[float], SamplingRow, list[bool] | None]:
    logits = draw_(st.lists(LOGIT, min_size=1, max_size=40))
    history = draw_(st.lists(st.integers(0, 45), max_size=12))
    row = sampling_row(
        history=tuple(history),
        num_prompt_tokens=draw_(st.integers(0, len(history))),
        stop_token_ids=draw_(st.frozensets(st.integers(0, 45), max_size=3)),
        **draw_(PARAMETERS),
    )
    allowed = draw_(st.none() | st.lists(st.booleans(), min_size=len(logits), max_size=len(logits)))
    return logits, row, allowed


@pytest.fixture(params=[(2, 7), cuts.LEADING], ids=["rank 2, 7, all", "as shipped"])
def leading_widths(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """So short first rankings that tiny vocabularies take every path."""
    monkeypatch.setattr(cuts, "LEADING", request.param)


@settings(max_examples=250, deadline=None)
@given(case=cases())
def check_reference(case: tuple[list[float], SamplingRow, list[bool] | None]) -> None:
    logits, row, allowed = case
    mask = None if allowed is None else torch.tensor(allowed)
    try:
        found = as_dict(torch.tensor(logits), row, mask)
    except NoTokenLeft:
        with pytest.raises(IndexError):
            reference(logits, row, allowed)
        return
    assert found == reference(logits, row, allowed)


@pytest.mark.usefixtures("leading_widths")
def test_equals_the_reference() -> None:
    check_reference()


@pytest.mark.usefixtures("leading_widths")
def test_ties_at_a_cut_go_to_the_lowest_ids() -> None:
    flat = torch.zeros(4000)
    assert as_dict(flat, sampling_row(top_k=3)) == {0: 0.0, 1: 0.0, 2: 0.0}
    assert sorted(as_dict(flat, sampling_row(top_p=0.5))) == list(range(2000))
    assert as_dict(flat, sampling_row(temperature=0.0)) == {0: 0.0}
    flat[3000] = 1.0
    assert sorted(as_dict(flat, sampling_row(top_k=3))) == [0, 1, 3000]
    assert len(as_dict(flat, sampling_row(min_p=1.0))) == 1
    assert len(as_dict(flat, sampling_row(min_p=0.3))) == 4000


def test_packed_mask_equals_a_plain_one() -> None:
    logits, rows = torch.randn(2, 70), [sampling_row(), sampling_row(top_p=0.8)]
    allowed = torch.rand(2, 70) < 0.5
    padded = torch.cat([allowed, torch.zeros(2, 26, dtype=torch.bool)], dim=1).view(2, 3, 32)
    packed = (padded.long() << torch.arange(32)).sum(-1).to(torch.int32)
    assert torch.equal(process(logits, rows, allowed).logprobs(), process(logits, rows, packed).logprobs())
    allowed[:, 64:] = False
    assert torch.equal(process(logits, rows, allowed).logprobs(), process(logits, rows, packed[:, :2]).logprobs())


def mixed_batch(vocabulary: int) -> tuple[Tensor, list[SamplingRow]]:
    generator = torch.Generator().manual_seed(1)
    parameters: list[dict[str, Any]] = [
        {},
        {"temperature": 0.0},
        {"temperature": 0.7, "top_p": 0.9},
        {"temperature": 1.5, "top_p": 0.999},  # beyond the first ranking
        {"top_k": 50},
        {"top_k": 3000, "top_p": 0.99},
        {"min_p": 0.05},
        {"min_p": 1e-9, "top_p": 0.9},
        {"repetition_penalty": 1.2, "frequency_penalty": 0.4, "temperature": 0.6},
        {"logit_bias": {"5": 20.0}, "top_p": 0.5},
        {"temperature": 0.31},
    ]
    rows = [sampling_row(seed=i, position=20 + i, **p) for i, p in enumerate(parameters)]
    return torch.randn(len(rows), vocabulary, generator=generator) * 2, rows


@pytest.mark.parametrize("vocabulary", [50, 4097, 49_152])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_is_the_same_bits_in_any_batch(vocabulary: int, threads: int) -> None:
    logits, rows = mixed_batch(vocabulary)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = process(logits, rows)
        tokens, logprobs = draw(together, rows), together.logprobs()
        for i, row in enumerate(rows):
            alone = process(logits[i : i + 1], [row])
            assert torch.equal(alone.logprobs()[0], logprobs[i])
            assert draw(alone, [row])[0] == tokens[i]
            picked = together.rows(torch.tensor([i]))
            assert torch.equal(picked.logprobs()[0], logprobs[i])
            assert alone.logprob_of(tokens[i : i + 1])[0] == logprobs[i, tokens[i]]
            assert alone.truncate(20).entries() == together.truncate(20).rows(torch.tensor([i])).entries()
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
        shuffled = process(logits[order], [rows[i] for i in order.tolist()])
        assert torch.equal(shuffled.logprobs(), logprobs[order])
    finally:
        torch.set_num_threads(before)


def test_bits_do_not_depend_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, rows = mixed_batch(5000)
    logprobs = process(logits, rows).logprobs()
    for widths in ((1, 2), (7, 100), (4999,), (5000,)):
        monkeypatch.setattr(cuts, "LEADING", widths)
        assert torch.equal(process(logits, rows).logprobs(), logprobs)


def test_probabilities_are_softmax() -> None:
    logits, rows = mixed_batch(3000)
    assert torch.allclose(process(logits[:1], rows[:1]).logprobs(), logits[:1].double().log_softmax(-1), atol=1e-12)
    probabilities = process(logits, rows).logprobs().exp()
    assert torch.allclose(probabilities.sum(-1), torch.ones(len(rows), dtype=torch.float64), atol=1e-9)


def test_truncation_renormalises_the_leading_tokens() -> None:
    logits, rows = mixed_batch(3000)
    whole = process(logits, rows)
    for (ids, logprobs), full in zip(whole.truncate(8).entries(), whole.logprobs(), strict=True):
        best = sorted(range(3000), key=lambda t: (-full[t].item(), t))[: len(ids)]
        assert ids == best
        assert math.fsum(map(math.exp, logprobs)) == pytest.approx(1, abs=1e-9)
        expected = full[best] - torch.logsumexp(full[best], 0)
        assert torch.allclose(torch.tensor(logprobs, dtype=torch.float64), expected, atol=1e-9)


def test_truncating_ties_keeps_the_lowest_ids() -> None:
    ids, _ = process(torch.zeros(1, 4000), [sampling_row()]).truncate(5).entries()[0]
    assert ids == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_and_infinity_are_errors_naming_the_rows(bad: float) -> None:
    logits = torch.randn(4, 30)
    logits[1, 7] = logits[3, 29] = bad
    for parameters in ({}, {"temperature": 0.0}, {"top_p": 0.5}):
        with pytest.raises(NanLogits) as caught:
            process(logits, [sampling_row(**parameters)] * 4)
        assert caught.value.rows == (1, 3)
    banned = torch.ones(4, 30, dtype=torch.bool)
    banned[1, 7] = banned[3, 29] = False
    with pytest.raises(NanLogits):
        process(logits, [sampling_row()] * 4, banned)


def test_no_token_left_is_an_error_naming_the_rows() -> None:
    logits = torch.zeros(3, 4)
    logits[2] = -math.inf
    stopped = sampling_row(history=(1,), min_tokens=5, stop_token_ids=frozenset(range(4)))
    with pytest.raises(NoTokenLeft) as caught:
        process(logits, [sampling_row(), stopped, sampling_row()])
    assert caught.value.rows == (1, 2)
    assert isinstance(caught.value, UnusableLogits)


def test_arguments_are_left_alone_and_checked() -> None:
    logits, rows = mixed_batch(300)
    copy = logits.clone()
    process(logits, rows)
    assert torch.equal(logits, copy)
    with pytest.raises(ValueError, match="one row for each"):
        process(logits, rows[:-1])
    assert process(logits[:0], []).num_rows == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes_are_taken_as_float32(dtype: torch.dtype) -> None:
    logits, rows = mixed_batch(300)
    logits = logits.to(dtype)
    assert torch.equal(process(logits, rows).logprobs(), process(logits.float(), rows).logprobs())


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize(
    ("cut", "kept"),
    [
        ({"top_p": 0.5}, 2),  # 0.4 < 0.5 of the whole
        ({"top_p": 0.5, "top_k": 2}, 1),  # 0.4 ≥ 0.5 of the 0.7 that top_k left
        ({"top_p": 0.5, "min_p": 0.6}, 1),  # and of the 0.7 that min_p left
        ({"top_p": 0.8, "top_k": 3}, 3),  # 0.7 < 0.8 of 0.9
        ({"top_p": 0.8, "top_k": 3, "min_p": 0.6}, 2),  # 0.4 < 0.8 of 0.7, which the smaller of both left
    ],
)
def test_top_p_is_of_what_the_other_cuts_left(cut: dict[str, Any], kept: int, static: bool) -> None:
    values = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    one = cuts.Cuts.of([sampling_row(temperature=1.0, **cut)], values.device)
    count, told = (one.count_static if static else one.count)(values, values)
    assert (count.tolist(), told.tolist()) == ([kept], [True])
