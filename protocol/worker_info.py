"""What a worker reports about itself: its model, what it can do, its tokenizer, whether it is ready (docs/wire.md)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from basics.names import MAX_CANDIDATES, Strategy
from protocol.messages import GrammarType, Message, Reply


class Vocabulary(Reply):
    """`fingerprint` is over sorted (id, token) pairs, added tokens included; `logits_size` may exceed `size`."""

    fingerprint: str
    size: int
    logits_size: int


class StepTime(Reply):
    """Measured at start: one forward pass over `rows` tokens."""

    rows: int
    seconds: float


class StrategyFacts(Reply):
    """What a strategy of a target needs and promises, so that no caller has to know it by name."""

    name: str
    needs_q: bool = Field(description="every drafted token must come with the q that it was drawn from")
    max_candidates: int = Field(ge=1)
    lossless: bool = Field(description="at every temperature; at 0 each strategy is")
    same_text: bool = Field(description="a seed gives one text, whatever is drafted")
    draws: bool = Field(description="if nothing is drafted it emits what plain decoding would")


_FACTS_BEFORE = [
    StrategyFacts(name=name, needs_q=q, max_candidates=most, lossless=lossless, same_text=same, draws=draws)
    for name, q, most, lossless, same, draws in [
        ("deterministic", False, MAX_CANDIDATES, True, True, True),
        ("probabilistic", True, 1, True, False, True),
        ("threshold", False, MAX_CANDIDATES, False, False, True),
        ("greedy", False, MAX_CANDIDATES, False, True, False),
    ]
]
"""For targets that do not describe their strategies themselves. Newer strategies have no place here."""


class Capabilities(Reply):
    rounds: list[Literal["gateway", "target"]]
    strategies: list[Strategy]
    strategy_facts: list[StrategyFacts] = Field(default=_FACTS_BEFORE, description="one for each of `strategies`")
    default_strategy: Strategy = "deterministic"
    max_candidates: int
    max_draft_tokens: int
    max_logprobs: int = 0
    sampling: list[str] = Field(description="fields of Sampling that are honoured")
    grammar_types: list[GrammarType]
    q: bool = Field(default=False, description="a draft worker that can send q")
    prediction: bool = False
    translates: bool = Field(default=False, description="a draft worker that drafts for other vocabularies too")
    auto: bool = Field(default=False, description="a draft worker that chooses its drafter itself if asked to")
    history: bool = Field(default=False, description="a draft worker that remembers answers")
    lookahead: bool = Field(default=False, description="a draft worker that prepares drafts for what may come")
    prepared: bool = Field(default=False, description="a draft worker that tells what it has prepared by now")
    prepared_tokens: bool = Field(default=False, description="a draft worker that takes `prepared_tokens`")
    assumes: bool = Field(default=False, description="a draft worker that takes `assumed_tokens`, `lookahead_seconds`")
    chooses_ahead: bool = Field(
        default=False, description="a draft worker that tells what `auto` would draft, and takes `verifying`"
    )
    follows: bool = Field(default=False, description="a target that takes a verification which follows another")
    holds: int = Field(default=1, ge=1, description="how many of these may wait in a session, one behind the other")
    batch_invariant: bool = False
    target_rounds_sampled: bool = Field(
        default=False, description="rounds that the target drives carry drafts at temperature above 0 too"
    )

    @model_validator(mode="after")
    def _facts_of_every_strategy(self) -> Capabilities:
        known = {facts.name for facts in self.strategy_facts}
        for name in self.strategies:
            if name not in known:
                raise ValueError(f"strategy_facts: {name} is missing")
        return self

    def facts(self, strategy: Strategy) -> StrategyFacts | None:
        """None if the target does not offer it."""
        if strategy not in self.strategies:
            return None
        return next(facts for facts in self.strategy_facts if facts.name == strategy)


class Translation(Reply):
    """How a draft worker drafts for a target whose vocabulary is not its model's (docs/vocabularies.md)."""

    vocabulary: str = Field(description="the fingerprint of the target's")
    way: Literal["shared_ids", "shared_text"]
    q: bool = Field(description="whether such drafts can come with q")
    shared: int = Field(ge=0, description="tokens that both have")
    coverage: float = Field(ge=0.0, le=1.0, description="of a sample of text, in the target's tokens: those shared")


class ModelInfo(Reply):
    """`GET /v1/model`. A lookup drafter has no vocabulary of its own: null."""

    protocol: Literal[1] = 1
    role: Literal["draft", "target"]
    id: str
    engine: str
    dtype: str | None
    device: str
    vocabulary: Vocabulary | None
    special_token_ids: list[int]
    stop_token_ids: list[int]
    context_length: int
    max_sessions: int
    fingerprint: str = Field(description="of weights, dtype and engine; equal fingerprints answer equal texts")
    capabilities: Capabilities
    step_seconds: list[StepTime]
    translations: list[Translation] = Field(
        default_factory=list, description="a draft worker's: the targets' vocabularies that it has learned"
    )


class TokenizerInfo(Reply):
    """`GET /v1/tokenizer`: all that the gateway needs to speak the target's language."""

    model_id: str
    tokenizer_json: str = Field(description="the whole tokenizer.json, as text")
    chat_template: str | None
    tool_chat_template: str | None = Field(
        default=None, description="used in place of chat_template if a request has tools; null: chat_template is"
    )
    bos_token: str | None
    eos_token: str | None
    special_tokens: dict[str, str] = Field(description="named tokens a chat template may use, bos_token among them")
    stop_token_ids: list[int]
    vocabulary: Vocabulary
    context_length: int


class LearnRequest(Message):
    """`POST /v1/vocabulary` on a draft worker: the tokenizer of a target that is to be drafted for."""

    protocol: Literal[1] = 1
    tokenizer: TokenizerInfo


class Health(Reply):
    status: Literal["ok"] = "ok"


class Ready(Reply):
    ready: bool
    detail: str
