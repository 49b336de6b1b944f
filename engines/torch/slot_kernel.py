"""Attention over slots as three Triton kernels, whose lengths are read on the device: one launch fits any length.

One row has few heads, which alone would keep a handful of the device's processors busy. So its keys are split over
several programs, each with a softmax of its own, and a last kernel weighs what they found ("flash decoding", Dao et
al., 2023).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_PROGRAMS = 1024
"""About as many as keep a GPU busy."""
_MOST_SPLITS = 16
_BLOCK = 64


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    positions: Tensor,
    slot_length: int,
    scaling: float,
    shared: Tensor | None = None,
    offsets: Tensor | None = None,
) -> Tensor:
    """As engines.torch.slot_attention.slot_attention, with one layer's `keys` and `values` [places, heads, dim]."""
    heads, rows, key_dim = query.shape
    key_value_heads, _, value_dim = value.shape
    group = heads // key_value_heads
    dims = {"KEY_DIM": key_dim, "VALUE_DIM": value_dim}
    padded = {"KEY_PAD": triton.next_power_of_2(key_dim), "VALUE_PAD": triton.next_power_of_2(value_dim)}
    group_pad = max(16, triton.next_power_of_2(group))  # what the matrix units take at least
    apart = shared is not None and offsets is not None
    where = (shared, offsets) if apart else (positions, positions)  # which are not read then
    _write[(rows, key_value_heads)](
        key, value, keys, values, slots, positions, where[1], slot_length,
        key.stride(0), key.stride(1), key.stride(2), value.stride(0), value.stride(1), value.stride(2),
        HEADS=key_value_heads, APART=apart, **dims, **padded,
    )  # fmt: skip
    splits = max(2, min(_MOST_SPLITS, triton.next_power_of_2(_PROGRAMS // (rows * key_value_heads))))
    found = torch.empty(rows, key_value_heads, splits, group_pad, value_dim, dtype=torch.float32, device=query.device)
    peaks = torch.empty(2, rows, key_value_heads, splits, group_pad, dtype=torch.float32, device=query.device)
    _attend_split[(rows, key_value_heads, splits)](
        query, keys, values, slots, positions, *where, found, peaks[0], peaks[1], slot_length, scaling,
        query.stride(0), query.stride(1), query.stride(2),
        HEADS=key_value_heads, GROUP=group, GROUP_PAD=group_pad, SPLITS=splits, BLOCK=_BLOCK, APART=apart,
        **dims, **padded,
    )  # fmt: skip
    attended = torch.empty(rows, heads, value_dim, dtype=query.dtype, device=query.device)
    _combine[(rows, heads)](
        found, peaks[0], peaks[1], attended,
        HEADS=key_value_heads, GROUP=group, GROUP_PAD=group_pad, SPLITS=splits, VALUE_DIM=value_dim,
        VALUE_PAD=padded["VALUE_PAD"],
    )  # fmt: skip
    return attended


@triton.jit
def _write(
    key, value, keys, values, slots, positions, offsets, slot_length,
    key_head, key_row, key_step, value_head, value_row, value_step,
    HEADS: tl.constexpr, APART: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, KEY_PAD: tl.constexpr,
    VALUE_PAD: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    place = tl.load(positions + row)
    if APART:
        place += tl.load(offsets + row)
    else:
        place += tl.load(slots + row) * slot_length
    d = tl.arange(0, KEY_PAD)
    k = tl.load(key + head * key_head + row * key_row + d * key_step, mask=d < KEY_DIM)
    tl.store(keys + (place * HEADS + head) * KEY_DIM + d, k, mask=d < KEY_DIM)
    e = tl.arange(0, VALUE_PAD)
    v = tl.load(value + head * value_head + row * value_row + e * value_step, mask=e < VALUE_DIM)
    tl.store(values + (place * HEADS + head) * VALUE_DIM + e, v, mask=e < VALUE_DIM)


@triton.jit
def _attend_split(
    query, keys, values, slots, positions, shared, offsets, found, peaks, sums, slot_length, scaling,
    query_head, query_row, query_step,
    HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr,
    APART: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, KEY_PAD: tl.constexpr, VALUE_PAD: tl.constexpr,
):  # fmt: skip
    row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = (tl.load(positions + row) + 1).to(tl.int32)
    first = tl.load(slots + row) * slot_length
    if APART:
        common, offset = tl.load(shared + row), tl.load(offsets + row)
    share = tl.cdiv(tl.cdiv(length, SPLITS), BLOCK) * BLOCK
    begin = split * share
    end = tl.minimum(begin + share, length)
    g, d, e, b = tl.arange(0, GROUP_PAD), tl.arange(0, KEY_PAD), tl.arange(0, VALUE_PAD), tl.arange(0, BLOCK)
    at = query + (head * GROUP + g)[:, None] * query_head + row * query_row + d[None, :] * query_step
    q = tl.load(at, mask=(g < GROUP)[:, None] & (d < KEY_DIM)[None, :], other=0.0)
    peak = tl.full([GROUP_PAD], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_PAD], tl.float32)
    summed = tl.zeros([GROUP_PAD, VALUE_PAD], tl.float32)
    for start in range(begin, end, BLOCK):
        there = start + b < end
        place = first + start + b
        if APART:
            place = tl.where(start + b < common, place, offset + start + b)
        place = place * HEADS + head
        k_mask = (d < KEY_DIM)[:, None] & there[None, :]
        k = tl.load(keys + place[None, :] * KEY_DIM + d[:, None], mask=k_mask, other=0.0)
        scores = tl.dot(q, k, input_precision="ieee") * scaling
        scores = tl.where(there[None, :], scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        weights = tl.exp(scores - new_peak[:, None])
        rescale = tl.exp(peak - new_peak)
        v_mask = there[:, None] & (e < VALUE_DIM)[None, :]
        v = tl.load(values + place[:, None] * VALUE_DIM + e[None, :], mask=v_mask, other=0.0)
        summed = summed * rescale[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        total = total * rescale + tl.sum(weights, 1)
        peak = new_peak
    part = ((row * HEADS + head) * SPLITS + split) * GROUP_PAD + g
    tl.store(peaks + part, peak)
    tl.store(sums + part, total)
    tl.store(found + part[:, None] * VALUE_DIM + e[None, :], summed, mask=(e < VALUE_DIM)[None, :] & (g >= 0)[:, None])


@triton.jit
def _combine(
    found, peaks, sums, attended,
    HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, SPLITS: tl.constexpr, VALUE_DIM: tl.constexpr,
    VALUE_PAD: tl.constexpr,
):  # fmt: skip
    row, query_head = tl.program_id(0), tl.program_id(1)
    head, g = query_head // GROUP, query_head % GROUP
    e = tl.arange(0, VALUE_PAD)
    parts = ((row * HEADS + head) * SPLITS + tl.arange(0, SPLITS)) * GROUP_PAD + g
    peak = tl.load(peaks + parts)  # -inf where a program had no keys; the first always has some
    weight = tl.exp(peak - tl.max(peak, 0))
    total = tl.sum(tl.load(sums + parts) * weight, 0)
    f = tl.load(found + parts[:, None] * VALUE_DIM + e[None, :], mask=(e < VALUE_DIM)[None, :], other=0.0)
    out = tl.sum(f * weight[:, None], 0) / total
    where = attended + (row * HEADS * GROUP + query_head) * VALUE_DIM + e
    tl.store(where, out.to(attended.dtype.element_ty), mask=e < VALUE_DIM)
