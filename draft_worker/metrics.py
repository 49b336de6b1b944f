"""What a draft worker counts beyond every worker's metrics: drafts by where they came from."""

from __future__ import annotations

from prometheus_client import Counter

from protocol.messages import DraftResponse
from worker.metrics import WorkerMetrics


class DraftMetrics(WorkerMetrics):
    def __init__(self) -> None:
        super().__init__()
        self.drafts = Counter(
            "tandem_spec_decode_num_drafts", "Drafts that hold a token", ["source"], registry=self.registry
        )
        self.draft_tokens = Counter(
            "tandem_spec_decode_num_draft_tokens",
            "Draft tokens of first candidates",
            ["source"],
            registry=self.registry,
        )

    def draft_done(self, context_tokens: int, response: DraftResponse) -> None:
        self.call_done(context_tokens, response.cached_tokens, response.timings)
        tokens = len(response.candidates[0].token_ids) if response.candidates else 0
        if tokens:
            self.drafts.labels(response.source).inc()
            self.draft_tokens.labels(response.source).inc(tokens)
