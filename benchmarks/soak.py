"""Mixed traffic while a worker is killed every minute: no wrong text, no hung request, flat memory.

    python -m benchmarks.soak --minutes 10 [--model FOLDER] [--engine llama_cpp]

Two targets and two draft workers in bitwise mode behind one gateway, with lookahead. Every answer is compared with
plain decoding's from before the first kill; a killed worker is started again at once. Growth is the memory of a process
at the end over that after a quarter of the time; a worker's in its longest life between kills. With `--engine
llama_cpp` the targets run the bundled model's own GGUF file there, and the draft model stays on torch. With `--pass-ms`
and `--rtt` the targets are slow and far away, so that what is prepared is used, and verifications are in flight.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import report
from engines.bundled import bundled_gguf
from testing.models import BUNDLED, bundled, truncated
from testing.soak import soak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--every", type=float, default=60.0, help="seconds between kills")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--model", default=BUNDLED)
    parser.add_argument("--engine", choices=["torch", "llama_cpp"], default="torch", help="of the targets")
    parser.add_argument("--draft", help="a draft model; a half of the target's layers if none is named")
    parser.add_argument("--pass-ms", type=float, default=0.0, help="a target's pass lasts so long (at least)")
    parser.add_argument("--rtt", type=float, default=0.0, help="milliseconds to the targets")
    options = parser.parse_args()
    model = bundled() if options.model == BUNDLED else Path(options.model)
    tally = soak(
        bundled_gguf(print) if options.engine == "llama_cpp" else model,
        options.draft or truncated(model),
        60 * options.minutes,
        streams=options.streams,
        every=options.every,
        tokens=options.tokens,
        engine=options.engine,
        pass_ms=options.pass_ms,
        rtt_ms=options.rtt,
    )
    row = {**dict(tally.outcomes), "tokens": tally.tokens, "kills": tally.kills, "gateway's growth": tally.growth}
    row |= {
        "prepared tokens used": tally.prepared,
        "verifications ahead used": tally.ahead,
        **{f"{name}'s growth": ratio for name, ratio in tally.growths.items()},
    }
    report.show(f"{options.minutes:g} minutes", [row])
    print(report.write("soak", {**row, "memory": tally.memory, "wrong_answers": tally.wrong[:20]}))
    sys.exit(bool(tally.outcomes["wrong"] or tally.outcomes["hung"] or not tally.outcomes["right"]))


if __name__ == "__main__":
    main()
