"""The two losses, against their definitions."""

from __future__ import annotations

import torch

from training.losses import divergences


def test_divergences_are_those_of_the_definitions() -> None:
    generator = torch.Generator().manual_seed(3)
    target, student = torch.randn(5, 6, generator=generator), torch.randn(5, 4, generator=generator)
    kept, heats = torch.tensor([0, 2, 3, 5]), torch.tensor([0.3, 0.5, 0.7, 1.0, 1.0])
    kl, tv = divergences(student, target, kept, heats)
    q = torch.zeros(5, 6)
    q[:, kept] = (student / heats[:, None]).softmax(-1)
    p = (target / heats[:, None]).softmax(-1)
    assert torch.allclose(tv, (p - q).abs().sum(-1) / 2, atol=1e-6)
    same, none = divergences(target, target, None, heats)
    assert torch.allclose(same, torch.zeros(5), atol=1e-5)
    assert torch.allclose(none, torch.zeros(5), atol=1e-5)
    seen = target.softmax(-1)[:, kept]
    assert torch.allclose(kl, (seen * (seen.log() - student.log_softmax(-1))).sum(-1), atol=1e-6)
