"""`tandem train-draft` and `export-draft`: from the command line to the training room."""

from __future__ import annotations

import sys
from pathlib import Path


def run_train_draft(
    *,
    target: str,
    out: Path,
    data: Path | None,
    held_out: Path | None,
    layers: int,
    vocabulary: int | None,
    tokens: int,
    generate_minutes: float | None,
    epochs: float,
    minutes: float | None,
    learning_rate: float,
    batch_tokens: int,
    sequences: int | None,
    length: int,
    device: str,
    seed: int,
) -> int:
    """Train, saying on standard error how it goes. The exit code: 1 where it can't be, with the reason."""
    from engines.errors import ModelError
    from training.errors import TrainingError
    from training.processes import Processes
    from training.run import Job, run
    from training.trainer import Recipe

    recipe = Recipe(
        epochs=epochs,
        minutes=minutes,
        batch_tokens=batch_tokens,
        longest=length,
        learning_rate=learning_rate,
        seed=seed,
    )
    job = Job(
        target,
        data,
        out,
        held_out=held_out,
        layers=layers,
        vocabulary=vocabulary,
        tokens=tokens,
        generate_minutes=generate_minutes,
        sequences=sequences,
        length=length,
        device=device,
        recipe=recipe,
        processes=Processes.from_environment(),
    )
    try:
        run(job, lambda message: print(f"tandem: {message}", file=sys.stderr, flush=True))
    except (ModelError, TrainingError) as error:
        print(f"tandem: {error}", file=sys.stderr)
        return 1
    return 0


def run_export_draft(draft: str, out: Path, gguf: bool, overwrite: bool) -> int:
    """Write it, saying on standard error what. The exit code: 1 where it can't be, with the reason."""
    from engines.errors import ModelError
    from training.errors import TrainingError
    from training.whole import export_draft

    try:
        export_draft(
            draft,
            out,
            gguf,
            lambda message: print(f"tandem: {message}", file=sys.stderr, flush=True),
            overwrite=overwrite,
        )
    except (ModelError, TrainingError) as error:
        print(f"tandem: {error}", file=sys.stderr)
        return 1
    return 0
