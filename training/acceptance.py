"""A student's tokens per round, exactly as in speculative decoding, computed from the target's own texts.

A draft is accepted up to the first token that differs from the target's, so the student's context before an accepted
token is always the target's own text: one pass over a text shows for each place whether the student would have drawn
the next token, and rounds are counted from that. At a temperature both draw with the same noise (docs/exactness.md);
the noise behind the target's tokens is drawn from its posterior (truncated Gumbels: Maddison, Tarlow and
Minka, *A\\* Sampling*, 2014, section 2).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from training.corpus import Batch, Corpus, grouped, make_batch

DRAFT_TOKENS = 3
_ROWS = 1024

Logits = Callable[[Batch], tuple[Tensor, Tensor]]
"""Student's float32 logits [n, ids kept] and the target's [n, vocabulary] at a batch's places, in order."""


def tokens_a_round(matches: Sequence[bool], draft_tokens: int) -> tuple[int, int]:
    """(tokens, rounds) of a text at whose i-th token the draft's draw was the target's where matches[i]."""
    place = rounds = 0
    while place < len(matches):
        accepted = 0
        while accepted < draft_tokens and place + accepted < len(matches) and matches[place + accepted]:
            accepted += 1
        place += accepted + 1
        rounds += 1
    return len(matches), rounds


def coupled_matches(
    student: Tensor,
    target: Tensor,
    said: Tensor,
    kept: Tensor | None,
    temperature: float,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Whether the student draws `said` too, with the noise that made the target draw it: bool [n].

    student: logits [n, ids kept]; target: logits [n, vocabulary]; said: ids [n]; kept: the ids of the student's
    columns (None: all). At temperature 0 both take the likeliest.
    """
    if temperature == 0.0:
        drawn = student.argmax(dim=-1)
    else:
        phi = target / temperature
        rows = torch.arange(len(said), device=said.device)
        top = phi.logsumexp(dim=-1) + _gumbel(phi[:, 0], generator)
        free = phi + _gumbel(phi, generator)
        # A Gumbel of location φ given that it is below `top`.
        below = -torch.logaddexp(-top[:, None], -free)
        below[rows, said] = top
        noise = below - phi
        drawn = (student / temperature + (noise if kept is None else noise[:, kept])).argmax(dim=-1)
    return (drawn if kept is None else kept[drawn]) == said


def measure(
    logits: Logits, corpus: Corpus, kept: Tensor | None, *, longest: int, batch_tokens: int, device: torch.device
) -> dict[str, float]:
    """Tokens a round with DRAFT_TOKENS drafted, by "kind, T=temperature" of the corpus's texts."""
    lengths = np.minimum(np.diff(corpus.offsets), longest)
    counts: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(2, dtype=np.int64))
    for heat in sorted(set(map(float, corpus.temperatures))):
        chosen = [i for i in np.argsort(lengths, kind="stable").tolist() if float(corpus.temperatures[i]) == heat]
        for indices in grouped(chosen, lengths, batch_tokens):
            batch = make_batch(corpus, indices, longest).to(device)
            mine, theirs = logits(batch)
            said = batch.said
            matches = [
                coupled_matches(mine[i : i + _ROWS], theirs[i : i + _ROWS], said[i : i + _ROWS], kept, heat)
                for i in range(0, len(said), _ROWS)
            ]
            parts = torch.split(torch.cat(matches).cpu(), batch.counts)
            for index, part in zip(indices, parts, strict=True):
                counts[f"{corpus.kinds[index]}, T={heat:.1f}"] += tokens_a_round(part.tolist(), DRAFT_TOKENS)
    return {name: float(tokens / rounds) for name, (tokens, rounds) in sorted(counts.items()) if rounds}


def _gumbel(like: Tensor, generator: torch.Generator | None) -> Tensor:
    return -torch.empty_like(like, dtype=torch.float32).exponential_(generator=generator).log_()
