"""What a draft's folder has for people to read: README.md, and curves of the training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def write_card(folder: Path, facts: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> None:
    """Write README.md: what it is, how it was made, tokens a round on held-out prompts before and after."""
    first, last = history[0]["tokens a round"], history[-1]["tokens a round"]
    lines = [
        f"# A draft for {facts['target']}",
        "",
        "Trained by `tandem train-draft` (Tandem's docs/train_a_draft.md). It proposes tokens for that model",
        "alone, whose embeddings, head and tokenizer it uses; here are its own layers. The licence is the target's.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in facts.items()),
        "",
        "Tokens a round on held-out prompts, 3 drafted (1.0: none is ever accepted):",
        "",
        "| prompts | untrained | trained |",
        "|---|---|---|",
        *(f"| {name} | {first.get(name, 1.0):.2f} | {value:.2f} |" for name, value in last.items()),
        "",
    ]
    (folder / "README.md").write_text("\n".join(lines), encoding="utf-8")


def draw_curves(file: Path, history: Sequence[Mapping[str, Any]]) -> bool:
    """Draw loss and tokens a round by training tokens as a PNG; False if matplotlib (extra `train`) is missing."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (losses, rounds) = pyplot.subplots(1, 2, figsize=(12, 4.5))
    tokens = [entry["tokens"] for entry in history]
    for name in ("kl", "total variation"):
        losses.plot(tokens, [entry[name] for entry in history], marker=".", label=name)
    for name in history[-1]["tokens a round"]:
        values = [entry["tokens a round"].get(name) for entry in history]
        rounds.plot(tokens, values, marker=".", label=name)
    losses.set(xlabel="tokens trained on", title="loss")
    rounds.set(xlabel="tokens trained on", title="tokens a round, 3 drafted, held-out prompts")
    for axes in (losses, rounds):
        axes.legend(fontsize=7)
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    pyplot.close(figure)
    return True
