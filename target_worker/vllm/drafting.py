"""vLLM as a target that drives rounds itself: the proposer in its process asks the draft worker (docs/vllm.md)."""

from __future__ import annotations

import logging
import os
from typing import Any

from config.workers import TargetWorkerConfig
from engines.errors import ModelError
from engines.vllm.engine import VllmEngine
from engines.vllm.proposer.bound import EXTENSION
from engines.vllm.proposer.options import PREFIX, SECTION
from engines.vllm.reports import Reports
from protocol.messages import GenerateRequest
from protocol.target_rounds import is_greedy, may_be_drafted_for
from protocol.worker_info import Capabilities
from target_worker.vllm.processor import CLASS

logger = logging.getLogger(__name__)

_PROPOSER = "engines.vllm.proposer.TandemProposer"
_BIND_SECONDS = 60.0


class TargetRounds:
    """The engine arguments for it, what the engine can do with it, and reports of what is proposed."""

    def __init__(self, most_drafted: int) -> None:
        self.reports = Reports()
        self._most_drafted = most_drafted
        self._sampled = False

    def arguments(self, config: TargetWorkerConfig) -> dict[str, Any]:
        """The token is passed in the environment, since vLLM logs its arguments."""
        if config.worker_token is not None:
            os.environ[f"{PREFIX}TOKEN"] = config.worker_token.get_secret_value()
        options: dict[str, Any] = {"draft_url": config.draft_workers, "lookahead": config.lookahead}
        if config.draft_workers_ca is not None:
            options["ca"] = str(config.draft_workers_ca)
        if config.draft_deadline_ms is not None:
            options["deadline_ms"] = config.draft_deadline_ms
        return {
            "speculative_config": {
                "method": "custom_class",
                "model": _PROPOSER,
                "num_speculative_tokens": self._most_drafted,
            },
            "worker_extension_cls": EXTENSION,
            "additional_config": config.vllm_args.get("additional_config", {}) | {SECTION: options},
        }

    def started(self, engine: VllmEngine, capabilities: Capabilities) -> Capabilities:
        """Bind the proposer to the running engine and install our logits processor. Raises ModelError."""
        bound = engine.llm.collective_rpc("tandem_bind", timeout=_BIND_SECONDS, args=(CLASS, self.reports.path))
        reaches = [reach for reach in engine.run_now(bound) if reach]
        if not reaches:
            raise ModelError("this vLLM did not accept Tandem's proposer")
        if "none" in reaches:
            logger.warning("vLLM's rejection sampler could not be tested or corrected: the gateway drives all rounds")
            return capabilities
        self._sampled = all(reach == "all" for reach in reaches)
        if not self._sampled:
            logger.warning(
                "vLLM's rejection sampler is wrong in batches with sampled requests: only greedy ones get drafts"
            )
        return capabilities.model_copy(update={"rounds": ["gateway", "target"], "target_rounds_sampled": self._sampled})

    def draft_tokens(self, request: GenerateRequest) -> int:
        """How many tokens may be drafted in a step; 0 if our own plain decoding is to serve the request."""
        speculation = request.speculation
        if speculation is None or not speculation.enabled or not may_be_drafted_for(request.sampling, request.grammar):
            return 0
        if not (self._sampled or is_greedy(request.sampling)):
            return 0
        return min(speculation.draft_tokens or self._most_drafted, self._most_drafted)

    def close(self) -> None:
        self.reports.close()
