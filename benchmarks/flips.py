"""How often does the shape of a pass flip a token outside bitwise mode, and what does the mode cost?

    python -m benchmarks.flips [--model MODEL --tokens 120000] [--engine llama_cpp]

Teacher-forced: the logits of every position of a text are computed in passes of several shapes (one token at a time is
the reference), and each row of logits is drawn from with many seeds. A flip is a draw that differs. The same in bitwise
mode, in which none may. Times are medians of a one-row and a six-row pass over the same context. Each mode runs in a
process of its own, since MKL reads its setting once.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from benchmarks import report
from testing.models import BUNDLED, bundled
from testing.prompts import KINDS

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from torch import Tensor

    from engines.runtime.runner import ModelRunner as Runner

POSITIONS = 256
CONTEXT = 32
SAMPLINGS = {"temperature 0.7, top-p 0.95": (0.7, 0.95), "temperature 1.0, top-p 0.95": (1.0, 0.95)}
TIMED = 40


def measure(model: str, engine: str, tokens: int, batch_invariant: bool, threads: int | None) -> dict[str, Any]:
    """Flips and times in this process, whose torch is not loaded yet."""
    from engines.torch.environment import prepare_environment

    prepare_environment(threads, batch_invariant and engine == "torch")
    import torch

    runner, ids = (_on_llama_cpp if engine == "llama_cpp" else _on_torch)(model, batch_invariant, threads)
    with torch.inference_mode():
        reference = _passes(runner, ids, 1)
        shapes = {
            "6 rows": _passes(runner, ids, 6),
            "64 rows": _passes(runner, ids, 64),
            "beside 7 others": _beside(runner, ids),
        }
        seeds = -(-tokens // (POSITIONS * len(SAMPLINGS)))
        drawn = _draw(reference, ids, seeds)
        rows = [
            {
                "shape": shape,
                "bits equal": bool(torch.equal(logits, reference)),
                "largest difference": float((logits - reference).abs().max()),
                "tokens": drawn.numel(),
                "flips": int((_draw(logits, ids, seeds) != drawn).sum()),
                "greedy flips": int((logits.argmax(-1) != reference.argmax(-1)).sum()),
            }
            for shape, logits in shapes.items()
        ]
        seconds = {f"{count} rows": _seconds(runner, ids, count) for count in (1, 6)}
    return {"rows": rows, "milliseconds": {name: 1e3 * value for name, value in seconds.items()}}


def _on_torch(model: str, batch_invariant: bool, threads: int | None) -> tuple[Runner, list[int]]:
    """The model, ready to run, and a text's ids."""
    from tokenizers import Tokenizer

    from engines.models import resolve_model
    from engines.torch.loader import load_runner

    files = resolve_model(model)
    runner = load_runner(files, num_slots=8, slot_length=512, dtype="float32", batch_invariant=batch_invariant)
    return runner, _text(Tokenizer.from_file(str(files.folder / "tokenizer.json")))


def _on_llama_cpp(model: str, batch_invariant: bool, threads: int | None) -> tuple[Runner, list[int]]:
    """The same of a GGUF file."""
    from config.workers import TargetWorkerConfig
    from engines.gguf.tokenizer import build_tokenizer
    from engines.llama_cpp.loading import open_model
    from engines.llama_cpp.start import load_runner

    settings: dict[str, Any] = {"slots": 8, "context_length": 512, "threads": threads}
    config = TargetWorkerConfig(model=model, engine="llama_cpp", batch_invariant=batch_invariant, **settings)
    model_file = open_model(config, print)
    runner, _, _ = load_runner(model_file, config)
    found = model_file.found
    return runner, _text(build_tokenizer(found.metadata, found.architecture).backend_tokenizer)


