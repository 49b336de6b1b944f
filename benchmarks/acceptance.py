"""How many draft tokens are accepted: by strategy, temperature, γ and N, on HumanEval prompts. Resumable.

    python -m benchmarks.acceptance --target FOLDER --draft FOLDER --max-minutes 30
    python -m benchmarks.acceptance --target FOLDER --draft FOLDER --strategies threshold greedy --draft-tokens 5

γ and N are fixed, adaptation off. All strategies get the same prompts and seeds. What was measured is kept in
results/acceptance.json, by prompt: a run that was stopped is resumed, and runs over some of the cells add up.
Rates are of all prompts' tokens together; their standard errors are those of a ratio over prompts.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from basics.names import STRATEGIES
from benchmarks import report
from testing.client import ApiFailure, Client
from testing.processes import Stack
from testing.prompts import human_eval

TEMPERATURES = (0.0, 0.7, 1.0)
DRAFT_TOKENS = (3, 5, 8)
CANDIDATES = (1, 3)


def cells() -> list[dict[str, Any]]:
    """γ at N = 1 for every strategy, and N at γ = 5 if it is lossless.

    At temperature 0 one token is left of each distribution: all strategies accept the same, and one stands for them.
    """
    wide = [(strategy, g, 1) for strategy in STRATEGIES for g in DRAFT_TOKENS]
    deep = [("deterministic", 5, n) for n in CANDIDATES if n > 1]
    return [
        {"strategy": strategy, "temperature": temperature, "draft_tokens": g, "num_candidates": n}
        for (strategy, g, n), temperature in itertools.product([*wide, *deep], TEMPERATURES)
        if strategy == "deterministic" or temperature > 0.0
    ]


def name_of(cell: Mapping[str, Any]) -> str:
    return " ".join(map(str, cell.values()))


def chosen_cells(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The cells that the options select; each option lists values of one setting (None: all)."""
    chosen = {
        "strategy": options.strategies,
        "temperature": options.temperatures,
        "draft_tokens": options.draft_tokens,
        "num_candidates": options.candidates,
    }
    return [cell for cell in cells() if all(values is None or cell[key] in values for key, values in chosen.items())]


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


def ratio(parts: Sequence[float], wholes: Sequence[float]) -> tuple[float, float]:
    """Σ parts / Σ wholes, and its standard error over the pairs (Cochran, *Sampling Techniques*, 1977, chapter 6).

    nan if nothing determines it: no wholes, or a single pair.
    """
    count, total = len(parts), sum(wholes)
    if not total:
        return math.nan, math.nan
    found = sum(parts) / total
    if count < 2:
        return found, math.nan
    residuals = sum((part - found * whole) ** 2 for part, whole in zip(parts, wholes, strict=True))
    return found, math.sqrt(count / (count - 1) * residuals) / total


def summary(cell: dict[str, Any], runs: list[dict[str, Any]]) -> dict[str, Any]:
    steps, drafted, accepted = ([run[key] for run in runs] for key in ("steps", "drafted", "accepted"))
    rate, rate_error = ratio(accepted, drafted)
    more, length_error = ratio(accepted, steps)
    return {
        **cell,
        "prompts": len(runs),
        "acceptance rate": rate,
        "± rate": rate_error,
        "acceptance length": 1 + more,
        "± length": length_error,
        "tokens/s": sum(run["tokens"] for run in runs) / sum(run["seconds"] for run in runs),
    }


def summaries(wanted: Sequence[dict[str, Any]], runs: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The cells measured so far, as rows of the table."""
    by_cell: dict[str, list[dict[str, Any]]] = {}
    for name, run in runs.items():
        by_cell.setdefault(name.partition(" ")[2], []).append(run)
    return [summary(cell, by_cell[name_of(cell)]) for cell in wanted if name_of(cell) in by_cell]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, help="a model: folder, GGUF file, name or hub id")
    parser.add_argument("--draft", required=True)
    parser.add_argument("--max-minutes", type=float, default=30.0)
    parser.add_argument("--prompts", type=int, default=8, help="HumanEval problems, spread over all 164")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, help="only the cells with these")
    parser.add_argument("--temperatures", nargs="+", type=float, choices=TEMPERATURES, help="only the cells with these")
    parser.add_argument("--draft-tokens", nargs="+", type=int, choices=DRAFT_TOKENS, help="only the cells with these γ")
    parser.add_argument("--candidates", nargs="+", type=int, choices=CANDIDATES, help="only the cells with these N")
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
    wanted = chosen_cells(options)
    if not wanted:
        parser.error("no cell has all of these (N = 3 is for deterministic at γ = 5, temperature 0 for deterministic)")
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
                name = f"{task} {name_of(cell)}"
                if name in runs or time.monotonic() > until:
                    continue
                try:
                    runs[name] = measure(client, cell, prompt, seed=int(task.rpartition("/")[2]), tokens=options.tokens)
                except ApiFailure as failure:
                    raise SystemExit(f"{name}: {failure}") from failure
                report.write("acceptance", found)
    title = f"{options.target} drafted by {options.draft}, HumanEval, {options.tokens} tokens a prompt"
    report.show(title, summaries(wanted, runs))
    print(report.write("acceptance", {**found, "summary": summaries(cells(), runs)}))


if __name__ == "__main__":
    main()
