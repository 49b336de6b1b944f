"""What a draft worker counts beyond every worker's metrics: drafts by their source."""

from __future__ import annotations

from basics.metrics import Watched
from basics.names import CACHE
from draft_worker.drafters import DRAFTERS
from draft_worker.memory import AnswerMemory
from protocol.messages import DraftPart, DraftResponse
from worker.metrics import WorkerMetrics


def memory_gauges(memory: AnswerMemory) -> list[Watched]:
    return [
        ("history_bytes", "Memory that remembered answers take", lambda: memory.bytes),
        ("history_tokens", "Tokens of remembered answers", lambda: memory.tokens),
        ("history_scopes", "Callers and salts whose answers are remembered", lambda: memory.scopes),
    ]


def memory_counters(memory: AnswerMemory) -> list[Watched]:
    return [("num_history_evictions", "Pieces of remembered answers forgotten to make room", lambda: memory.evictions)]


class DraftMetrics(WorkerMetrics):
    def __init__(self) -> None:
        super().__init__("draft")
        drafts = self.counter("spec_decode_num_drafts", "Drafts that hold a token", "source")
        draft_tokens = self.counter("spec_decode_num_draft_tokens", "Draft tokens of first candidates", "source")
        judged = self.counter("prompt_num_draft_tokens", "Judged draft tokens, by the prompt before them", "prompt")
        accepted = self.counter("prompt_num_accepted_tokens", "Those of them that were accepted", "prompt")
        self._judged = {prompt: judged.labels(prompt) for prompt in ("target", "own")}
        self._accepted = {prompt: accepted.labels(prompt) for prompt in ("target", "own")}
        sources = [*(drafter.source for drafter in DRAFTERS), CACHE]
        self._drafts = {source: drafts.labels(source) for source in sources}
        self._draft_tokens = {source: draft_tokens.labels(source) for source in sources}

        calls = self.counter("lookahead_calls", "Calls for which drafts had been prepared", "outcome")
        self._foreseen = {True: calls.labels("hit"), False: calls.labels("miss")}
        tokens = self.counter("lookahead_tokens", "Tokens that were prepared, and those of them that were sent", "what")
        self._prepared, self._used = tokens.labels("prepared"), tokens.labels("used")

    def foreseen(self, hit: bool) -> None:
        """A call went on from one for which drafts were prepared; hit: one of them was for what it brought."""
        self._foreseen[hit].inc()

    def prepared(self, tokens: int) -> None:
        self._prepared.inc(tokens)

    def prompt_judged(self, prompt: str, drafted: int, accepted: int) -> None:
        """What a draft by shared text came to, after a chat that the drafter's own template could show too."""
        self._judged[prompt].inc(drafted)
        self._accepted[prompt].inc(accepted)

    def draft_done(self, context_tokens: int, response: DraftResponse) -> None:
        self.call_done(context_tokens, response.cached_tokens, response.timings)
        tokens = len(response.candidates[0].token_ids) if response.candidates else 0
        if tokens:
            self._drafts[response.source].inc()
            for part in response.parts or [DraftPart(source=response.source, tokens=tokens)]:
                self._draft_tokens[part.source].inc(part.tokens)
                if part.source == CACHE:
                    self._used.inc(part.tokens)
