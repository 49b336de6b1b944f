"""What a draft token costs on a GPU: `python -m benchmarks.gpu_draft` from the repository's root.

A model in the shape of Qwen2.5-0.5B with random weights, bfloat16, drafts γ tokens for 1, 8 and 32 sequences: token by
token, as static passes captured in CUDA graphs, and these compiled; then the compiled ones through the engine's loop.
Prompts are read by an ordinary pass and by static ones. One sequence's draft is drawn alone, and with up to 15 apart,
each behind another part of its slot. First a small model in float32 must draft the same tokens all ways. Needs torch,
transformers and pydantic. Ends with status 1 if tokens differ.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from draft_worker.runtime.draft import draft_job
from engines.drawing import Limits
from engines.model_building import build_model
from engines.runtime.loop import EngineLoop
from engines.runtime.runner import ChainRow
from engines.runtime.slots import SlotCache
from engines.sampling.draw import draw
from engines.sampling.process import process
from engines.sampling.rows import SamplingRow
from engines.torch.chains import APART_PLACES, ChainRunner
from engines.torch.fused_linear import fuse_siblings
from engines.torch.runner import Row, Runner
from protocol.hashing import PrefixHashes
from protocol.messages import DraftRequest, Sampling

WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 1.0},
    "top-p": {"temperature": 0.8, "top_p": 0.9},
}

Pairs = tuple[tuple[int, int], ...]
"""Sequences, and their lengths."""
CASES: Pairs = ((1, 300), (8, 300), (32, 300), (1, 6_000), (8, 6_000))
PROMPTS: Pairs = ((1, 30), (1, 256), (8, 30), (8, 256), (32, 256), (1, 6_000))
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def synchronize() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def make_model(layers: int, vocabulary: int, dtype: torch.dtype) -> Any:
    config = Qwen2Config(
        hidden_size=896, intermediate_size=4864, num_hidden_layers=layers, num_attention_heads=14,
        num_key_value_heads=2, vocab_size=vocabulary, max_position_embeddings=32_768, tie_word_embeddings=True,
        rope_theta=1_000_000.0, initializer_range=0.05,
    )  # fmt: skip
    torch.manual_seed(0)
    with DEVICE:
        model = build_model(AutoModelForCausalLM.from_config, config, dtype=dtype)
    # Logits of a standard deviation of 4.5, as a trained model's: at 1.5 a top_p of 0.9 keeps tens of thousands of
    # tokens, more than a chain ranks.
    model.model.norm.weight.data.mul_(3.0)
    return model


def context(length: int, slot: int) -> list[int]:
    return torch.randint(0, 1_000, (length,), generator=torch.Generator().manual_seed(slot)).tolist()


def row_after(ids: list[int], sampling: Sampling) -> SamplingRow:
    return SamplingRow(sampling, sampling.seed, len(ids), ids, 0)


def token_by_token(runner: Runner, contexts: list[list[int]], sampling: Sampling, steps: int) -> list[list[int]]:
    texts = [list(ids) for ids in contexts]
    for _ in range(steps):
        rows = [Row(slot, len(ids) - 1, ids[-1:]) for slot, ids in enumerate(texts)]
        logits = torch.cat(runner.forward(rows))
        sampled = [row_after(ids, sampling) for ids in texts]
        for ids, token in zip(texts, draw(process(logits, sampled), sampled).tolist(), strict=True):
            ids.append(token)
    return [text[len(ids) :] for text, ids in zip(texts, contexts, strict=True)]


def chained(chains: ChainRunner, contexts: list[list[int]], sampling: Sampling, steps: int) -> list[list[int]]:
    rows = [
        ChainRow(Row(slot, len(ids) - 1, ids[-1:]), row_after(ids, sampling), steps)
        for slot, ids in enumerate(contexts)
    ]
    return chains.run(rows)


def apart(ids: list[int], count: int, sampling: Sampling, steps: int) -> list[ChainRow]:
    """Chains that leave the sequence at other places, each with a token of its own."""
    others = [[*ids[: len(ids) - 1 - place], 1 + place] for place in range(count)]
    return [
        ChainRow(Row(0, len(other) - 1, other[-1:]), row_after(other, sampling), steps, [], apart=True)
        for other in others
    ]


def check_apart(runner: Runner, chains: ChainRunner, length: int, sampling: Sampling) -> bool:
    (ids,) = prepare(runner, 1, length)
    rows = apart(ids, 15, sampling, 12)
    texts = [[*ids[: row.row.start], *row.row.token_ids] for row in rows]
    found = chains.run([ChainRow(Row(0, len(ids) - 1, ids[-1:]), row_after(ids, sampling), 12), *rows])
    again = []
    for text in (ids, *texts):
        runner.forward([Row(1, 0, text[:-1], logits_from=len(text) - 1)])
        again += chains.run([ChainRow(Row(1, len(text) - 1, text[-1:]), row_after(text, sampling), 12)])
    return found == again


def prepare(runner: Runner, sequences: int, length: int) -> list[list[int]]:
    contexts = [context(length + slot, slot) for slot in range(sequences)]
    for slot, ids in enumerate(contexts):
        runner.forward([Row(slot, 0, ids[:-1], logits_from=len(ids) - 1)])
    return contexts


def milliseconds(call: Callable[[], Any], repeats: int) -> float:
    times = []
    for _ in range(repeats + 3):
        synchronize()
        began = time.perf_counter()
        call()
        synchronize()
        times.append(time.perf_counter() - began)
    return median(times[3:]) * 1e3


def check() -> bool:
    """Float32, four layers: the same tokens in all ways."""
    runner = Runner(make_model(4, 2_000, torch.float32), num_slots=8, slot_length=1_024, apart=APART_PLACES)
    fuse_siblings(runner.model)
    equal = True
    for compiled in (False, True):
        chains = ChainRunner(runner, compiled=compiled)
        for sequences, length in ((1, 40), (3, 200), (8, 900)):
            contexts = prepare(runner, sequences, length)
            for name, fields in WAYS.items():
                sampling = Sampling(**fields, seed=3)
                got = chained(chains, contexts, sampling, 16)
                same = got == token_by_token(runner, contexts, sampling, 16)
                print(f"check: compiled={compiled} {sequences} × {length} {name}: {'equal' if same else 'DIFFERENT'}")
                equal &= same
        for name, fields in WAYS.items():
            same = check_apart(runner, chains, 300, Sampling(**fields, seed=3))
            print(f"check: compiled={compiled} 15 apart {name}: {'equal' if same else 'DIFFERENT'}")
            equal &= same
    return equal


async def through_loop(loop: EngineLoop, contexts: list[list[int]], steps: int, rounds: int) -> float:
    """Median milliseconds of a round in which every sequence drafts `steps` tokens and keeps all of them."""
    limits = Limits(frozenset(), 2_048)
    texts = [list(ids) for ids in contexts]
    times = []
    for number in range(rounds):
        jobs = []
        for index, ids in enumerate(texts):
            request = DraftRequest.model_validate(
                {
                    "protocol": 1, "session_id": f"s{index}", "round": number, "choice_index": 0, "deadline_ms": 10_000,
                    "context": {"start": 0, "token_ids": ids, "prefix_hash": PrefixHashes().at(0)},
                    "num_prompt_tokens": 8, "max_tokens": 100, "sampling": {"temperature": 0.0, "seed": 1},
                    "draft_tokens": steps,
                }
            )  # fmt: skip
            jobs.append(draft_job(request, ids, index, limits, 64))
        began = time.perf_counter()
        drafts = await asyncio.gather(*(loop.run(job, float("inf")) for job in jobs))
        times.append(time.perf_counter() - began)
        for ids, draft in zip(texts, drafts, strict=True):
            ids += [*draft.candidates[0].token_ids, 7]
    return median(times[3:]) * 1e3


def reading(runner: Runner, chains: ChainRunner, sequences: int, length: int) -> tuple[float, float]:
    """Milliseconds in which prompts are read, by one ordinary pass and by static ones; no two are of one length."""
    lengths = itertools.count(length)

    def prompts() -> list[Row]:
        taken = [next(lengths) for _ in range(sequences)]
        return [Row(slot, 0, context(count, slot), logits_from=count) for slot, count in enumerate(taken)]

    return milliseconds(lambda: runner.forward(prompts()), 5), milliseconds(lambda: chains.read(prompts()), 5)


def profile(call: Callable[[], Any], steps: int) -> None:
    """The kernels of one call, the longest first, per step."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        call()
        synchronize()
    events = sorted(profiler.key_averages(), key=lambda event: -event.self_device_time_total)
    total = sum(event.self_device_time_total for event in events)
    count = sum(event.count for event in events)
    print(f"profile: {total / steps / 1e3:.3f} ms of kernels and {count / steps:.0f} kernels a step")
    for event in events[:16]:
        time_, number = event.self_device_time_total / steps, event.count / steps
        print(f"  {time_:8.1f} µs {number:6.1f} × {time_ / number:6.2f}  {event.key[:100]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--cases", type=int, default=len(CASES), help="only the first so many of them")
    parser.add_argument("--tiny", action="store_true", help="a dry run of this script, on CPU too")
    options = parser.parse_args()
    steps = options.steps
    print(torch.cuda.get_device_name() if DEVICE.type == "cuda" else "CPU", torch.__version__, flush=True)
    equal = check()
    batches: tuple[int, ...] = (1, 8, 32)
    layers, vocabulary, cases, prompts = 24, 151_936, CASES[: options.cases], PROMPTS
    if options.tiny:
        layers, vocabulary, cases, prompts, batches = 1, 2_000, ((1, 30), (8, 30)), ((8, 30),), (1, 8)
    runner = Runner(make_model(layers, vocabulary, torch.bfloat16), num_slots=32, slot_length=8_192, apart=APART_PLACES)
    print(f"{fuse_siblings(runner.model)} products of several layers each", flush=True)
    table = []
    chain_runners: dict[str, ChainRunner] = {}
    for name, compiled in (("graphs", False), ("graphs, compiled", True)):
        before, reserved, began = torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), time.perf_counter()
        chain_runners[name] = ChainRunner(runner, compiled=compiled)
        synchronize()
        more, pool = torch.cuda.memory_allocated() - before, torch.cuda.memory_reserved() - reserved
        print(
            f"{name}: made in {time.perf_counter() - began:.0f} s; "
            f"{more / 2**20:.0f} MiB held, {pool / 2**20:.0f} reserved"
        )
        sys.stdout.flush()
    for length in sorted({length for _, length in cases}):
        (ids,) = prepare(runner, 1, length)
        sampling = Sampling(temperature=0.0, seed=3)
        for count in (0, 3, 7, 15):
            rows = [
                ChainRow(Row(0, len(ids) - 1, ids[-1:]), row_after(ids, sampling), steps),
                *apart(ids, count, sampling, steps),
            ]
            took = [milliseconds(partial(chains.run, rows), options.repeats) for chains in chain_runners.values()]
            print(f"1 × {length} and {count} apart: {[round(ms / steps, 2) for ms in took]} ms a token", flush=True)
    for sequences, length in cases:
        contexts = prepare(runner, sequences, length)
        for way, fields in WAYS.items():
            sampling = Sampling(**fields, seed=3)
            ordinary = token_by_token(runner, contexts, sampling, steps)
            each: list[float] = []
            if way == "greedy":
                each.append(milliseconds(partial(token_by_token, runner, contexts, sampling, steps), 5) / steps)
            else:
                each.append(float("nan"))
            agreed = []
            for chains in chain_runners.values():
                each.append(milliseconds(partial(chained, chains, contexts, sampling, steps), options.repeats) / steps)
                got = chained(chains, contexts, sampling, steps)
                same = [sum(a == b for a, b in zip(x, y, strict=False)) for x, y in zip(got, ordinary, strict=True)]
                agreed.append(sum(same) / (steps * sequences))
            table.append((sequences, length, way, each, agreed))
            print(table[-1], flush=True)
    for sequences, length in prompts:
        ordinary_ms, static_ms = reading(runner, chain_runners["graphs, compiled"], sequences, length)
        print(
            f"reading {sequences} × {length}: {ordinary_ms:.1f} ms by an ordinary pass, {static_ms:.1f} by static ones"
        )
    contexts = prepare(runner, 1, 300)
    greedy = Sampling(temperature=0.0, seed=3)
    for chains in chain_runners.values() if DEVICE.type == "cuda" else ():
        profile(partial(chained, chains, contexts, greedy, steps), steps)
    loop = EngineLoop(runner, SlotCache(32, runner.copy), 64, 256, chains=chain_runners["graphs, compiled"])
    loop.start()
    for sequences in batches:
        contexts = [context(300 + slot, slot + 100 * sequences) for slot in range(sequences)]
        print(f"loop, {sequences}: {asyncio.run(through_loop(loop, contexts, steps, 40)) / steps:.2f} ms a token")
    loop.shutdown(1.0)
    print(f"\nms a draft token, γ = {steps}; same tokens as token by token in bfloat16 (random weights: near-ties)")
    print(f"{'batch':>5} {'context':>7} {'draw':8} {'plain':>7} {'graphs':>7} {'compiled':>8}   {'same':>5}")
    for sequences, length, way, (plain, graphs, compiled_), agreed in table:
        print(
            f"{sequences:5} {length:7} {way:8} {plain:7.2f} {graphs:7.2f} {compiled_:8.2f}   "
            f"{agreed[0]:.2f} {agreed[1]:.2f}"
        )
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
