"""`tandem train-draft` from first to last: answers, training, the folder."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from torch import Tensor

from engines.errors import ModelError
from engines.model_building import build_model
from engines.models import ModelFiles, resolve_model
from engines.tokenizer import stop_token_ids
from engines.torch.loader import pick_device
from training.card import draw_curves, write_card
from training.corpus import Corpus
from training.data import Entry, read_data
from training.errors import TrainingError
from training.export import Precision, write_draft
from training.generation import generate, held_out_answers, own_texts
from training.processes import Processes
from training.prompts import Mixture, PromptSource
from training.sampler import Sampler
from training.student import Float32Head, default_layers, make_student, trained_state
from training.trainer import Recipe, train

ANSWERS = "answers"
HELD_OUT = "held_out.safetensors"
_HELD_OUT_TOKENS = 200
"""For each prompt to be held out, where the target has to ask itself."""
Stage = Literal["all", "generate", "train"]


@dataclass(frozen=True, slots=True)
class Job:
    """All settings of `tandem train-draft`. `vocabulary` None keeps the whole head; sizes are in tokens."""

    target: str
    data: Path | None
    out: Path
    held_out: Path | None = None
    layers: int = 3
    vocabulary: int | None = 8192
    tokens: int = 20_000_000
    generate_minutes: float | None = None
    sequences: int | None = None
    length: int = 768
    held_out_prompts: int = 32
    stage: Stage = "all"
    device: str = "auto"
    precision: Precision = "int8"
    mixture: Mixture = field(default_factory=Mixture)
    recipe: Recipe = field(default_factory=Recipe)
    processes: Processes = field(default_factory=Processes)


def run(job: Job, progress: Callable[[str], None]) -> Path:
    """Do the job; what an earlier run did in the same folder is not done again. Returns the folder.

    Raises:
        TrainingError, ModelError: for what can't be done.
    """
    processes = job.processes
    if not processes.main:
        progress = _silent
    work = job.out / "work"
    work.mkdir(parents=True, exist_ok=True)
    files = resolve_model(job.target, progress=progress)
    target, tokenizer, stops = load_target(files, processes.device(job.device))
    progress(f"target {files.id} on {target.device}")
    entries = read_data(job.data) if job.data is not None else []
    held, entries = _split(job, entries)
    if not entries and not tokenizer.chat_template:
        raise TrainingError(f"{files.id} has no chat template, so it can't ask itself questions: give it some --data")
    answers = _answers_of(work, processes.rank)
    if job.stage != "train" and not answers.exists():
        _generate(job, target, tokenizer, stops, entries, held, work, answers, progress)
    if job.stage == "generate":
        return job.out
    processes.wait_for([work / HELD_OUT, *(_answers_of(work, rank) for rank in range(processes.count))])
    parts = [Corpus.load(path) for path in sorted((work / ANSWERS).glob("*.safetensors"))]
    corpus = Corpus.joined(parts)
    held_out = Corpus.load(work / HELD_OUT)
    progress(f"{len(corpus):,} texts of {len(corpus.ids):,} tokens, {corpus.said:,} of them to learn from")
    kept, covered = kept_ids(corpus, job.vocabulary, target.config.get_text_config().vocab_size, stops)
    if kept is not None:
        kept = kept.to(target.device)
        progress(f"head cut to {len(kept):,} ids, {covered:.2%} of what is said")
    layers = default_layers(job.layers, target.config.get_text_config().num_hidden_layers)
    student = make_student(target, layers, kept)
    history = train(student, target, kept, corpus, held_out, job.recipe, work, progress)
    if not processes.main:
        return job.out
    write_draft(
        job.out,
        weights=trained_state(student),
        kept=kept,
        config=student.config,
        target=_lasting_name(job.target, files),
        embeddings=target.get_input_embeddings().weight,
        layers=layers,
        precision=job.precision,
    )
    write_card(job.out, _facts(job, files, layers, corpus, covered), history)
    if not draw_curves(job.out / "curves.png", history):
        progress("no curves.png: matplotlib is not installed (pip install -e '.[train]')")
    progress(f"draft written to {job.out}; tokens a round at the end: {history[-1]['tokens a round']}")
    return job.out


def _silent(message: str) -> None:
    """Only the main process speaks."""


def _answers_of(work: Path, rank: int) -> Path:
    return work / ANSWERS / f"{rank:03d}.safetensors"


def load_target(files: ModelFiles, device: str) -> tuple[Any, Any, list[int]]:
    """The target (bfloat16 on a GPU, float32 elsewhere), its tokenizer, and the ids that end its texts."""
    place = pick_device(device)
    kind = torch.bfloat16 if place.type == "cuda" else torch.float32
    try:
        target = build_model(
            transformers.AutoModelForCausalLM.from_pretrained,
            files.folder,
            dtype=kind,
            device_map={"": place},
            trust_remote_code=False,
            attn_implementation="sdpa",
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(files.folder, trust_remote_code=False)
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        raise ModelError(f"{files.id}: could not be loaded: {error}") from error
    target.requires_grad_(False)
    target.eval()
    head = target.get_output_embeddings()
    target.config.tie_word_embeddings = False
    target.set_output_embeddings(Float32Head(head.weight, getattr(head, "bias", None)))
    return target, tokenizer, stop_token_ids(tokenizer, target.config, target.generation_config)


def _lasting_name(given: str, files: ModelFiles) -> str:
    """How the draft's folder names its target: a path in full, so that it is found from anywhere."""
    path = Path(given).expanduser()
    return str(path.resolve()) if path.exists() else files.id


