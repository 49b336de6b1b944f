"""What transformers says of a checkpoint that it loaded, judged: all of the model filled, all of the file used."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from engines.errors import ModelError
from engines.torch.elsewhere import instead

# Tensors of a file that the model has no place for, and that say nothing which its configuration does not say:
_RECOMPUTED = re.compile(
    r"rotary_emb\.inv_freq$"  # rotary frequencies, computed from the configuration (early Llama and GPT-NeoX files)
    r"|rotary_emb\.(cos|sin)_cached$"  # their cosines and sines
    r"|(^|\.)(attn|attention)\.(bias|masked_bias)$"  # the causal mask and its −10⁴ (early GPT-2 and GPT-NeoX files)
    r"|(^|\.)embeddings?\.position_ids$"  # 0, 1, 2, …
)
_UNFIT = re.compile(r"^(\S+)\s*\|[^|]*CONVERSION\b", re.MULTILINE)


class UnfitTensors(logging.Handler):
    """Around loading: names the tensor that transformers could not make of those of the file (of experts that lie one
    by one in the file, or of weights and their scales), which it says in its log alone.

    Raises:
        ModelError: in place of transformers' RuntimeError.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._names: list[str] = []
        self._logger = logging.getLogger("transformers")
        self._level = logging.NOTSET

    def emit(self, record: logging.LogRecord) -> None:
        self._names += _UNFIT.findall(record.getMessage())

    def __enter__(self) -> None:
        self._level = self._logger.level
        if self._level > logging.WARNING:  # TRANSFORMERS_VERBOSITY=error, for one
            self._logger.setLevel(logging.WARNING)
        self._logger.addHandler(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(self._level)
        if isinstance(error, RuntimeError) and self._names:
            raise ModelError(
                f"tensor {sorted(self._names)[0]} can't be made of the tensors in its weights: some are missing, or "
                "their shapes are not those that its configuration says"
            ) from error


def check_report(report: Mapping[str, Any]) -> None:
    """Check transformers' report on loading (`output_loading_info`): every weight filled, every tensor used.

    Raises:
        ModelError: naming a tensor. transformers itself makes do with a warning: it would leave a missing one random,
            and drop what it has no place for.
    """
    missing = sorted(report["missing_keys"])
    if missing:
        raise ModelError(f"{len(missing)} tensors are missing from its weights, {missing[0]} among them")
    if report["mismatched_keys"]:
        name, stored, expected = sorted(report["mismatched_keys"])[0]
        raise ModelError(
            f"tensor {name} has shape {list(stored)}, where its configuration says {list(expected)}: "
            "its config.json is of another model than its weights"
        )
    unused = sorted(name for name in report["unexpected_keys"] if not _RECOMPUTED.search(name))
    if unused:
        raise ModelError(
            f"{len(unused)} tensors of its weights have no place in the model, {unused[0]} among them; "
            f"without them its answers would be wrong; {instead()}"
        )
    if report.get("error_msgs"):
        raise ModelError(f"its weights could not be loaded: {report['error_msgs'][0]}")
