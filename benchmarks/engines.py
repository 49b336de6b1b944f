"""tokens/s of vLLM plain, vLLM's own speculation, and Tandem's ways, with one pair of models on HumanEval prompts.

    python -m benchmarks.engines --target FOLDER --draft FOLDER [--rows plain,draft_model,…]

Run it where vLLM is installed (docs/vllm.md). Greedy, float32, one stream; each row starts its own servers, is measured
alone, and its texts are compared with those of the first row. Prompts and draft tokens are the same for all.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks import report
from benchmarks.vllm_server import VARIABLES, serve_vllm
from testing.client import Answer, Client
from testing.processes import Process, Stack
from testing.prompts import human_eval

PROPOSER = "engines.vllm.proposer.TandemProposer"


@dataclass(frozen=True, slots=True)
class Ways:
    """Each way starts servers, and yields the one to ask and a request's speculation settings (None: for vLLM)."""

    options: argparse.Namespace

    @contextmanager
    def plain(self, stack: Stack) -> Iterator[tuple[Process, Any]]:
        """vLLM."""
        yield self._vllm(stack), None

    @contextmanager
    def draft_model(self, stack: Stack) -> Iterator[tuple[Process, Any]]:
        """vLLM's own speculation with a draft model."""
        yield self._vllm(stack, method="draft_model", model=self.options.draft), None

    @contextmanager
    def ngram(self, stack: Stack) -> Iterator[tuple[Process, Any]]:
        """vLLM's own prompt lookup."""
        yield self._vllm(stack, method="ngram", prompt_lookup_min=2, prompt_lookup_max=4), None

    @contextmanager
    def serve_proposer(self, stack: Stack) -> Iterator[tuple[Process, Any]]:
        """Plain `vllm serve` with Tandem's proposer, and a draft worker."""
        draft = self._draft(stack, self.options.draft)
        additional = {"tandem": {"draft_url": [draft.url], "deadline_ms": self.options.deadline_ms}}
        yield self._vllm(stack, {"additional_config": additional}, method="custom_class", model=PROPOSER), None

    @contextmanager
    def tandem_vllm(self, stack: Stack) -> Iterator[tuple[Process, Any]]:
        """Tandem's gateway, a vLLM target that drives the rounds, and a draft worker."""
        draft = self._draft(stack, self.options.draft)
        settings = {"draft_workers": [draft.url], "draft_deadline_ms": self.options.deadline_ms}
        yield self._tandem(stack, draft, self._vllm_target(stack, **settings)), self._fixed()

    @contextmanager
    def tandem_vllm_gateway(self, stack: Stack) -> Iterator[tuple[Process, Any]]:
        """Tandem's gateway driving the rounds of a vLLM target."""
        draft = self._draft(stack, self.options.draft)
        yield self._tandem(stack, draft, self._vllm_target(stack)), self._fixed()

    @contextmanager
    def tandem_torch_plain(self, stack: Stack) -> Iterator[tuple[Process, Any]]:
        """Tandem's torch engine without speculation."""
        yield self._tandem(stack, None, self._torch_target(stack)), {"enabled": False}

    @contextmanager
    def tandem_torch(self, stack: Stack) -> Iterator[tuple[Process, Any]]:
        """Tandem's torch engine and a draft worker, γ adaptive, as shipped."""
        draft = self._draft(stack, self.options.draft)
        yield self._tandem(stack, draft, self._torch_target(stack)), {}

    @contextmanager
    def tandem_torch_lookup(self, stack: Stack) -> Iterator[tuple[Process, Any]]:
        """Tandem's torch engine and prompt lookup, γ adaptive, as shipped."""
        yield self._tandem(stack, stack.draft("lookup"), self._torch_target(stack)), {}

    @property
    def _eager(self) -> dict[str, Any]:
        return {} if self.options.compile else {"enforce_eager": True}

    def _fixed(self) -> dict[str, Any]:
        return {"draft_tokens": self.options.draft_tokens, "adaptive_speculation": False}

    def _vllm(self, stack: Stack, more: dict[str, Any] | None = None, **speculative: Any) -> Process:
        arguments: dict[str, Any] = {
            "dtype": "float32",
            "max_model_len": self.options.context_length,
            "max_num_seqs": 8,
            "block_size": 32,
            **self._eager,
            **(more or {}),
        }
        if speculative:
            arguments["speculative_config"] = {"num_speculative_tokens": self.options.draft_tokens, **speculative}
        return serve_vllm(stack, self.options.target, arguments, self.options.start_seconds, VLLM_CPU_KVCACHE_SPACE="1")

    def _vllm_target(self, stack: Stack, **settings: Any) -> Process:
        arguments = {"block_size": 32, "max_num_seqs": 8, **self._eager}
        return stack.target(
            self.options.target,
            engine="vllm",
            vllm_args=arguments,
            memory_gb=1,
            dtype="float32",
            context_length=self.options.context_length,
            **settings,
        )

    def _torch_target(self, stack: Stack) -> Process:
        return stack.target(self.options.target, slots=2, context_length=self.options.context_length)

    def _draft(self, stack: Stack, model: str) -> Process:
        return stack.draft(model, slots=2, context_length=self.options.context_length)

    def _tandem(self, stack: Stack, draft: Process | None, target: Process) -> Process:
        waits: dict[str, Any] = {"draft_timeout_seconds": 60, "verify_timeout_seconds": 300}
        return stack.gateway([target.url], [draft.url] if draft is not None else [], **waits)


