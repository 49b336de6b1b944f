"""The models that tests and benchmarks run: the bundled one, and a draft made of some of its layers."""

from __future__ import annotations

from pathlib import Path

BUNDLED = "SmolLM2-135M-Instruct"
DRAFT_LAYERS = 4


def bundled() -> Path:
    """The bundled model's folder, fetched and converted first if this machine does not have it yet."""
    from engines.models import resolve_model

    return resolve_model(BUNDLED).folder


def truncated(source: Path, layers: int = DRAFT_LAYERS) -> Path:
    """A draft for `source` that keeps this many of its layers, made once and kept in Tandem's cache."""
    from engines.cache import build_once, cache_folder
    from testing.tiny_models import truncate_model

    def build(folder: Path) -> None:
        truncate_model(source, folder, layers)

    return build_once(cache_folder() / "truncated" / f"{source.name}-{layers}", build)
