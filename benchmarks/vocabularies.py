"""What drafting for another vocabulary costs: `python -m benchmarks.vocabularies` from the repository's root.

The draft worker's own time in a round beyond its model's: reading the new tokens, and making a draft the target's.
Between the bundled model's tokenizer, a SentencePiece one, and byte-level ones of 150,000 tokens (trained ones and what
joins two of them: their number matters, not what they say). A map is built once, when a draft worker meets a target.
"mask" is what shared ids add to each draw.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from tokenizers import Tokenizer

from draft_worker.vocabularies.sample import SAMPLE
from draft_worker.vocabularies.shared_ids import IdMap, IdReading
from draft_worker.vocabularies.shared_text import TextReading, stable
from draft_worker.vocabularies.speech import Speech
from protocol.worker_info import TokenizerInfo
from testing.models import bundled
from testing.vocabularies import llama_like, tokenizer_info

GAMMA = 5


def large(size: int, seed: int) -> TokenizerInfo:
    """A byte-level tokenizer of so many tokens: the bundled model's, and what joins two of them."""
    trained = json.loads((bundled() / "tokenizer.json").read_text())
    vocabulary: dict[str, int] = trained["model"]["vocab"]
    choose = random.Random(seed)
    merges = [pair if isinstance(pair, list) else pair.split(" ") for pair in trained["model"]["merges"]]
    while len(vocabulary) < size:
        one, other = choose.choice(merges), choose.choice(merges)
        first, second = "".join(one), "".join(other)
        if first + second not in vocabulary and first in vocabulary and second in vocabulary:
            vocabulary[first + second] = len(vocabulary)
            merges.append([first, second])
    trained["model"]["merges"] = merges
    return tokenizer_info(Tokenizer.from_str(json.dumps(trained)), None, "<|im_end|>")


def microseconds(work: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return median(times) * 1e6


def measure(target: Speech, draft: Speech, context_tokens: int, repeats: int) -> dict[str, float]:
    """Microseconds of one round after a context of so many tokens, in which γ tokens and one are new."""
    ids = (target.encode(SAMPLE) * (1 + context_tokens // 400))[:context_tokens]
    new = target.encode(" The committee met again on Friday and closed.")[: GAMMA + 1]
    drawn = draft.encode(" Nobody could agree whether")[:GAMMA]
    mapping = IdMap(target, draft, len(draft.spelled))
    by_ids, by_text = IdReading(mapping, draft.lead, None), TextReading(target, draft)

    def read_ids() -> None:
        by_ids.update(ids, len(ids))
        by_ids.update([*ids, *new], len(ids))
        by_ids.read[:]
        [mapping.to_target[token_id] for token_id in drawn]

    def read_text() -> None:
        by_text.update([*ids, *new], len(ids), 16)
        by_text.read()
        spoken = [draft.spell([token_id]) for token_id in drawn]
        now = by_text.tokens_of(b"".join(spoken))
        stable(now, by_text.tokens_of(b"".join(spoken[:-1])), spoken, target)
        by_text.update(ids, len(ids), 16)

    logits = torch.randn(1, len(draft.spelled))
    mask = mapping.columns
    return {
        "shared ids": microseconds(read_ids, repeats),
        "mask, a token": microseconds(lambda: mask.masked(logits), repeats),
        "shared text": microseconds(read_text, repeats),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--context", type=int, default=1_000, help="tokens of the target's context")
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--large", type=int, default=150_000, help="tokens of the large vocabularies")
    options = parser.parse_args()
    torch.set_num_threads(1)
    smollm = tokenizer_info(Tokenizer.from_file(str(bundled() / "tokenizer.json")), None, "<|im_end|>")
    llama = tokenizer_info(llama_like(_texts(), 8_000), "<s>", "</s>")
    infos = {"SmolLM2": smollm, "SentencePiece": llama, "large": large(options.large, 0)}
    infos["large too"] = large(options.large, 1)
    speeches: dict[str, Speech] = {}
    for name, info in infos.items():
        began = time.perf_counter()
        speeches[name] = Speech(info)
        print(f"{name}: {info.vocabulary.size} tokens, opened in {time.perf_counter() - began:.2f} s")
    for theirs, ours in [
        ("SmolLM2", "SentencePiece"),
        ("SmolLM2", "large"),
        ("large", "SmolLM2"),
        ("large", "large too"),
    ]:
        began = time.perf_counter()
        found = IdMap(speeches[theirs], speeches[ours], len(speeches[ours].spelled))
        built = time.perf_counter() - began
        took = measure(speeches[theirs], speeches[ours], options.context, options.repeats)
        said = ", ".join(f"{name} {value:.0f} µs" for name, value in took.items())
        print(f"target {theirs}, draft {ours}: {found.shared} shared, map in {built:.2f} s; a round: {said}")


def _texts() -> list[str]:
    return [SAMPLE, *(page.read_text() for page in sorted(Path("docs").glob("*.md")))]


if __name__ == "__main__":
    main()