ROWS = [name for name in vars(Ways) if not name.startswith("_") and name != "options"]


def measure(client: Client, prompts: list[str], tokens: int, speculative: Any) -> list[Answer]:
    options: dict[str, Any] = {"max_tokens": tokens, "temperature": 0.0, "ignore_eos": True, "stream": True}
    if speculative is not None:
        options["speculative"] = speculative
    client.complete(prompts[0], **{**options, "max_tokens": 4})
    return [client.complete(prompt, **options) for prompt in prompts]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, help="a model's folder")
    parser.add_argument("--draft", required=True, help="a model's folder")
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--prompts", type=int, default=3, help="HumanEval problems, spread over all 164")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--draft-tokens", type=int, default=4)
    parser.add_argument("--context-length", type=int, default=1024)
    parser.add_argument("--deadline-ms", type=float, default=5000.0, help="how long a step of vLLM waits for drafts")
    parser.add_argument("--compile", action="store_true", help="let vLLM compile its models, minutes for every row")
    parser.add_argument("--start-seconds", type=float, default=300.0)
    options = parser.parse_args()
    problems = [prompt for _, prompt in human_eval()]
    prompts = problems[:: len(problems) // options.prompts][: options.prompts]
    ways = Ways(options)
    rows: list[dict[str, Any]] = []
    reference: list[str] = []
    for name in options.rows.split(","):
        way: Callable[[Stack], Any] = getattr(ways, name)
        began = time.monotonic()
        with Stack() as stack, way(stack) as (server, speculative):
            for process in stack.processes:
                if process.name != "vllm":
                    process.wait_ready(options.start_seconds)
            started = time.monotonic() - began
            with Client(server.url, timeout=900) as client:
                answers = measure(client, prompts, options.tokens, speculative)
        reference = reference or [answer.text for answer in answers]
        rows.append(
            {
                "way": name,
                "tokens/s": report.median([answer.tokens_per_second() for answer in answers]),
                "TTFT s": report.median([answer.ttft for answer in answers]),
                "same text": f"{sum(a.text == b for a, b in zip(answers, reference, strict=True))} of {len(answers)}",
                "started in s": started,
            }
        )
        print(rows[-1], flush=True)
    for row in rows:
        row["of plain"] = row["tokens/s"] / rows[0]["tokens/s"]
    report.show(f"{options.target} on HumanEval, {options.tokens} tokens a prompt, greedy", rows)
    print(report.write("engines", {"options": vars(options), "rows": rows, "variables": VARIABLES}))


if __name__ == "__main__":
    main()