def kept_ids(corpus: Corpus, size: int | None, vocabulary: int, stops: list[int]) -> tuple[Tensor | None, float]:
    """The `size` most frequent ids, ascending, those that end an answer included; and their share of all tokens.

    None if `size` is None or the whole vocabulary.
    """
    if size is None or size >= vocabulary:
        return None, 1.0
    counts = corpus.token_counts(vocabulary)
    ranked = counts.astype(float)
    ranked[stops] = float("inf")
    chosen = ranked.argsort(kind="stable")[::-1][:size].copy()
    chosen.sort()
    return torch.from_numpy(chosen), float(counts[chosen].sum() / max(1, counts.sum()))


def _facts(job: Job, files: ModelFiles, layers: list[int], corpus: Corpus, covered: float) -> dict[str, Any]:
    recipe = job.recipe
    return {
        "target": files.id,
        "layers of the target it began as": ", ".join(map(str, layers)),
        "ids it can say": "all"
        if job.vocabulary is None
        else f"{job.vocabulary:,}, {covered:.2%} of what the target says",
        "weights": job.precision,
        "data": job.data.name if job.data is not None else "the target's own questions",
        "texts": f"{len(corpus):,}, {corpus.said:,} tokens of them to learn from",
        "loss": f"KL divergence and total variation, weight of the first {recipe.kl_first} falling to {recipe.kl_last}",
        "optimiser": f"AdamW, learning rate {recipe.learning_rate:g}, batches of {recipe.batch_tokens:,} tokens",
    }


def _split(job: Job, entries: list[Entry]) -> tuple[list[Entry], list[Entry]]:
    """Held-out prompts, and the rest: from the file given, else some of each kind of the data."""
    if job.held_out is not None:
        held = read_data(job.held_out)
        known = set(held)
        return held, [entry for entry in entries if entry not in known]
    order = list(entries)
    random.Random(job.recipe.seed).shuffle(order)
    by_kind: dict[str, list[Entry]] = {}
    for entry in order:
        by_kind.setdefault(entry.kind, []).append(entry)
    held = [entry for group in by_kind.values() for entry in group[: min(job.held_out_prompts, len(group) // 4)]]
    known = set(held)
    return held, [entry for entry in entries if entry not in known]


def _generate(
    job: Job,
    target: Any,
    tokenizer: Any,
    stops: list[int],
    entries: list[Entry],
    held: list[Entry],
    work: Path,
    answers: Path,
    progress: Callable[[str], None],
) -> None:
    processes = job.processes
    sequences = job.sequences or (1024 if target.device.type == "cuda" else 8)
    seed = job.recipe.seed + 1000 * processes.rank
    longest = job.length - min(64, job.length // 2)
    sampler = Sampler(target, sequences=sequences, length=job.length, stop_ids=stops, seed=seed)
    try:
        source = PromptSource(tokenizer, entries, job.mixture, seed, longest)
        if processes.main and not (work / HELD_OUT).exists():
            kept_back = PromptSource(tokenizer, [], job.mixture, seed, longest)
            if held:
                corpus = held_out_answers(sampler, kept_back, held, (0.0, 0.7))
            else:
                mixture = replace(job.mixture, temperatures=(0.0, 0.7), follow_up_share=0.0)
                questions = PromptSource(tokenizer, [], mixture, seed + 1, longest)
                most = min(_HELD_OUT_TOKENS * job.held_out_prompts, job.tokens)
                corpus = generate(
                    sampler,
                    questions,
                    tokens=most,
                    minutes=job.generate_minutes,
                    progress=lambda message: progress(f"to be held out: {message}"),
                )
            if not len(corpus):
                raise TrainingError("no held-out prompt was answered: are all longer than --length?")
            corpus.save(work / HELD_OUT)
            progress(f"{len(corpus)} held-out answers of {corpus.said:,} tokens")
        made = generate(
            sampler, source, tokens=job.tokens // processes.count, minutes=job.generate_minutes, progress=progress
        )
    finally:
        sampler.close()
    own = own_texts(tokenizer, entries if processes.main else [], job.length)
    joined = Corpus.joined([made, own] if own is not None else [made])
    if not len(joined):
        raise TrainingError("the target answered nothing in the time that it was given")
    joined.save(answers)
    progress(f"{len(made):,} answers of {made.said:,} tokens")
