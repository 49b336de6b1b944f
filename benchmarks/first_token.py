"""What Tandem in process adds to the first token: `python -m benchmarks.first_token` from the repository's root.

The model alone: one transformers pass over the prompt, its likeliest token. Tandem: from the call of `stream` to the
first piece of text, through gateway, round loop and worker in this process, over the same tensors and with no drafts,
so that only Tandem's own work lies between the two. They take turns; no prompt is asked twice, so nothing is reused.
"""

from __future__ import annotations

import argparse
import time
from statistics import median, quantiles

from engines.model_building import build_model
from testing.models import bundled


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", type=int, nargs="*", default=[20, 200], help="lengths of the prompts")
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from tandem import Tandem

    folder = bundled()
    model = build_model(AutoModelForCausalLM.from_pretrained, folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with Tandem(model, tokenizer=tokenizer, draft=None, device="cpu") as t:
        for words in options.words:
            alone, served = [], []
            for repeat in range(options.repeats + 2):
                prompt = f"Story {words} {repeat}:" + " the sea was calm and" * (words // 5)
                ids = tokenizer(prompt, return_tensors="pt")
                began = time.perf_counter()
                with torch.inference_mode():
                    tokenizer.decode(model(**ids, logits_to_keep=1).logits[0, -1].argmax())
                alone.append(time.perf_counter() - began)
                began = time.perf_counter()
                pieces = t.stream(prompt, max_tokens=2, temperature=0)
                next(iter(pieces))
                served.append(time.perf_counter() - began)
                list(pieces)
            alone, served = alone[2:], served[2:]
            beyond = [1e3 * (two - one) for one, two in zip(alone, served, strict=True)]
            spread = quantiles(beyond, n=10)
            print(
                f"{ids['input_ids'].shape[1]} tokens: model alone {1e3 * median(alone):.1f} ms, Tandem "
                f"{1e3 * median(served):.1f} ms; beyond {median(beyond):.1f} ms ({spread[0]:.1f} to {spread[-1]:.1f})"
            )


if __name__ == "__main__":
    main()
