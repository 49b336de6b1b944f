"""`tandem target` for engines_gpu.py: the proposer timed, and vLLM accepting drafts at the rates in SYNTHETIC_RATES.

No setting does that, since its text means nothing.
"""

from __future__ import annotations

import json
import os
from typing import Any

from config.workers import TargetWorkerConfig
from tandem.cli import main
from target_worker.vllm_drafting import Drafting

PROPOSER = "benchmarks.timed_proposer.TimedProposer"


def _measured(arguments: Any) -> Any:
    def more(self: Drafting, config: TargetWorkerConfig) -> dict[str, Any]:
        found: dict[str, Any] = arguments(self, config)
        found["speculative_config"] |= {"model": PROPOSER, **json.loads(os.environ["SYNTHETIC_RATES"])}
        return found

    return more


if __name__ == "__main__":
    Drafting.arguments = _measured(Drafting.arguments)  # type: ignore[method-assign]
    main()
