"""`tandem target` for engines_gpu.py: the proposer timed, and vLLM accepting drafts at the rates in SYNTHETIC_RATES.

No setting does that, since its text means nothing.
"""

from __future__ import annotations

import json
import os
from typing import Any

from config.workers import TargetWorkerConfig
from tandem import services
from tandem.cli import main

PROPOSER = "benchmarks.timed_proposer.TimedProposer"
_set_up = services._set_up_worker


def _set_up_measured(settings: Any) -> None:
    _set_up(settings)
    from target_worker.vllm.drafting import TargetRounds  # imports torch, which must find its environment set up

    arguments = TargetRounds.arguments

    def measured(self: TargetRounds, config: TargetWorkerConfig) -> dict[str, Any]:
        found = arguments(self, config)
        found["speculative_config"] |= {"model": PROPOSER, **json.loads(os.environ["SYNTHETIC_RATES"])}
        return found

    TargetRounds.arguments = measured  # type: ignore[method-assign]


if __name__ == "__main__":
    services._set_up_worker = _set_up_measured
    main()
