"""What a target counts beyond every worker's metrics: drafts and what became of them (vLLM's spec_decode metrics)."""

from __future__ import annotations

from prometheus_client import Counter

from basics.names import MAX_DRAFT_TOKENS
from protocol.messages import VerifyResponse
from worker.metrics import WorkerMetrics


class TargetMetrics(WorkerMetrics):
    def __init__(self) -> None:
        super().__init__()
        registry = self.registry
        self.drafts = Counter("tandem_spec_decode_num_drafts", "Drafts verified", registry=registry)
        self.draft_tokens = Counter(
            "tandem_spec_decode_num_draft_tokens", "Draft tokens of the kept candidates", registry=registry
        )
        self.accepted_tokens = Counter(
            "tandem_spec_decode_num_accepted_tokens", "Draft tokens accepted", registry=registry
        )
        per_position = Counter(
            "tandem_spec_decode_num_accepted_tokens_per_pos",
            "Draft tokens accepted, by position in the draft",
            ["position"],
            registry=registry,
        )
        self._accepted_at = [per_position.labels(str(position)) for position in range(MAX_DRAFT_TOKENS)]
        self.generation_tokens = Counter("tandem_generation_tokens", "Tokens emitted", registry=registry)

    def round_done(self, context_tokens: int, response: VerifyResponse) -> None:
        """One round. `context_tokens` is 0 for the later rounds of a stream: its context was counted with its first."""
        self.call_done(context_tokens, response.cached_tokens if context_tokens else 0, response.timings)
        self.generation_tokens.inc(len(response.token_ids))
        if response.num_drafted:
            self.drafts.inc()
            self.draft_tokens.inc(response.num_drafted)
            self.accepted_tokens.inc(response.num_accepted)
            for position in range(response.num_accepted):
                self._accepted_at[position].inc()
