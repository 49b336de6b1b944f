"""CPU against CUDA, on a machine with a GPU: `python -m benchmarks.gpu_noise` from the repository's root.

Needs torch alone. Checks that the hash is the same bits, the Gumbel noise the same to one ulp, the cuts of process()
the same tokens with the same logits, and that draws agree. Ends with status 1 if one does not.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from engines.sampling import noise
from engines.sampling.distribution import Distribution
from engines.sampling.draw import draw, draw_top2
from engines.sampling.process import process
from engines.sampling.rows import SamplingRow

VOCABULARY = 151_936
PARAMETERS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {},
    {"temperature": 0.7},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.5, "top_p": 0.999},
    {"top_k": 50},
    {"min_p": 0.05, "temperature": 0.8},
    {"repetition_penalty": 1.2, "frequency_penalty": 0.4, "presence_penalty": 0.3, "top_p": 0.95},
    {"logit_bias": {"5": 9.0, "77": -100.0}, "min_tokens": 50, "top_k": 2000, "top_p": 0.97},
]
DEFAULTS: dict[str, Any] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "logit_bias": {},
    "min_tokens": 0,
}


def rows_of(repeats: int) -> list[SamplingRow]:
    rows = []
    for i in range(repeats * len(PARAMETERS)):
        sampling: Any = SimpleNamespace(**{**DEFAULTS, **PARAMETERS[i % len(PARAMETERS)]})  # pydantic may be missing
        history = [(i * 37 + j * 11) % 500 for j in range(20 + i % 60)]
        rows.append(SamplingRow(sampling, i * 0x9E3779B9 - 2**40, len(history), history, 10, frozenset({3, 9})))
    return rows


def ulps(a: Tensor, b: Tensor) -> Tensor:
    """|a − b| in units in the last place of max(1, |a|).

    Not of |a| itself: if −log u is near 1 the outer logarithm is near 0, and an ulp of its argument is any number of
    ulps of the result. What a draw sees is the sum with a logit, so that an error counts by its absolute size.
    """
    _, exponent = torch.frexp(a.abs().clamp(min=1.0))
    return (a - b).abs() / torch.ldexp(torch.ones_like(a), exponent - 53)


def check_noise(report: list[tuple[str, str, bool]]) -> None:
    generator = torch.Generator().manual_seed(0)
    total = differing = 0
    equal, far, worst = 0, 0, 0.0
    for stream in (0, 1, 2, 0, 1, 2, 0, 1):
        seeds = torch.randint(-(2**63), 2**63 - 1, (64,), generator=generator)
        positions = torch.randint(0, 2**31, (64,), generator=generator)
        ids = torch.randint(0, 2**31 - 1, (64, 32_768), generator=generator)
        cpu = noise.hash64(seeds, stream, positions, ids)
        cuda = noise.hash64(seeds.cuda(), stream, positions.cuda(), ids.cuda()).cpu()
        total += cpu.numel()
        differing += int((cpu != cuda).sum())
        u_cpu, u_cuda = noise.uniform_from_hash(cpu), noise.uniform_from_hash(cpu.cuda()).cpu()
        differing += int((u_cpu != u_cuda).sum())
        g_cpu, g_cuda = noise.gumbel_from_hash(cpu), noise.gumbel_from_hash(cpu.cuda()).cpu()
        apart = ulps(g_cpu, g_cuda)
        equal += int((g_cpu == g_cuda).sum())
        far += int((apart > 1).sum())
        worst = max(worst, float(apart.max()))
    report.append(("hash64 and uniform, bits", f"{differing} of {total:,} differ", differing == 0))
    report.append(("gumbel, ulps", f"{equal / total:.3%} equal; {far} over one ulp; worst {worst:g}", far == 0))
    extremes = torch.tensor([0, -1, 2**63 - 1, -(2**63), -(1 << 11)]).cuda()
    report.append(("gumbel at the extremes", "finite", bool(torch.isfinite(noise.gumbel_from_hash(extremes)).all())))


def tokens_left(distribution: Distribution) -> Tensor:
    """Processed logits over the vocabulary, float32 [R, V], −inf where removed."""
    found = torch.full((distribution.num_rows, distribution.vocabulary), -torch.inf)
    for part in distribution.parts:
        rows, logits = part.rows.cpu(), part.logits.cpu()
        if part.token_ids is None:
            found[rows] = logits
        else:
            found[rows] = found[rows].scatter(-1, part.token_ids.cpu(), logits)
    return found


def check_drawing(report: list[tuple[str, str, bool]]) -> None:
    generator = torch.Generator().manual_seed(1)
    rows = rows_of(8)
    total = draws = runners_up = supports = 0
    same_logits = True
    for block in range(6):
        logits = torch.randn(len(rows), VOCABULARY, generator=generator) * 3
        if block % 2:
            logits = (logits * 4).round() / 4  # ties everywhere
        moved = [
            SamplingRow(r.sampling, r.seed + block, r.position, r.history, r.num_prompt_tokens, r.stop_token_ids)
            for r in rows
        ]
        cpu, cuda = process(logits, moved), process(logits.cuda(), moved)
        left, left_cuda = tokens_left(cpu), tokens_left(cuda)
        supports += int(((left > -torch.inf) != (left_cuda > -torch.inf)).any(-1).sum())
        same_logits &= torch.equal(left, left_cuda)
        draws += int((draw(cpu, moved) != draw(cuda, moved).cpu()).sum())
        runners_up += int((draw_top2(cpu, moved).second != draw_top2(cuda, moved).second.cpu()).sum())
        total += len(moved)
    report.append(("process(): tokens left", f"{supports} of {total} rows differ", supports == 0))
    report.append(("process(): their logits, bits", "equal" if same_logits else "differ", same_logits))
    report.append(("draw()", f"{draws} of {total} differ", draws == 0))
    report.append(("draw_top2(): the second", f"{runners_up} of {total} differ", runners_up == 0))


def check_batch(report: list[tuple[str, str, bool]]) -> None:
    """On the GPU too a row's results are its own."""
    rows = rows_of(2)
    logits = torch.randn(len(rows), VOCABULARY, generator=torch.Generator().manual_seed(2)).cuda() * 3
    together = process(logits, rows)
    logprobs, tokens = together.logprobs(), draw(together, rows)
    different = 0
    for i, row in enumerate(rows):
        alone = process(logits[i : i + 1], [row])
        different += int(not torch.equal(alone.logprobs()[0], logprobs[i]) or draw(alone, [row])[0] != tokens[i])
    report.append(("CUDA: rows alone, in a batch", f"{different} of {len(rows)} differ in a bit", different == 0))


def main() -> int:
    if not torch.cuda.is_available():
        print("no CUDA device")
        return 2
    report: list[tuple[str, str, bool]] = []
    check_noise(report)
    check_drawing(report)
    check_batch(report)
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, Python {sys.version.split()[0]}")
    for name, finding, good in report:
        print(f"{'ok  ' if good else 'FAIL'}  {name:<32} {finding}")
    return 0 if all(good for _, _, good in report) else 1


if __name__ == "__main__":
    raise SystemExit(main())
