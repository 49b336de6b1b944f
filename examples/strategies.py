"""The four strategies on one prompt: which of them keep the target's text, and what each accepts.

python examples/strategies.py [TARGET [DRAFT]]
"""

import sys

from tandem import Tandem

PROMPT = "Write a short story about a lighthouse."


def main(target: str = "SmolLM2-135M-Instruct", draft: str = "auto", tokens: int = 48) -> None:
    with Tandem(target, draft=draft) as t:
        options = {"max_tokens": tokens, "temperature": 0.7, "seed": 7}
        plain = t.chat(PROMPT, speculative=False, **options)
        for strategy in ("deterministic", "probabilistic", "greedy", "threshold"):
            answer = t.chat(PROMPT, strategy=strategy, draft_tokens=4, adaptive_speculation=False, **options)
            same = "the plain text" if answer.text == plain.text else "another text"
            lossless = "lossless" if answer.raw["tandem"]["lossless"] else "not lossless"
            print(f"{strategy:14} {answer.stats.acceptance_rate:4.0%} accepted, {lossless}, {same}")


if __name__ == "__main__":
    main(*sys.argv[1:])