def _text(tokenizer: Tokenizer) -> list[int]:
    """Ids of a text, as many as are needed."""
    ids: list[int] = tokenizer.encode("\n".join(p for prompts in KINDS.values() for p in prompts)).ids
    return (ids * (1 + (CONTEXT + POSITIONS) // len(ids)))[: CONTEXT + POSITIONS]


def _passes(runner: Runner, ids: list[int], rows: int) -> Tensor:
    """Logits [POSITIONS, V] after each of the text's ids behind the context, in passes of so many rows."""
    import torch

    from engines.runtime.rows import Row

    runner.forward([Row(0, 0, ids[:CONTEXT], logits_from=CONTEXT)])
    starts = range(CONTEXT, CONTEXT + POSITIONS, rows)
    end = CONTEXT + POSITIONS
    return torch.cat([runner.forward([Row(0, at, ids[at : min(at + rows, end)])])[0].clone() for at in starts])


def _beside(runner: Runner, ids: list[int]) -> Tensor:
    """One token at a time, in a batch with seven sessions that are at other places of the text."""
    import torch

    from engines.runtime.rows import Row

    shift = 16
    for slot in range(8):
        runner.forward([Row(slot, 0, ids[: CONTEXT + shift * slot], logits_from=CONTEXT + shift * slot)])
    found = []
    for step in range(POSITIONS):
        rows = [Row(0, CONTEXT + step, [ids[CONTEXT + step]])]
        for slot in range(1, 8):
            at = CONTEXT + shift * slot + step
            if at < len(ids):
                rows.append(Row(slot, at, [ids[at]]))
        found.append(runner.forward(rows)[0].clone())
    return torch.cat(found)


def _draw(logits: Tensor, ids: list[int], seeds: int) -> Tensor:
    """Draws from each row with each seed: int64 [samplings, POSITIONS · seeds]."""
    import torch

    from engines.sampling.draw import draw
    from engines.sampling.process import process
    from engines.sampling.rows import SamplingRow
    from protocol.messages import Sampling

    found = []
    for temperature, top_p in SAMPLINGS.values():
        sampling = Sampling(temperature=temperature, top_p=top_p, seed=0)

        def row(position: int, seed: int, sampling: Sampling = sampling) -> SamplingRow:
            return SamplingRow(sampling, seed, position, ids[:position], len(ids))

        distribution = process(logits, [row(CONTEXT + 1 + i, 0) for i in range(POSITIONS)])
        drawn = [draw(distribution, [row(CONTEXT + 1 + i, seed) for i in range(POSITIONS)]) for seed in range(seeds)]
        found.append(torch.cat(drawn))
    return torch.stack(found)


def _seconds(runner: Runner, ids: list[int], rows: int) -> float:
    from engines.runtime.rows import Row

    runner.forward([Row(0, 0, ids[:CONTEXT], logits_from=CONTEXT)])
    taken = []
    for _ in range(TIMED):
        began = time.perf_counter()
        runner.forward([Row(0, CONTEXT, ids[CONTEXT : CONTEXT + rows])])
        taken.append(time.perf_counter() - began)
    return report.median(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=BUNDLED)
    parser.add_argument("--tokens", type=int, default=120_000, help="draws for each shape")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--engine", choices=["torch", "llama_cpp"], default="torch")
    parser.add_argument("--only", choices=["default", "bitwise"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(
            json.dumps(
                measure(options.model, options.engine, options.tokens, options.only == "bitwise", options.threads)
            )
        )
        return
    if options.model == BUNDLED:
        bundled()
    found: dict[str, Any] = {}
    environment = {key: value for key, value in os.environ.items() if key != "MKL_CBWR"}
    for mode in ("default", "bitwise"):
        command = [sys.executable, "-m", "benchmarks.flips", *sys.argv[1:], "--only", mode]
        run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        found[mode] = json.loads(run.stdout.splitlines()[-1])
    rows = [{"mode": mode, **row} for mode, result in found.items() for row in result["rows"]]
    costs = [
        {"rows": name, "default ms": value, "bitwise ms": (other := found["bitwise"]["milliseconds"][name]),
         "ratio": other / value}
        for name, value in found["default"]["milliseconds"].items()
    ]  # fmt: skip
    report.show("Draws that the shape of the pass changed", rows)
    report.show("What the mode costs", costs)
    print(report.write("flips", {"flips": rows, "costs": costs}))
    sys.exit(any(row["flips"] for row in found["bitwise"]["rows"]))


if __name__ == "__main__":
    main()
