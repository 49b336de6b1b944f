"""Is the text the same whatever speculates? Real processes, the bundled model, bitwise mode. Resumable.

    python -m benchmarks.equality

A pairwise covering array (every two settings of two factors meet in some cell) over temperature, top-p, penalties,
drafter, γ, N and adaptation; 5 prompts of 32 tokens a cell, each compared, token for token, with plain decoding under
the same sampling parameters. Equal texts show nothing if nothing was drafted or accepted: drafts of
`partly_right` are right up to a random place, and the run fails if one of its cells accepted none, or if another
drafter drafted none. So it does if nothing that lookahead prepared was used, or no verification that was sent ahead.
What has been compared is kept in results/equality.json and, for the same commit and model, not done again.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict

import httpx

from benchmarks import report
from testing.equality import (
    AHEAD,
    FACTORS,
    LOOKS_AHEAD,
    MAX_TOKENS,
    PROMPTS,
    Reference,
    compare,
    covering_array,
    running,
    unproven,
)

COUNTS = ("drafted", "accepted", *AHEAD)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--again", action="store_true", help="forget earlier results")
    parser.add_argument("--max-minutes", type=float, default=60.0, help="stop after this long; run again to go on")
    parser.add_argument("--cells", type=int, help="only the first so many cells")
    parser.add_argument("--drafters", nargs="+", choices=FACTORS["drafter"], default=FACTORS["drafter"])
    options = parser.parse_args()
    cells = [cell for cell in covering_array() if cell.drafter in options.drafters][: options.cells]
    until = time.monotonic() + 60 * options.max_minutes
    with running() as services:
        client = services.client
        target = httpx.get(f"{services.target.url}/v1/model", trust_env=False).json()["fingerprint"]
        key = {"commit": report.commit(), "target": target}
        found = report.read("equality")
        if options.again or any(found.get(name) != value for name, value in key.items()):
            found = {**key, "cells": {}}
        reference = Reference(client)
        for cell in cells:
            if cell.name not in found["cells"] and time.monotonic() < until:
                result = found["cells"][cell.name] = compare(client, reference, cell, PROMPTS)
                report.write("equality", found)
                counts = f"accepted {result['accepted']} of {result['drafted']}"
                ahead = f"{result['prepared']} prepared, {result['ahead']} verified ahead"
                seen = sum(one.name in found["cells"] for one in cells)
                print(f"{seen}/{len(cells)} {cell.name}: {counts}, {ahead}", flush=True)
    done = {cell: found["cells"][cell.name] for cell in cells if cell.name in found["cells"]}
    rows = [
        {**asdict(cell), **{key: r[key] for key in COUNTS}, "same": not r["differences"]} for cell, r in done.items()
    ]
    title = f"{len(done)} of {len(cells)} cells, {len(PROMPTS)} prompts of {MAX_TOKENS} tokens each, {key['commit']}"
    report.show(title, rows)
    missing = unproven(done)
    if any(cell.drafter in LOOKS_AHEAD for cell in done) and not sum(r["ahead"] for r in done.values()):
        missing.append("no verification that was sent ahead was used")
    print(", ".join(f"{key} {sum(row[key] for row in rows)}" for key in COUNTS))
    print("".join(f"{line}\n" for line in missing), end="")
    sys.exit(bool(missing) or any(result["differences"] for result in done.values()))


if __name__ == "__main__":
    main()
