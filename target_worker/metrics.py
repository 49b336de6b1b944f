"""What a target counts beyond every worker's metrics: drafts and what became of them."""

from __future__ import annotations

from protocol.messages import VerifyResponse
from worker.metrics import WorkerMetrics


class TargetMetrics(WorkerMetrics):
    def __init__(self) -> None:
        super().__init__("target")
        self.drafts = self.counter("spec_decode_num_drafts", "Drafts verified")
        self.draft_tokens = self.counter("spec_decode_num_draft_tokens", "Draft tokens of the kept candidates")
        self.accepted_tokens = self.counter("spec_decode_num_accepted_tokens", "Draft tokens accepted")
        self._accepted_at = self.counter(
            "spec_decode_num_accepted_tokens_per_pos", "Draft tokens accepted, by position in the draft", "position"
        )
        self.generation_tokens = self.counter("generation_tokens", "Tokens emitted")
        following = self.counter("verifications_ahead", "Verifications that waited for the verdict before", "outcome")
        self._followed = {True: following.labels("used"), False: following.labels("discarded")}

    def followed(self, used: bool) -> None:
        """One that was sent before the last verdict was known; discarded: that was none of its alternatives."""
        self._followed[used].inc()

    def round_done(self, context_tokens: int, response: VerifyResponse) -> None:
        """One round. `context_tokens` is 0 for the later rounds of a stream: its context was counted with its first."""
        self.call_done(context_tokens, response.cached_tokens if context_tokens else 0, response.timings)
        self.generation_tokens.inc(len(response.token_ids))
        if response.num_drafted:
            self.drafts.inc()
            self.draft_tokens.inc(response.num_drafted)
            self.accepted_tokens.inc(response.num_accepted)
            for position in range(response.num_drafted):  # rejected ones too, so that their series start at 0
                self._accepted_at.labels(position).inc(position < response.num_accepted)
