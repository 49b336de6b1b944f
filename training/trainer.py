"""The training loop: batches, losses, schedule, figures on held-out texts, checkpoints."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from training import acceptance
from training.corpus import Batch, Corpus, make_batch, plan_batches
from training.errors import TrainingError
from training.losses import divergences
from training.student import trained_state

_LOSS_ROWS = 4096
_LOOK_STEPS = 10


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the student is trained. `minutes` (None: no limit) shortens the schedule to fit, whatever `epochs` says.

    The loss is kl · divergence + (1 − kl) · total variation, where kl goes from `kl_first` to `kl_last` in a straight
    line; the total variation is taken at a temperature that each token draws from `temperatures`.
    """

    epochs: float = 3.0
    minutes: float | None = None
    batch_tokens: int = 8192
    longest: int = 1024
    learning_rate: float = 1e-3
    warmup: float = 0.02
    weight_decay: float = 0.01
    kl_first: float = 0.5
    kl_last: float = 0.05
    temperatures: tuple[float, ...] = (0.25, 0.5, 0.7, 1.0)
    figures: int = 20
    checkpoint_minutes: float = 2.0
    seed: int = 0


def train(
    student: Any,
    target: Any,
    kept: Tensor | None,
    corpus: Corpus,
    held_out: Corpus,
    recipe: Recipe,
    folder: Path,
    progress: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Train `student` in place; its progress is returned and kept in folder/progress.jsonl.

    A checkpoint in `folder` is resumed. On several processes (accelerate launch) each takes its share of batches.
    """
    from accelerate import Accelerator
    from accelerate.utils import broadcast

    on_gpu = torch.cuda.is_available() and target.device.type == "cuda"
    accelerator = Accelerator(mixed_precision="bf16" if on_gpu else "no", cpu=not on_gpu)
    if on_gpu:
        torch.backends.cuda.matmul.allow_tf32 = True
    embed = target.get_input_embeddings()
    own = [parameter for parameter in student.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in own if p.dim() > 1], "weight_decay": recipe.weight_decay},
            {"params": [p for p in own if p.dim() <= 1], "weight_decay": 0.0},
        ],
        lr=recipe.learning_rate,
        betas=(0.9, 0.98),
        fused=on_gpu or None,
    )
    model, optimizer = accelerator.prepare(student, optimizer)
    count = accelerator.num_processes
    steps = max(
        1, round(len(plan_batches(corpus, recipe.batch_tokens, recipe.longest, recipe.seed)) / count * recipe.epochs)
    )
    state = _State(folder)
    history = state.load(student, optimizer)
    begin = time.monotonic() - state.seconds
    heats = torch.tensor(recipe.temperatures, device=accelerator.device)
    generator = torch.Generator(device=accelerator.device).manual_seed(recipe.seed + accelerator.process_index)

    def done_share() -> float:
        """How far along, 0 to 1, by steps or by the clock, the same in every process."""
        share = state.step / steps
        if recipe.minutes is not None:
            share = max(share, (time.monotonic() - begin) / (60 * recipe.minutes))
        return float(broadcast(torch.tensor(share, device=accelerator.device))) if count > 1 else share

    def logits(batch: Batch, model: Any) -> tuple[Tensor, Tensor]:
        for head in (target.get_output_embeddings(), student.get_output_embeddings()):
            head.places = batch.places
        with torch.no_grad():
            theirs = target(input_ids=batch.ids, use_cache=False).logits
            embedded = embed(batch.ids).float()
        with accelerator.autocast():
            mine = model(inputs_embeds=embedded, use_cache=False).logits
        return mine.float(), theirs.float()

    def figures() -> dict[str, float]:
        model.eval()
        with torch.no_grad():
            found = acceptance.measure(
                lambda batch: logits(batch, student),  # as it is: its wrapper would wait for the other processes
                held_out,
                kept,
                longest=recipe.longest,
                batch_tokens=recipe.batch_tokens,
                device=accelerator.device,
            )
        model.train()
        return found

    def report(share: float, losses: Tensor) -> None:
        kl, tv = losses.tolist()
        entry: dict[str, Any] = {
            "step": state.step,
            "tokens": state.tokens,
            "seconds": round(time.monotonic() - begin, 1),
        }
        entry |= {"share": round(share, 4), "kl": round(kl, 4), "total variation": round(tv, 4)}
        entry["tokens a round"] = {name: round(value, 3) for name, value in figures().items()}
        history.append(entry)
        rounds = "  ".join(f"{name} {value:.2f}" for name, value in entry["tokens a round"].items())
        progress(
            f"step {state.step} of about {steps}, {share:4.0%}: kl {kl:.3f}, tv {tv:.3f}; tokens a round: {rounds}"
        )
        (folder / "progress.jsonl").write_text("".join(json.dumps(line) + "\n" for line in history))

    main = accelerator.is_main_process
    model.train()
    if main and not history:
        report(0.0, torch.tensor([math.nan, math.nan]))
    share, saved = done_share(), time.monotonic()
    shown = share
    running: list[Tensor] = []
    while share < 1.0:
        plans = plan_batches(corpus, recipe.batch_tokens, recipe.longest, recipe.seed + state.epoch)
        mine_of_them = plans[: len(plans) - len(plans) % count][accelerator.process_index :: count]
        if not mine_of_them:
            raise TrainingError("there is less to train on than one batch for each process")
        for indices in mine_of_them[state.batches :]:
            if state.step % _LOOK_STEPS == 0:
                share = done_share()
                if share >= 1.0:
                    break
            rate = recipe.learning_rate * min(1.0, share / recipe.warmup + 1e-3) * 0.5 * (1 + math.cos(math.pi * share))
            for group in optimizer.param_groups:
                group["lr"] = rate
            batch = make_batch(corpus, indices, recipe.longest).to(accelerator.device)
            mine, theirs = logits(batch, model)
            weight = recipe.kl_first + (recipe.kl_last - recipe.kl_first) * share
            drawn = torch.randint(len(heats), (len(mine),), generator=generator, device=accelerator.device)
            losses = mine.new_zeros(2)
            for i in range(0, len(mine), _LOSS_ROWS):
                part = slice(i, i + _LOSS_ROWS)
                kl, tv = divergences(mine[part], theirs[part], kept, heats[drawn[part]])
                losses = losses + torch.stack([kl.sum(), tv.sum()]) / max(1, len(mine))
            accelerator.backward(weight * losses[0] + (1 - weight) * losses[1])
            accelerator.clip_grad_norm_(own, 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            running.append(losses.detach())
            state.step += 1
            state.batches += 1
            state.tokens += batch.ids.numel() * count
            if main and share >= shown + 1 / recipe.figures:
                shown = share
                report(share, torch.stack(running).mean(dim=0))
                running.clear()
            if main and time.monotonic() - saved > 60 * recipe.checkpoint_minutes:
                saved = time.monotonic()
                state.save(student, optimizer, saved - begin)
        else:
            state.epoch += 1
            state.batches = 0
            share = done_share()
    accelerator.wait_for_everyone()
    if main:
        if running:
            report(1.0, torch.stack(running).mean(dim=0))
        state.save(student, optimizer, time.monotonic() - begin)
    accelerator.wait_for_everyone()  # the others' going would end the main one's, which still measures
    accelerator.end_training()
    return history


class _State:
    """Where training stands: `step`s in all, `batches` of the `epoch`, `tokens` seen, `seconds` it took."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "checkpoint.pt"
        self._history = folder / "progress.jsonl"
        self.step = self.epoch = self.batches = self.tokens = 0
        self.seconds = 0.0

    def load(self, student: Any, optimizer: Any) -> list[dict[str, Any]]:
        """Resume from a checkpoint if there is one. Returns what was reported before it."""
        if not self._file.exists():
            return []
        found = torch.load(self._file, map_location="cpu", weights_only=True)
        for name, parameter in trained_state(student).items():
            parameter.copy_(found["student"][name])
        optimizer.load_state_dict(found["optimizer"])
        for name in ("step", "epoch", "batches", "tokens", "seconds"):
            setattr(self, name, found[name])
        lines = self._history.read_text().splitlines() if self._history.exists() else []
        return [entry for entry in map(json.loads, lines) if entry["step"] <= self.step]

    def save(self, student: Any, optimizer: Any, seconds: float) -> None:
        places = {name: getattr(self, name) for name in ("step", "epoch", "batches", "tokens")}
        content = {"student": trained_state(student), "optimizer": optimizer.state_dict(), "seconds": seconds, **places}
        temporary = self._file.with_suffix(".partial")
        torch.save(content, temporary)
        temporary.rename(self._file)
