"""How many draft tokens are accepted: by strategy, temperature, γ and N, on HumanEval prompts. Resumable.

    python -m benchmarks.acceptance --target FOLDER --draft FOLDER --max-minutes 30

γ and N are fixed, adaptation off. `probabilistic` stands beside
`deterministic` for the same prompts and seeds. What was measured is kept in results/acceptance.json, by prompt, so that
a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import itertools
import time
from typing import Any

from benchmarks import report
from benchmarks.client import ApiFailure, Client
from benchmarks.processes import Stack
from benchmarks.prompts import human_eval

TEMPERATURES = (0.0, 0.7, 1.0)
STRATEGIES = ("deterministic", "probabilistic")
DRAFT_TOKENS = (3, 5, 8)
CANDIDATES = (1, 3)


def cells() -> list[dict[str, Any]]:
    """γ at N = 1 for both strategies, and N at γ = 5 where it can be lossless; at temperature 0 strategies agree."""
    wide = [(strategy, g, 1) for strategy in STRATEGIES for g in DRAFT_TOKENS]
    deep = [("deterministic", 5, n) for n in CANDIDATES if n > 1]
    return [
        {"strategy": strategy, "temperature": temperature, "draft_tokens": g, "num_candidates": n}
        for (strategy, g, n), temperature in itertools.product([*wide, *deep], TEMPERATURES)
        if not (strategy == "probabilistic" and temperature == 0.0)
    ]


def measure(client: Client, cell: dict[str, Any], prompt: str, seed: int, tokens: int) -> dict[str, Any]:
    """One completion's counts."""
    speculative = {key: cell[key] for key in ("strategy", "draft_tokens", "num_candidates")}
    answer = client.complete(
        prompt,
        max_tokens=tokens,
        temperature=cell["temperature"],
        seed=seed,
        ignore_eos=True,
        speculative={**speculative, "adaptive_speculation": False},
    )
    found = dict(answer.speculation or {})
    return {
        "steps": found["num_spec_steps"],
        "drafted": found["num_draft_tokens"],
        "accepted": found["num_accepted_draft_tokens"],
        "seconds": answer.seconds,
        "tokens": answer.completion_tokens,
    }


def summary(cell: dict[str, Any], runs: list[dict[str, Any]]) -> dict[str, Any]:
    steps, drafted, accepted = (sum(run[key] for run in runs) for key in ("steps", "drafted", "accepted"))
    return {
        **cell,
        "prompts": len(runs),
        "acceptance rate": accepted / drafted if drafted else 0.0,
        "acceptance length": 1 + accepted / steps if steps else 0.0,
        "tokens/s": sum(run["tokens"] for run in runs) / sum(run["seconds"] for run in runs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, help="a model: folder, GGUF file, name or hub id")
    parser.add_argument("--draft", required=True)
    parser.add_argument("--max-minutes", type=float, default=30.0)
    parser.add_argument("--prompts", type=int, default=8, help="HumanEval problems, spread over all 164")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--candidates", type=int, choices=CANDIDATES, help="only the cells with this N")
    parser.add_argument("--again", action="store_true", help="forget earlier results")
    options = parser.parse_args()
    until = time.monotonic() + 60 * options.max_minutes
    problems = human_eval()
    chosen = problems[:: max(1, len(problems) // options.prompts)][: options.prompts]
    setup = {"target": options.target, "draft": options.draft, "tokens": options.tokens}
    found = report.read("acceptance")
    if options.again or found.get("setup") != setup:
        found = {"setup": setup, "runs": {}}
    runs: dict[str, dict[str, Any]] = found["runs"]
    wanted = [cell for cell in cells() if options.candidates in (None, cell["num_candidates"])]
    with Stack() as stack:
        workers: dict[str, Any] = {"slots": 4, "context_length": 1024}
        target = stack.target(options.target, **workers)
        draft = stack.draft(options.draft, **workers)
        gateway = stack.gateway(
            [target.url], [draft.url], draft_timeout_seconds=60, verify_timeout_seconds=300, default_max_tokens=64
        )
        for process in (target, draft, gateway):
            process.wait_ready(60 * options.max_minutes)
        with Client(gateway.url, timeout=900) as client:
            # Prompt by prompt over all cells, so that a run cut short still compares like with like.
            for (task, prompt), cell in itertools.product(chosen, wanted):
                name = f"{task} {' '.join(map(str, cell.values()))}"
                if name in runs or time.monotonic() > until:
                    continue
                try:
                    runs[name] = measure(client, cell, prompt, seed=int(task.rpartition("/")[2]), tokens=options.tokens)
                except ApiFailure as failure:
                    raise SystemExit(f"{name}: {failure}") from failure
                report.write("acceptance", found)
    rows = []
    for cell in wanted:
        of_cell = [run for name, run in runs.items() if name.partition(" ")[2] == " ".join(map(str, cell.values()))]
        if of_cell:
            rows.append(summary(cell, of_cell))
    report.show(f"{options.target} drafted by {options.draft}, HumanEval, {options.tokens} tokens a prompt", rows)
    print(report.write("acceptance", {**found, "summary": rows}))


if __name__ == "__main__":
    main()
