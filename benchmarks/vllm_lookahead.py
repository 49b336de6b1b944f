"""Does lookahead pay for a plain `vllm serve` with Tandem's proposer? A real pair, on CPUs or on a GPU.

    python -m benchmarks.vllm_lookahead --step-ms 150 --draft-pass-ms 12 --streams 1 4 8     # CPUs
    python -m benchmarks.vllm_lookahead --target FILE.gguf --draft FILE.gguf --dtype bfloat16 --draft-device cuda \
        --memory-gb 8 --step-ms 25 --streams 1 8 32 --tokens 192         # a GPU; cuda:1 if there are two

One vLLM, whose steps last --step-ms at least (benchmarks/timed_proposer.py), and one draft worker, whose passes last
--draft-pass-ms at least (testing/slow_worker.py; 0: as they are). The same prompts are answered in each of --modes, in
an order that changes: `off`, `ahead` (what is not there is drawn), `there` (of that one token), `on` (the better of
both), `auto` (the best of all three). Milliseconds a token are of the tokens after the first, the median over answers.
A step is the mean time from one call of the proposer to the next, of steps with all streams in them; `waiting` is what
vLLM waited for drafts. A hit is a call of the draft worker for whose context something was prepared. In bfloat16 texts
may differ as vLLM's own do. Needs vLLM and Tandem's requirements for a worker (docs/vllm.md).
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.synthetic_target import PROPOSER
from benchmarks.vllm_server import serve_vllm
from config.pairs import BUNDLED_DRAFT
from engines.models import resolve_model
from testing.client import Answer, Client
from testing.models import BUNDLED
from testing.processes import ROOT, Process, Stack
from testing.prompts import KINDS, human_eval

MODES = ("off", "ahead", "there", "on", "auto")
HEADER = (
    f"{'streams':>7} {'lookahead':>9} {'ms/token':>8} {'over off':>8}   {'ms/step':>8} {'waiting':>8} "
    f"{'tok/row':>7} {'no draft':>8}   {'hits':>5} {'prepared':>8} {'used':>6}"
)


@dataclass
class Rig:
    vllm: Client
    draft: Client
    mode: Path
    clock: Path


@dataclass
class Cell:
    """What came of one mode with so many streams."""

    answers: list[Answer] = field(default_factory=list)
    spans: list[tuple[float, float]] = field(default_factory=list)
    counted: dict[str, float] = field(default_factory=dict)

    def row(self, rig: Rig, streams: int, mode: str, off: float | None) -> tuple[str, float]:
        each = median(answer.seconds_a_token for answer in self.answers)
        lines = [tuple(map(float, line.split())) for line in rig.clock.read_text().splitlines() if line.count(" ") == 4]
        full = [
            line for line in lines if line[3] == streams and any(began < line[0] < ended for began, ended in self.spans)
        ]
        step = mean(line[1] + line[2] for line in full) if full else float("nan")
        waiting = mean(line[2] for line in full) if full else float("nan")
        empty = sum(line[4] == 0 for line in full) / max(1, len(full))
        hits = self.counted["hit"] / max(1.0, self.counted["hit"] + self.counted["miss"])
        text = (
            f"{streams:7} {mode:>9} {1e3 * each:8.2f} {(off or each) / each:8.2f}   {1e3 * step:8.2f} "
            f"{1e3 * waiting:8.2f} {step / each:7.2f} {empty:8.0%}   {hits:5.2f} {self.counted['prepared']:8.0f} "
            f"{self.counted['used']:6.0f}"
        )
        return text, each


def counters(draft: Client) -> dict[str, float]:
    page = draft.metrics()
    names = {"hit": "calls_total", "miss": "calls_total", "prepared": "tokens_total", "used": "tokens_total"}
    return {
        label: sum(
            value
            for key, value in page.items()
            if key.startswith(f"tandem_draft_lookahead_{name}") and f'"{label}"' in key
        )
        for label, name in names.items()
    }


def ask(rig: Rig, cell: Cell, mode: str, group: list[list[int]], tokens: int) -> list[str]:
    """The texts of a group of prompts, answered at a time."""
    rig.mode.write_text(mode)
    before, began = counters(rig.draft), time.time()

    def one(prompt: list[int]) -> Answer:
        return rig.vllm.complete(prompt, stream=True, max_tokens=tokens, temperature=0.0, ignore_eos=True)

    with ThreadPoolExecutor(len(group)) as pool:
        answers = list(pool.map(one, group))
    cell.spans.append((began, time.time()))
    for name, value in counters(rig.draft).items():
        cell.counted[name] = cell.counted.get(name, 0.0) + value - before[name]
    cell.answers += answers
    return [answer.text for answer in answers]


def prompts(target: str, kind: str) -> list[list[int]]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(resolve_model(target).folder)
    if kind == "humaneval":
        return [tokenizer(text)["input_ids"] for _, text in human_eval()]
    texts = KINDS[kind] if kind in KINDS else [text for texts in zip(*KINDS.values(), strict=True) for text in texts]
    texts = [*texts, *(f"{text} (Version {number}.)" for number in range(2, 16) for text in texts)]
    chats = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=True, return_dict=False
        )
        for text in texts
    ]
    return [list(ids) for ids in chats]


def start(stack: Stack, options: argparse.Namespace) -> tuple[Process, Process, dict[str, str]]:
    variables = {
        "TIMED_PROPOSER_LOG": str(stack.logs / "steps.log"),
        "TIMED_PROPOSER_MODE": str(stack.logs / "mode"),
        "TIMED_PROPOSER_STEP_MS": str(options.step_ms),
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    Path(variables["TIMED_PROPOSER_MODE"]).write_text("off")
    Path(variables["TIMED_PROPOSER_LOG"]).touch()
    settings: dict[str, Any] = {
        "model": options.draft, "context_length": 2048, "slots": max(options.streams) + 1, "history_mb": 0,
        "threads": options.threads, "device": options.draft_device,
    }  # fmt: skip
    settings = {name: value for name, value in settings.items() if value is not None}
    draft = (
        stack.slow("draft", options.draft_pass_ms, **settings)
        if options.draft_pass_ms
        else stack.draft(settings.pop("model"), **settings)
    )
    draft.wait_ready(options.start_seconds)
    arguments: dict[str, Any] = {
        "dtype": options.dtype, "max_model_len": 2048, "max_num_seqs": 32,
        "kv_cache_memory_bytes": int(options.memory_gb * 2**30),
        "speculative_config": {"method": "custom_class", "model": PROPOSER, "num_speculative_tokens": options.gamma},
        "additional_config": {"tandem": {"draft_url": [draft.url]}},
    }  # fmt: skip
    if options.deadline_ms is not None:
        arguments["additional_config"]["tandem"]["deadline_ms"] = options.deadline_ms
    if options.dtype == "float32":
        arguments |= {"enforce_eager": True, "block_size": 32}
        variables |= {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "OMP_NUM_THREADS": str(options.threads),
            "OMP_WAIT_POLICY": "PASSIVE",
        }
    else:
        arguments["gpu_memory_utilization"] = 0.8
    vllm = serve_vllm(stack, resolve_model(options.target).folder, arguments, options.start_seconds, **variables)
    return vllm, draft, variables


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default=BUNDLED, help="the bundled model, a folder or a GGUF file")
    parser.add_argument("--draft", default=BUNDLED_DRAFT)
    parser.add_argument("--draft-device", help="cuda:1, where vLLM has the other")
    parser.add_argument("--dtype", default="float32", help="vLLM's: bfloat16 on a GPU")
    parser.add_argument("--memory-gb", type=float, default=1.0, help="vLLM's keys and values")
    parser.add_argument("--threads", type=int, default=1, help="of each, on CPUs")
    parser.add_argument("--step-ms", type=float, default=0.0)
    parser.add_argument("--draft-pass-ms", type=float, default=0.0)
    parser.add_argument("--deadline-ms", type=float, help="the proposer's; none: half a step")
    parser.add_argument("--gamma", type=int, default=5)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=["off", "ahead", "there", "auto"])
    parser.add_argument("--kind", choices=("humaneval", "mixed", *KINDS), default="mixed")
    parser.add_argument("--groups", type=int, default=3, help="of prompts, each with a prompt a stream")
    parser.add_argument("--warm", type=int, default=1, help="groups that are answered first and do not count")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--start-seconds", type=float, default=400.0)
    parser.add_argument("--folder", type=Path, help="where logs go, and stay")
    options = parser.parse_args()
    with Stack(options.folder or Path(tempfile.mkdtemp(prefix="vllm-lookahead-"))) as stack:
        vllm, draft, variables = start(stack, options)
        mode_file, clock = Path(variables["TIMED_PROPOSER_MODE"]), Path(variables["TIMED_PROPOSER_LOG"])
        rig = Rig(Client(vllm.url, timeout=600), Client(draft.url), mode_file, clock)
        asked = prompts(options.target, options.kind)
        print(f"steps of {options.step_ms:g} ms, draft passes of {options.draft_pass_ms:g} ms; logs in {stack.logs}")
        print(HEADER, flush=True)
        differing = total = 0
        for streams in options.streams:
            cells = {mode: Cell() for mode in options.modes}
            for group in range(options.warm + options.groups):
                if group == options.warm:
                    cells = {mode: Cell() for mode in options.modes}
                own = [asked[(group * streams + place) % len(asked)] for place in range(streams)]
                turn = group % len(cells)
                order = [*options.modes[turn:], *options.modes[:turn]]
                texts = {mode: ask(rig, cells[mode], mode, own, options.tokens) for mode in order}
                differing += sum(len(set(found)) > 1 for found in zip(*texts.values(), strict=True))
                total += streams
            off: float | None = None
            for mode in options.modes:
                line, each = cells[mode].row(rig, streams, mode, off)
                off = each if mode == "off" else off
                print(line, flush=True)
        print(f"texts that differ between modes: {differing} of {total}")
        said = [
            line for line in (stack.logs / "vllm.log").read_text(errors="replace").splitlines() if "Tandem:" in line
        ]
        print(*said[-8:], sep="\n")


if __name__ == "__main__":
    main()
