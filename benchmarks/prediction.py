"""Predicted outputs: a variable is renamed in a file of 200 lines; tokens/s with `prediction` and without.

    python -m benchmarks.prediction [--target MODEL] [--tokens 512]

With and without alternate; the ratio's median is shown (aim: three times or more). The text must be the same.
"""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks import report
from testing.client import Client
from testing.models import BUNDLED
from testing.processes import Stack

LINES = 200


def source(lines: int = LINES) -> str:
    """A Python file of this many lines that uses one variable throughout."""
    written = ["total = 0", ""]
    number = 0
    while len(written) < lines:
        number += 1
        written += [f"def step_{number}(value):", f"    total = value * {number}", "    return total", "", ""]
    return "\n".join(written[:lines]) + "\n"


def run(client: Client, tokens: int, repeats: int) -> dict[str, Any]:
    old = source()
    new = old.replace("total", "amount")
    prompt = f"Rename the variable total to amount in this file. Answer with the whole file only.\n\n{old}"
    messages = [{"role": "user", "content": prompt}]
    # The answer is begun for it, so that a small model too writes the file.
    messages.append({"role": "assistant", "content": "\n".join(new.splitlines()[:17]) + "\n"})
    options: dict[str, Any] = {"max_tokens": tokens, "temperature": 0.0, "stream": True}
    options |= {"continue_final_message": True, "add_generation_prompt": False}
    ratios, found = [], {}
    for _ in range(repeats):
        plain = client.chat(messages, speculative={"enabled": False}, **options)
        for name, prediction in {"the new file": new, "the old file": old}.items():
            predicted = client.chat(messages, prediction={"type": "content", "content": prediction}, **options)
            ratios.append((name, predicted.tokens_per_second() / plain.tokens_per_second()))
            found[name] = {"same text": predicted.text == plain.text, **(predicted.speculation or {})}
    return {
        name: {"ratio": report.median([ratio for kind, ratio in ratios if kind == name]), **counts}
        for name, counts in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default=BUNDLED)
    parser.add_argument("--draft", default="lookup", help="the pair's drafter, used when the prediction has no match")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with Stack() as stack:
        target = stack.target(options.target)
        draft = stack.draft(options.draft)
        gateway = stack.gateway([target.url], [draft.url])
        stack.wait_ready()
        with Client(gateway.url, timeout=900) as client:
            client.chat("Hello", max_tokens=8)
            found = run(client, options.tokens, options.repeats)
    keys = ("ratio", "same text", "draft_acceptance_rate", "mean_acceptance_length")
    report.show("Predicted outputs", [{"predicted": name, **{k: row[k] for k in keys}} for name, row in found.items()])
    print(report.write("prediction", found))


if __name__ == "__main__":
    main()
