"""What a pass costs by its number of rows, compared with the time to read the weights: `python -m benchmarks.rows`.

One sequence of 200 tokens, passes of 1, 2, 4, … further rows, with torch's own linear layers and with packed ones
(engines/torch/linear.py) of each library that torch has, taken in turns within one run; medians in milliseconds. The
first library is what Tandem takes on this processor. In bfloat16 nothing is packed (setting `dtype`). A draft pays if
a pass of a few rows costs little more than one of a single row. The limit is the time that reading the weights takes:
it is measured by summing as many numbers as there are weights, and by copying them, which reads and writes.
"""

from __future__ import annotations

import argparse
import copy
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers

from benchmarks import report
from engines.model_building import build_model
from engines.runtime.rows import Row
from engines.torch.linear import pack_linear_layers, packing_libraries
from engines.torch.runner import Runner
from testing.models import bundled

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 32)
CONTEXT = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="a checkpoint's folder; the bundled model if none is named")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    dtype = getattr(torch, options.dtype)
    model = build_model(transformers.AutoModelForCausalLM.from_pretrained, options.model or bundled(), dtype=dtype)
    weights = sum(module.weight.numel() for module in model.modules() if isinstance(module, torch.nn.Linear))
    runners = {"torch's own": Runner(model, 1, 512)}
    for library in packing_libraries() if dtype == torch.float32 else ():
        runner = Runner(copy.deepcopy(model), 1, 512)
        if not pack_linear_layers(runner.model, lambda: runner.forward([Row(0, 0, [1, 2, 3])])[0], library):  # noqa: B023
            raise SystemExit("this model's layers can't be packed: nothing to compare")
        runners[f"packed by {library}"] = runner
    for runner in runners.values():
        runner.forward([Row(0, 0, list(range(CONTEXT)), logits_from=CONTEXT)])
    times: dict[tuple[str, int], list[float]] = {}
    for _ in range(options.repeats + 1):
        for rows in ROWS:
            for name, runner in runners.items():
                began = time.perf_counter()
                runner.forward([Row(0, CONTEXT, list(range(rows)))])
                times.setdefault((name, rows), []).append(time.perf_counter() - began)
    medians = {key: 1000 * median(found[1:]) for key, found in times.items()}
    read, copied = _memory(weights, dtype, options.repeats)
    table: list[dict[str, Any]] = []
    for rows in ROWS:
        line: dict[str, Any] = {"rows": rows}
        for name in runners:
            line |= {f"{name}, ms": medians[name, rows], "of one row": medians[name, rows] / medians[name, 1]}
            line[f"{name}: of one row"] = line.pop("of one row")
        table.append(line)
    gigabytes = dtype.itemsize * weights / 1e9
    title = (
        f"{options.threads} threads; {gigabytes:.2f} GB of weights: read in {read:.1f} ms, copied in {copied:.1f} ms"
        f" ({gigabytes / read * 1000:.0f} GB/s read)"
    )
    report.show(title, table)
    report.write("rows", {"weights_gb": gigabytes, "read_ms": read, "copy_ms": copied, "rows": table})


def _memory(elements: int, dtype: torch.dtype, repeats: int) -> tuple[float, float]:
    """Milliseconds to read and to copy that many numbers, the best of several."""
    # Read as float32, whatever they are: summing others converts them, which takes longer than reading.
    source = torch.ones(elements * dtype.itemsize // 4)
    target = torch.empty_like(source)
    reads, copies = [], []
    for _ in range(repeats):
        began = time.perf_counter()
        source.sum()
        reads.append(time.perf_counter() - began)
        began = time.perf_counter()
        target.copy_(source)
        copies.append(time.perf_counter() - began)
    return 1000 * min(reads), 1000 * min(copies)


if __name__ == "__main__":
    main()
