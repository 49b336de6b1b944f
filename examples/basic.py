"""A chat, its statistics, a list of prompts as one batch.

python examples/basic.py [TARGET [DRAFT]]
"""

import sys

from tandem import Tandem


def main(target: str = "SmolLM2-135M-Instruct", draft: str = "auto") -> None:
    with Tandem(target, draft=draft) as t:
        answer = t.chat([{"role": "user", "content": "Name three rivers."}], temperature=0, max_tokens=48)
        print(answer.text)
        stats = answer.stats
        print(
            f"{stats.completion_tokens} tokens at {stats.tokens_per_second:.1f} a second, "
            f"{stats.tokens_per_round:.2f} a round, {stats.acceptance_rate:.0%} of the drafts accepted"
        )
        capitals = [f"The capital of {country} is" for country in ("France", "Japan", "Kenya", "Peru")]
        for prompt, found in zip(capitals, t.generate(capitals, temperature=0, max_tokens=8), strict=True):
            print(prompt + found.text)


if __name__ == "__main__":
    main(*sys.argv[1:])
