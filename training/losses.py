"""How far the student is from the target, over the ids that the student can generate.

Total variation distance is one minus the chance that a token of the student is accepted (Leviathan, Kalman and Matias
2023, arXiv 2211.17192, theorem 3.5), so it is what is wanted, but its gradient vanishes where the two hardly overlap;
the Kullback-Leibler divergence pulls there. Both are used together (compare Zhou et al., DistillSpec, arXiv
2310.08461).
"""

from __future__ import annotations

import torch
from torch import Tensor


def divergences(student: Tensor, target: Tensor, kept: Tensor | None, temperatures: Tensor) -> tuple[Tensor, Tensor]:
    """Kullback-Leibler divergence at temperature 1 and total variation at `temperatures`, both [rows].

    student: float32 logits [rows, ids kept]; target: float32 logits [rows, vocabulary]; kept: the ids of the student's
    columns (None: all); temperatures: [rows], above 0. The target's mass on ids that the student can't generate counts
    as missed in the total variation, and is left out of the divergence, which training could not reduce there.
    """
    whole = target.logsumexp(dim=-1, keepdim=True)
    seen = target if kept is None else target.index_select(-1, kept)
    log_p = seen - whole
    p = log_p.exp()
    log_q = student.log_softmax(dim=-1)
    kl = (p * (log_p - log_q)).sum(dim=-1)
    heat = temperatures[:, None]
    sharp_whole = (target / heat).logsumexp(dim=-1, keepdim=True)
    sharp_p = (seen / heat - sharp_whole).exp()
    sharp_q = (student / heat).softmax(dim=-1)
    overlap = torch.minimum(sharp_p, sharp_q).sum(dim=-1)
    return kl, 1.0 - overlap
