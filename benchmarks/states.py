"""Going back in a model with recurrent states, by feeding again or by position: `python -m benchmarks.states`.

A round feeds a certain token and a draft; after a rejection the next round restores the snapshot behind the certain
token, and feeds what was accepted again in front of its own tokens. That is what the engine does. The other way is to
keep the states behind every token of the draft: then nothing is fed again, but the layers have to hand out their states
token by token, and each is copied. Both are compared with a round that goes back over nothing; random models of the
families' shapes, medians of interleaved rounds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM

from benchmarks import report
from engines.model_building import build_model
from engines.runtime.rows import Row
from engines.torch.runner import Runner

CONTEXT = 200
DRAFT = 5
SHAPE: dict[str, Any] = {
    "vocab_size": 16_384, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 12,
    "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 1024, "tie_word_embeddings": True,
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen 3.5": ("Qwen3_5TextConfig", {
        "head_dim": 64, "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "layer_types": [*["linear_attention"] * 3, "full_attention"] * 3,
    }),
    "Falcon-H1": ("FalconH1Config", {
        "head_dim": 64, "mamba_d_ssm": 1024, "mamba_n_heads": 16, "mamba_d_head": 64, "mamba_d_state": 128,
        "mamba_n_groups": 1,
    }),
    "LFM 2": ("Lfm2Config", {"layer_types": [*["conv"] * 3, "full_attention"] * 3}),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    table = [_measured(name, config, more, options.repeats) for name, (config, more) in MODELS.items()]
    title = (
        f"{options.threads} threads; rounds of 1 + {DRAFT} tokens, compared with one that follows a draft kept whole"
    )
    report.show(title, table)
    report.write("states", {"rounds": table})


def _measured(name: str, config: str, more: dict[str, Any], repeats: int) -> dict[str, Any]:
    torch.manual_seed(0)
    described = getattr(transformers, config)(**{**SHAPE, **more})
    model = build_model(AutoModelForCausalLM.from_config, described, dtype=torch.float32)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    runner = Runner(model, 1, 512)
    recurrent = runner._recurrent
    assert recurrent is not None
    prompt = list(range(CONTEXT))
    draft = list(range(500, 501 + DRAFT))

    def again(accepted: int) -> float:
        """A round after one of whose draft so many were accepted; the round before it is not timed."""
        runner.forward([Row(0, CONTEXT, draft)])
        return _seconds(lambda: runner.forward([Row(0, CONTEXT + 1 + accepted, draft)]))

    def by_position() -> float:
        """A round in which the recurrent layers take the tokens one by one; copies come on top."""
        runner.forward([Row(0, CONTEXT, draft)])
        recurrent._stepwise = True
        seconds = _seconds(lambda: runner.forward([Row(0, CONTEXT + 1 + DRAFT, draft)]))
        recurrent._stepwise = False
        return seconds

    runner.forward([Row(0, 0, prompt, logits_from=CONTEXT)])
    states = [tensor.clone() for tensor in recurrent._slots[0].snapshots[-1].states.values()]
    ways: dict[str, Callable[[], float]] = {f"{kept}": partial(again, kept) for kept in range(DRAFT + 1)}
    ways |= {"by position": by_position, "copy": lambda: _seconds(lambda: [tensor.clone() for tensor in states])}
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(repeats + 1):
        for way, measure in ways.items():
            times[way].append(measure())
    found = {way: 1000 * median(seconds[1:]) for way, seconds in times.items()}
    plain = found[f"{DRAFT}"]
    size = sum(tensor.nbytes for tensor in states)
    line: dict[str, Any] = {"model": f"{name}, {parameters / 1e6:.0f}M", "all kept, ms": plain}
    line |= {f"again {n}": found[f"{n}"] / plain for n in range(DRAFT)}
    copies = (1 + DRAFT) * found["copy"]
    line |= {"one by one": found["by position"] / plain, "state, MiB": size / 2**20, "copies of a round, ms": copies}
    return line


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
