"""What a pass of a few tokens costs on a GPU, its kernels launched one by one and as one graph.

    python -m benchmarks.gpu_passes                  # from the repository's root, on a GPU; --tiny tries it on a CPU

A model in the shape of Qwen2.5-1.5B with random weights, bfloat16, at 1, 8 and 32 sequences: a token and nine of each,
medians. First four layers of it in float32 must give logits that are alike both ways; ends with status 1 if not.
"""

from __future__ import annotations

import argparse
import sys
import time
from statistics import median
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks import report
from benchmarks.gpu_models import TINY, Shape
from engines.model_building import build_model
from engines.runtime.rows import Row
from engines.torch.graph_passes import GraphPasses, capture_passes
from engines.torch.runner import Runner

TARGET = Shape(1536, 8960, 28, 12, 2, 151_936, tied=True)
CASES = ((1, 300), (8, 300), (32, 300), (1, 6_000), (8, 6_000))
"""Sequences, and the length of their contexts."""
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def make_runner(shape: Shape, slots: int, length: int, dtype: torch.dtype) -> Runner:
    torch.manual_seed(0)
    with DEVICE:
        model = build_model(AutoModelForCausalLM.from_config, shape.config(), dtype=dtype)
    return Runner(model, slots, length)


def some_tokens(count: int, seed: int) -> list[int]:
    return torch.randint(0, 1_000, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def read_contexts(runner: Runner, sequences: int, length: int) -> None:
    for slot in range(sequences):
        runner.forward([Row(slot, 0, some_tokens(length, slot), logits_from=length)])


def milliseconds(runner: Runner, sequences: int, length: int, count: int, repeats: int) -> float:
    times = []
    for turn in range(repeats + 2):
        rows = [Row(slot, length, some_tokens(count, turn)) for slot in range(sequences)]
        began = time.perf_counter()
        runner.forward(rows)[-1][-1, -1].item()  # waits for the device
        times.append(time.perf_counter() - began)
    return 1e3 * median(times[2:])


def differ(shape: Shape) -> float:
    """The largest difference of a logit of sequences of unlike lengths."""
    runner = make_runner(shape, 8, 1_024, torch.float32)
    passes = GraphPasses(runner)
    rows = [Row(slot, 40 + 37 * slot, some_tokens(1 + slot % 5, slot)) for slot in range(8)]
    found = []
    for graphs in (None, passes):
        runner.graph_passes = None
        for row in rows:
            runner.forward([Row(row.slot, 0, some_tokens(row.start, row.slot), logits_from=row.start)])
        runner.graph_passes = graphs
        found.append(torch.cat(runner.forward(rows)))
    return float((found[0] - found[1]).abs().max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a tiny model and short contexts: whether it runs")
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    shape = TINY if options.tiny else TARGET
    few = Shape(shape.hidden, shape.intermediate, min(4, shape.layers), shape.heads, shape.key_value_heads, 2_000, True)
    difference = differ(few)
    print(f"float32, {few.layers} layers: logits differ by {difference:.1g} at most")
    cases = [(sequences, min(length, 200)) for sequences, length in CASES[:2]] if options.tiny else CASES
    runner = make_runner(shape, 33, 256 if options.tiny else 8_192, torch.float32 if options.tiny else torch.bfloat16)
    began = time.perf_counter()
    passes = capture_passes(runner, "the model")
    print(f"captured in {time.perf_counter() - began:.1f} s")
    rows: list[dict[str, Any]] = []
    for sequences, length in cases:
        runner.graph_passes = None
        read_contexts(runner, sequences, length)
        for count in (1, 9):
            row: dict[str, Any] = {"sequences": sequences, "context": length, "tokens of each": count}
            for name, graphs in (("one by one, ms", None), ("as one graph, ms", passes)):
                runner.graph_passes = graphs
                row[name] = milliseconds(runner, sequences, length, count, options.repeats)
            rows.append(row)
    report.show("A pass", rows)
    print(report.write("gpu_passes", {"rows": rows, "largest difference": difference}))
    sys.exit(0 if passes is not None and difference < 1e-3 else 1)


if __name__ == "__main__":
    main()
