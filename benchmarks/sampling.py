"""What processing and drawing cost, by sampling parameters: `python -m benchmarks.sampling`.

Six rows (γ = 5 and the bonus token) of logits shaped like a language model's, on the CPU or the first GPU. Milliseconds
of wall-clock time and of processor time over all threads (which other processes on the machine disturb less).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch

from engines.sampling.draw import draw
from engines.sampling.process import process
from engines.sampling.rows import SamplingRow
from protocol.messages import Sampling

ROWS = 6
HISTORY = tuple(range(100, 612))
CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "T=1, whole vocabulary": {},
    "T=0.7, top_p=0.9": {"temperature": 0.7, "top_p": 0.9},
    "T=1, top_p=0.95": {"top_p": 0.95},
    "T=1, top_k=50": {"top_k": 50},
    "T=0.7, min_p=0.05": {"temperature": 0.7, "min_p": 0.05},
    "penalties, T=1": {"repetition_penalty": 1.1, "frequency_penalty": 0.3},
    "T=1.5, top_p=0.999": {"temperature": 1.5, "top_p": 0.999},
}


def language_like(rows: int, vocabulary: int) -> torch.Tensor:
    """Logits that fall with the logarithm of the rank, steeply at first, over shuffled ids."""
    generator = torch.Generator().manual_seed(0)
    ranks = torch.arange(1, vocabulary + 1, dtype=torch.float32)
    noise = torch.randn(rows, vocabulary, generator=generator)
    order = torch.argsort(torch.rand(rows, vocabulary, generator=generator), dim=-1)
    return (noise - 1.6 * ranks.log()).gather(-1, order)


def milliseconds(work: Callable[[], object], repeats: int, device: str) -> tuple[float, float]:
    """Medians of wall-clock and processor time."""
    wall, processor = [], []
    for _ in range(repeats):
        start, start_processor = time.perf_counter(), time.process_time()
        work()
        if device != "cpu":
            torch.cuda.synchronize()
        wall.append(time.perf_counter() - start)
        processor.append(time.process_time() - start_processor)
    return 1000 * median(wall), 1000 * median(processor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    where = f"{options.device}, {torch.get_num_threads()} threads"
    print(f"torch {torch.__version__}, {where}, {ROWS} rows; medians of wall (processor) ms")
    print(f"{'vocabulary':>10}  {'case':<24} {'process':>15} {'draw':>15} {'kept':>8}")
    for vocabulary in (49_152, 151_936):
        logits = language_like(ROWS, vocabulary).to(options.device)
        for name, parameters in CASES.items():
            sampling = Sampling(seed=1, **parameters)
            rows = [SamplingRow(sampling, 1, len(HISTORY) + i, (*HISTORY, *range(i)), 100) for i in range(ROWS)]
            distribution = process(logits, rows)
            works = (partial(process, logits, rows), partial(draw, distribution, rows))
            costs = [milliseconds(work, options.repeats, options.device) for work in works]
            kept = max(part.logits.shape[-1] for part in distribution.parts)
            cells = "".join(f" {wall:7.2f} ({processor:5.1f})" for wall, processor in costs)
            print(f"{vocabulary:>10}  {name:<24}{cells} {kept:>8}", flush=True)


if __name__ == "__main__":
    main()
