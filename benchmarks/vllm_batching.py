"""How often vLLM itself chooses another token in a batch than alone, by dtype: what no engine of ours can undo.

    python -m benchmarks.vllm_batching --model FOLDER --dtype bfloat16

Greedy. Each prompt is answered alone, then all at once; after the first difference two texts have nothing to compare,
so the rate is first differences over tokens up to there. Run it where vLLM is installed (docs/vllm.md).
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from benchmarks import report
from benchmarks.vllm_server import VARIABLES
from testing.models import BUNDLED, bundled
from testing.prompts import KINDS, SHORT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=BUNDLED)
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--tokens", type=int, default=48)
    options = parser.parse_args()
    os.environ.update({"VLLM_CPU_KVCACHE_SPACE": "1", **VARIABLES})
    model = str(bundled()) if options.model == BUNDLED else options.model
    rows = [measure(model, dtype, options.tokens) for dtype in options.dtype]
    report.show(f"{options.model}, greedy, alone against batched", rows)
    print(report.write("vllm_batching", {"rows": rows}))


def measure(model: str, dtype: str, tokens: int) -> dict[str, Any]:
    from vllm import LLM, SamplingParams

    prompts = [*SHORT, *(prompt for prompts in KINDS.values() for prompt in prompts)]
    engine = LLM(
        model, dtype=dtype, max_model_len=512, enforce_eager=True, block_size=32, enable_prefix_caching=False,
        max_num_seqs=len(prompts), disable_log_stats=True,
    )  # fmt: skip
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)

    def answers(asked: list[str]) -> list[list[int]]:
        return [list(found.outputs[0].token_ids) for found in engine.generate(asked, params, use_tqdm=False)]

    alone = [answers([prompt])[0] for prompt in prompts]
    together = answers(prompts)
    differ = compared = 0
    for one, other in zip(alone, together, strict=True):
        first = next((i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), None)
        differ += first is not None
        compared += len(one) if first is None else first + 1
    return {"dtype": dtype, "texts": len(prompts), "texts that differ": differ, "tokens compared": compared}


if __name__ == "__main__":
    main()
