"""Does speculation pay here, and with which γ? The text is the same in every row; only the speed differs.

python examples/compare_draft_tokens.py [TARGET [DRAFT]]
"""

import sys

from tandem import Tandem

PROMPT = "Explain in a few sentences why the sky is blue."


def main(target: str = "SmolLM2-135M-Instruct", draft: str = "auto", tokens: int = 64) -> None:
    with Tandem(target, draft=draft) as t:
        options = {"max_tokens": tokens, "temperature": 0, "seed": 1}
        t.chat(PROMPT, **options)  # the first call warms up what all the others find warm
        plain = t.chat(PROMPT, speculative=False, **options)
        print(f"{'γ':>8} {'tokens/s':>9} {'tokens/round':>13} {'accepted':>9}")
        print(f"{'plain':>8} {plain.stats.tokens_per_second:9.1f} {1:13.2f} {'-':>9}")
        for gamma in (1, 2, 4, 6, 8, None):
            fixed = {} if gamma is None else {"draft_tokens": gamma, "adaptive_speculation": False}
            answer = t.chat(PROMPT, **fixed, **options)
            stats = answer.stats
            print(
                f"{gamma or 'adaptive':>8} {stats.tokens_per_second:9.1f} {stats.tokens_per_round:13.2f} "
                f"{stats.acceptance_rate:9.0%}{'' if answer.text == plain.text else '   another text!'}"
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
