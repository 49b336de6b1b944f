"""Changes to single logits that come before temperature: grammar mask, stop tokens, bias, penalties.

The order and the meaning are vLLM's (vllm/v1/sample/sampler.py): the grammar's bitmask before everything, the stop
tokens' mask where it applies the logit bias, then the repetition penalty over prompt and output, then frequency and
presence penalties over the output. Ids outside the vocabulary have no logit here and are left alone; refusing them is
the worker's business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from engines.sampling.rows import SamplingRow


def edit_logits(logits: Tensor, rows: Sequence[SamplingRow], allowed: Tensor | None) -> Tensor:
    """Float32 [R, V] → float32 [R, V]: the same tensor where nothing changes, else a new one.

    `allowed` is bool [R, V], or a bitmask int32 [R, W] as xgrammar makes it: bit b of word w is token 32 w + b, and
    tokens beyond its end (a padded row of logits) are not allowed.
    """
    masked = [(i, t) for i, row in enumerate(rows) if _stops_masked(row) for t in row.stop_token_ids]
    biased = [(i, int(t), b) for i, row in enumerate(rows) for t, b in row.sampling.logit_bias.items()]
    penalised = [i for i, row in enumerate(rows) if _has_penalties(row)]
    if allowed is None and not masked and not biased and not penalised:
        return logits
    logits = (
        logits.masked_fill(~_as_bool(allowed, logits.shape[-1]), -torch.inf) if allowed is not None else logits.clone()
    )
    vocabulary = logits.shape[-1]
    masked = [entry for entry in masked if entry[1] < vocabulary]
    if masked:
        logits[_columns(logits.device, masked)] = -torch.inf
    biased = [entry for entry in biased if entry[1] < vocabulary]
    if biased:
        values = torch.tensor([b for _, _, b in biased], dtype=torch.float32, device=logits.device)
        logits[_columns(logits.device, [(i, t) for i, t, _ in biased])] += values
    if penalised:
        _penalise_(logits, rows, penalised)
    return logits


def is_edited(row: SamplingRow) -> bool:
    """Whether anything but a grammar changes single logits of this row."""
    return bool(row.sampling.logit_bias) or _stops_masked(row) or _has_penalties(row)


def _stops_masked(row: SamplingRow) -> bool:
    return row.sampling.min_tokens > 0 and len(row.history) - row.num_prompt_tokens < row.sampling.min_tokens


def _has_penalties(row: SamplingRow) -> bool:
    s = row.sampling
    return s.repetition_penalty != 1.0 or s.presence_penalty != 0.0 or s.frequency_penalty != 0.0


def _as_bool(allowed: Tensor, vocabulary: int) -> Tensor:
    if allowed.dtype == torch.bool:
        return allowed
    bits = torch.arange(32, dtype=torch.int32, device=allowed.device)
    unpacked = (allowed[:, :, None] >> bits).bitwise_and_(1).bool().flatten(1)[:, :vocabulary]
    return torch.nn.functional.pad(unpacked, (0, vocabulary - unpacked.shape[1]))


def _columns(device: torch.device, entries: Iterable[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    index = torch.tensor(list(entries), dtype=torch.int64, device=device)
    return index[:, 0], index[:, 1]


def _penalise_(logits: Tensor, rows: Sequence[SamplingRow], penalised: Sequence[int]) -> None:
    """Penalties of vLLM's: one entry for each distinct token of a row's history; all rows in one gather and scatter."""
    vocabulary = logits.shape[-1]
    where: list[tuple[int, int]] = []
    factors: list[tuple[float, float, float]] = []  # repetition penalty, frequency term, presence term
    for i in penalised:
        s, history = rows[i].sampling, rows[i].history
        counts = Counter(history[rows[i].num_prompt_tokens :])
        seen = {*history[: rows[i].num_prompt_tokens], *counts} if s.repetition_penalty != 1.0 else counts.keys()
        for token_id in seen:
            if token_id < vocabulary:
                count = counts[token_id]
                where.append((i, token_id))
                presence = s.presence_penalty if count else 0.0
                factors.append((s.repetition_penalty, s.frequency_penalty * count, presence))
    if not where:
        return
    columns = _columns(logits.device, where)
    repetition, frequency, presence_term = torch.tensor(factors, dtype=torch.float32, device=logits.device).unbind(-1)
    values = logits[columns]
    values = torch.where(values > 0, values / repetition, values * repetition)
    logits[columns] = values - frequency - presence_term
