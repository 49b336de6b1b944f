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

from engines.history import History
from engines.sampling.rows import SamplingRow


def edit_logits(logits: Tensor, rows: Sequence[SamplingRow], allowed: Tensor | None) -> Tensor:
    """Float32 [R, V] → float32 [R, V]: the same tensor if nothing changes, else a new one.

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
    groups: dict[tuple[int, int, int], list[int]] = {}
    for i in penalised:
        context, length, _ = _split(rows[i].history)
        groups.setdefault((id(context), length, rows[i].num_prompt_tokens), []).append(i)
    entries = [_penalties(rows, group, logits.shape[-1]) for group in groups.values()]
    where = torch.cat([columns for columns, _ in entries], dim=1).to(logits.device)
    repetition, frequency, presence = torch.cat([terms for _, terms in entries], dim=1).to(logits.device)
    columns = where[0], where[1]
    values = logits[columns]
    values = torch.where(values > 0, values / repetition, values * repetition)
    logits[columns] = values - frequency - presence


def _split(history: Sequence[int]) -> tuple[Sequence[int], int, Sequence[int]]:
    """What rows may share, how many ids of it are the row's, and the ids that are its alone."""
    if isinstance(history, History):
        return history.context, history.length, history.tail
    return history, len(history), ()


def _penalties(rows: Sequence[SamplingRow], group: Sequence[int], vocabulary: int) -> tuple[Tensor, Tensor]:
    """What is to be changed in rows that share a context, which is counted once for all of them.

    Row and token of each entry, int64 [2, n], and its repetition penalty, frequency and presence terms, float32 [3, n].
    """
    context, length, _ = _split(rows[group[0]].history)
    num_prompt_tokens = rows[group[0]].num_prompt_tokens
    samplings = [rows[i].sampling for i in group]
    counted = Counter(context[min(num_prompt_tokens, length) : length])
    seen_by_all = set(counted)
    if any(s.repetition_penalty != 1.0 for s in samplings):
        seen_by_all.update(context[: min(num_prompt_tokens, length)])
    tails = [_split(rows[i].history)[2] for i in group]
    ids = [t for t in seen_by_all.union(*tails) if t < vocabulary]
    place = {t: k for k, t in enumerate(ids)}
    own = [
        (r, place[t], length + k >= num_prompt_tokens)
        for r, tail in enumerate(tails)
        for k, t in enumerate(tail)
        if t in place
    ]
    own_rows, own_places, in_output = torch.tensor(own, dtype=torch.int64).view(-1, 3).unbind(-1)
    counts = torch.tensor([counted[t] for t in ids], dtype=torch.int64).repeat(len(group), 1)
    counts.index_put_((own_rows, own_places), in_output, accumulate=True)
    seen = torch.tensor([t in seen_by_all for t in ids], dtype=torch.bool).repeat(len(group), 1)
    seen[own_rows, own_places] = True

    r, k = seen.nonzero().unbind(-1)
    penalties = [(s.repetition_penalty, s.frequency_penalty, s.presence_penalty) for s in samplings]
    repetition, frequency, presence = torch.tensor(penalties, dtype=torch.float64)[r].unbind(-1)
    count = counts[r, k]
    columns = torch.stack([torch.tensor(group)[r], torch.tensor(ids, dtype=torch.int64)[k]])
    return columns, torch.stack([repetition, frequency * count, presence * (count > 0)]).to(torch.float32)
