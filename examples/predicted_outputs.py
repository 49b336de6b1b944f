"""A small change to a long text: what the answer will mostly repeat is given as its prediction, and becomes the draft.

python examples/predicted_outputs.py [TARGET]
"""

import sys

from tandem import Tandem

CODE = """def total(prices):
    result = 0
    for price in prices:
        result = result + price
    return result
"""


def main(target: str = "SmolLM2-135M-Instruct") -> None:
    with Tandem(target, draft="lookup") as t:
        request = f"Repeat this code exactly as it is:\n\n{CODE}"
        options = {"temperature": 0, "max_tokens": 64, "draft_tokens": 8, "adaptive_speculation": False}
        without = t.chat(request, **options)
        predicted = t.chat(request, prediction=CODE, **options)
        print(predicted.text)
        for name, answer in (("without", without), ("with", predicted)):
            print(f"{name} the prediction: {answer.stats.tokens_per_round:.2f} tokens a round")
        print("the same text" if predicted.text == without.text else "another text!")


if __name__ == "__main__":
    main(*sys.argv[1:])
