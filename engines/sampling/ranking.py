"""The order of tokens within a row: higher logit first, lower id first among equal ones."""

from __future__ import annotations

import torch
from torch import Tensor


def ranked(x: Tensor) -> tuple[Tensor, Tensor]:
    """All of float [R, V] in order: values and int64 ids, both [R, V]."""
    values, ids = torch.sort(x, dim=-1, descending=True, stable=True)
    return values, ids


def leading(x: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The first k of float [R, V] in order (values and ids, both [R, k]) and how many of them are certain, int64 [R].

    Partial selection takes any of the tokens that tie for its last place, so that only the entries above that
    place's value are certain; with k = V all of them are.
    """
    if k >= x.shape[-1]:
        values, ids = ranked(x)
        return values, ids, torch.full((x.shape[0],), x.shape[-1], device=x.device)
    values, ids = torch.topk(x, k, dim=-1)
    ids, by_id = ids.sort(dim=-1)
    values, by_value = torch.sort(values.gather(-1, by_id), dim=-1, descending=True, stable=True)
    return values, ids.gather(-1, by_value), (values > values[:, -1:]).sum(-1)


def first(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The first k of float [R, V] in order, all of them certain: values and int64 ids, both [R, k]."""
    values, ids, certain = leading(x, k + 1)
    values, ids = values[:, :k], ids[:, :k]
    short = torch.nonzero(certain < values.shape[-1]).flatten()
    if len(short):
        all_values, all_ids = ranked(x[short])
        values[short], ids[short] = all_values[:, :k], all_ids[:, :k]
    return values, ids


def lowest_best(values: Tensor, token_ids: Tensor | None) -> Tensor:
    """The id of each row's largest value, the lowest on ties: float [r, K] → int64 [r]. No ids: columns are ids."""
    if token_ids is None:
        # The first of equal ones, and a NaN before all, as both document it.
        if values.device.type == "cpu" and values.dtype == torch.float32:
            return torch.from_numpy(values.numpy().argmax(axis=-1))  # a fifth of torch's time
        return values.argmax(dim=-1)
    best = values.amax(dim=-1, keepdim=True)
    return token_ids.masked_fill(values != best, torch.iinfo(torch.int64).max).amin(dim=-1)
