"""The messages between gateway and workers (docs/wire.md has the rules that go with them).

Token ids are the target's everywhere. Times are milliseconds. Requests have strict types and forbid unknown fields: a
worker refuses by name what it does not know rather than ignoring it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from basics.names import MAX_CANDIDATES, MAX_DRAFT_TOKENS, Strategy
from protocol.errors import shortened

PROTOCOL_VERSION = 1
MAX_TOKENS_PER_MESSAGE = 1_048_576
MAX_LOGPROBS = 20
MAX_ALTERNATIVES = 32
MAX_TOKENIZER_BYTES = 128 * 2**20
"""The limit for a message that holds a tokenizer."""
_ID_DIGITS = len(str(2**31))
Q_SUM_TOLERANCE = 1e-4
"""How far the sum of a q may be from one: the error of float32 arithmetic on the draft's side."""

TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
TokenIds = Annotated[list[TokenId], Field(max_length=MAX_TOKENS_PER_MESSAGE, fail_fast=True)]
Seed = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
SessionId = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.:-]+$")]
GrammarType = Literal["json_object", "json_schema", "regex", "choice", "grammar", "structural_tag"]
Source = Annotated[str, Field(max_length=32, pattern=r"^[a-z][a-z0-9_]*$")]
"""A drafter's name. Not a fixed list: a draft worker may have drafters that a gateway does not know."""
Finite = Annotated[float, Field(allow_inf_nan=False)]
HistoryScope = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
"""Whose answers a draft worker may remember and draft from: the gateway's hash of key, salt and vocabulary."""


class Message(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Reply(Message):
    """What a worker answers. Unknown fields are ignored, so that workers may be newer than the gateway."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class Context(Message):
    """The sequence so far: its first `start` ids are those behind `prefix_hash`, the rest are `token_ids`."""

    start: int = Field(ge=0, le=MAX_TOKENS_PER_MESSAGE)
    token_ids: TokenIds
    prefix_hash: str = Field(pattern=r"^[0-9a-f]{16}$", description="PrefixHashes.at(start)")


class Sampling(Message):
    """How a token is drawn. Defaults change nothing: the model's own distribution at temperature 1."""

    temperature: Finite = Field(default=1.0, ge=0.0, le=100.0, description="under 1e-5: greedy")
    top_p: Finite = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = Field(default=0, ge=0, le=2**31 - 1, description="0: off")
    min_p: Finite = Field(default=0.0, ge=0.0, le=1.0)
    presence_penalty: Finite = Field(default=0.0, ge=-2.0, le=2.0)
    frequency_penalty: Finite = Field(default=0.0, ge=-2.0, le=2.0)
    repetition_penalty: Finite = Field(default=1.0, ge=0.01, le=100.0, description="less would overflow float32 logits")
    logit_bias: dict[str, Annotated[float, Field(ge=-100.0, le=100.0, allow_inf_nan=False)]] = Field(
        default_factory=dict, max_length=1024, description="token id, as JSON writes keys → added to its logit"
    )
    min_tokens: int = Field(
        default=0, ge=0, le=2**31 - 1, description="stop tokens are masked before this many output tokens"
    )
    ignore_eos: bool = False
    stop_token_ids: list[TokenId] = Field(default_factory=list, max_length=128, description="beside the model's own")
    seed: Seed

    @model_validator(mode="after")
    def _bias_keys_are_token_ids(self) -> Sampling:
        for key in self.logit_bias:
            if not (key.isascii() and key.isdigit() and len(key) <= _ID_DIGITS and int(key) < 2**31):
                raise ValueError(f"logit_bias key {shortened(key)!r} is not a token id")
        return self


class Grammar(Message):
    """A constraint on the text from token index `start` of the sequence on."""

    type: GrammarType
    value: str = Field(max_length=1_048_576)
    start: int = Field(ge=0)

    @model_validator(mode="after")
    def _json_object_says_it_all(self) -> Grammar:
        if self.type == "json_object" and self.value:
            raise ValueError("value: json_object takes none")
        return self


class GrammarCheckRequest(Message):
    """`POST /v1/grammar/check` on a target: can this be honoured? (`start` is ignored.) If not, a 400 says why."""

    protocol: Literal[1] = 1
    grammar: Grammar


class GrammarCheckResponse(Reply):
    ok: Literal[True] = True


class TraceContext(Message):
    """W3C trace context, passed through."""

    traceparent: str = Field(max_length=128)
    tracestate: str | None = Field(default=None, max_length=1024)


class SequenceRequest(Message):
    """What every request for tokens carries."""

    protocol: Literal[1] = 1
    session_id: SessionId | None = Field(default=None, description="null: match by content")
    round: int = Field(ge=0, le=2**53, description="rises within a session; a retry repeats it")
    context: Context
    num_prompt_tokens: int = Field(ge=0, le=MAX_TOKENS_PER_MESSAGE, description="the rest of the context is output")
    choice_index: int = Field(default=0, ge=0, le=127, description="mixed into the seed; 0 leaves it as it is")
    max_tokens: int = Field(ge=1, le=MAX_TOKENS_PER_MESSAGE, description="the most tokens that may still be emitted")
    sampling: Sampling
    grammar: Grammar | None = None
    deadline_ms: int = Field(default=60_000, ge=1, le=3_600_000, description="how long the caller waits, from receipt")
    cache_salt: str | None = Field(default=None, max_length=256, description="sessions share content under one salt")
    trace: TraceContext | None = None

    @model_validator(mode="after")
    def _prompt_within_context(self) -> SequenceRequest:
        length = self.context.start + len(self.context.token_ids)
        if length == 0:
            raise ValueError("context: must hold at least one token")
        if self.num_prompt_tokens > length:
            raise ValueError("num_prompt_tokens: exceeds the context's length")
        return self


class TopK(Message):
    """A truncated distribution: ids and their log-probabilities, which sum to one (nothing is left out)."""

    token_ids: list[TokenId] = Field(min_length=1, max_length=4096)
    logprobs: list[Finite] = Field(min_length=1, max_length=4096)

    @model_validator(mode="after")
    def _same_length(self) -> TopK:
        if len(self.token_ids) != len(self.logprobs):
            raise ValueError("token_ids and logprobs differ in length")
        return self


class Candidate(Message):
    """A drafted continuation. `q[i]` is the distribution that `token_ids[i]` was really sampled from."""

    token_ids: list[TokenId] = Field(max_length=MAX_DRAFT_TOKENS)
    logprobs: list[Finite] | None = None
    q: list[TopK] | None = None

    @model_validator(mode="after")
    def _one_entry_a_token(self) -> Candidate:
        for name in ("logprobs", "q"):
            entries = getattr(self, name)
            if entries is not None and len(entries) != len(self.token_ids):
                raise ValueError(f"{name}: must have one entry for each token")
        return self


class Prediction(Message):
    """A predicted output to draft from. Sent once; the session keeps it until it is sent again."""

    token_ids: TokenIds


class DraftRequest(SequenceRequest):
    draft_tokens: int = Field(ge=0, le=MAX_DRAFT_TOKENS, description="γ; 0: only read the context")
    num_candidates: int = Field(default=1, ge=1, le=MAX_CANDIDATES)
    candidate_temperature: Finite | None = Field(default=None, ge=0.0, le=100.0, description="for candidates 1 and up")
    candidate_top_p: Finite | None = Field(default=None, gt=0.0, le=1.0)
    want_q: bool = False
    draft_model: str | None = Field(default=None, max_length=256, description="null: the worker's default drafter")
    lookahead_tokens: int = Field(
        default=0, ge=0, le=MAX_DRAFT_TOKENS, description="length of the drafts to prepare for what may come; 0: none"
    )
    prepared_tokens: int = Field(
        default=0,
        ge=0,
        le=MAX_DRAFT_TOKENS,
        description="if the context is one that was prepared for: as many draft tokens as are there, up to this; not "
        "fewer than `draft_tokens`",
    )
    flight_seconds: Finite = Field(
        default=0.0,
        ge=0.0,
        le=3600.0,
        description="what a draft that is prepared whole saves beside drafting; 0: nothing",
    )
    assumed_tokens: int | None = Field(
        default=None, ge=0, description="how many of the context's last tokens no verdict has confirmed yet"
    )
    lookahead_seconds: Finite | None = Field(
        default=None,
        gt=0.0,
        le=3600.0,
        description="how long there is to prepare; null: as long as it was between calls",
    )
    prediction: Prediction | None = None
    verify_seconds: list[Annotated[float, Field(gt=0.0, le=3600.0)]] | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_DRAFT_TOKENS + 1,
        description="for `auto`: what the target takes for a token of plain decoding, and to verify 1, 2, … draft "
        "tokens; null: drafts as long as asked",
    )
    verifying: list[TokenId] | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_DRAFT_TOKENS,
        description="for `auto`: of what `/v1/prepared` told, the draft that is being verified: it is the answer",
    )
    history: HistoryScope | None = Field(default=None, description="whose remembered answers may be drafted from")
    vocabulary: str | None = Field(
        default=None, max_length=128, description="whose ids these are, if not the worker's: a fingerprint it learned"
    )

    own_prompt: str | None = Field(
        default=None,
        max_length=4 * MAX_TOKENS_PER_MESSAGE,
        description="the chat as the draft model's own template has it, in place of the prompt; sent once",
    )


class DraftTimings(Reply):
    queue_ms: float
    forward_ms: float
    sample_ms: float
    total_ms: float


class DraftPart(Reply):
    """How many tokens of candidate 0 come from this drafter."""

    source: Source
    tokens: int = Field(ge=0)


class DraftResponse(Reply):
    session_id: SessionId | None
    round: int
    candidates: list[Candidate]
    source: Source
    parts: list[DraftPart] = Field(
        default_factory=list, description="for `auto`: in their order; `source` is the first"
    )
    planned: int | None = Field(
        default=None,
        ge=0,
        description="for `auto`, and with `prepared_tokens`: the length it chose; less came if it drew a stop token",
    )
    cached_tokens: int = Field(description="context tokens that were not computed again")
    timings: DraftTimings


class RememberRequest(Message):
    """`POST /v1/remember` on a draft worker: a finished answer, to draft from under the same scope."""

    protocol: Literal[1] = 1
    history: HistoryScope
    token_ids: TokenIds = Field(description="the prompt's last tokens and the whole output")


class RememberResponse(Reply):
    remembered: bool = Field(description="false: the worker has no memory")


class Alternative(Message):
    """What a verdict may emit after the context, the target's own token last, and the draft to verify if it does."""

    token_ids: list[TokenId] = Field(min_length=1, max_length=MAX_DRAFT_TOKENS + 1)
    candidate: Candidate


class VerifyRequest(SequenceRequest):
    candidates: list[Candidate] = Field(
        default_factory=list, max_length=MAX_CANDIDATES, description="none: the target's own next token"
    )
    follows: int | None = Field(
        default=None, ge=0, description="a round, of the same context, whose verdict decides what this one verifies"
    )
    alternatives: list[Alternative] = Field(
        default_factory=list, max_length=MAX_ALTERNATIVES, description="with `follows`: what that verdict may be"
    )
    strategy: Strategy = "deterministic"
    acceptance_threshold: Finite = Field(default=0.1, ge=0.0, le=1.0, description="for `threshold`")
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS, description="how many alternatives a token")
    log_decisions: bool = Field(default=False, description="log drafted token, p, q, own draw and verdict")

    @model_validator(mode="after")
    def _alternatives_follow(self) -> VerifyRequest:
        if self.follows is None:
            if self.alternatives:
                raise ValueError("alternatives: need the round that they are for, `follows`")
            return self
        if self.session_id is None or self.follows >= self.round:
            raise ValueError("follows: must be an earlier round of a session")
        if not self.alternatives or self.candidates or self.grammar is not None:
            raise ValueError("follows: needs alternatives, and takes neither candidates nor a grammar")
        if self.context.token_ids:
            raise ValueError("follows: the context must be one that the worker holds: all of it before `start`")
        if not all(one.candidate.token_ids for one in self.alternatives):
            raise ValueError("alternatives: a candidate has no tokens")
        return self

    def following(self, alternative: Alternative) -> VerifyRequest | None:
        """The ordinary request that this one is once its alternative has come true; None if no token may follow it."""
        left = self.max_tokens - len(alternative.token_ids)
        if left < 1:
            return None
        plain = {"follows": None, "alternatives": [], "candidates": [alternative.candidate], "max_tokens": left}
        return self.model_copy(update=plain)


class TokenLogprob(Reply):
    """From the target's unprocessed logits. `top` holds the most likely tokens, best first."""

    logprob: float
    rank: int = Field(ge=1)
    top: list[tuple[int, float]]


class VerifyTimings(Reply):
    queue_ms: float
    forward_ms: float
    sample_ms: float
    total_ms: float
    rows: int = Field(description="tokens in the forward pass, all sessions together")
    sessions: int = Field(description="sessions that shared the forward pass")


StopReason = Literal["stop_token", "length"]


class VerifyResponse(Reply):
    """One round: the accepted draft tokens, then the target's own (left out if a stop token was accepted)."""

    session_id: SessionId | None
    round: int
    candidate: int | None = Field(
        description="which candidate was kept, null if none was sent; with `follows`: which alternative came true"
    )
    num_drafted: int = Field(ge=0, description="length of the kept candidate")
    num_accepted: int = Field(ge=0)
    acceptance_mask: list[bool] = Field(description="for the kept candidate, by position")
    token_ids: list[int] = Field(min_length=1)
    logprobs: list[TokenLogprob] | None = None
    stop_reason: StopReason | None
    stop_token_id: int | None = None
    lossless: bool
    cached_tokens: int
    timings: VerifyTimings


class TargetSpeculation(Message):
    """For a target that drives rounds itself."""

    enabled: bool = True
    draft_tokens: int | None = Field(default=None, ge=1, le=MAX_DRAFT_TOKENS)


class GenerateRequest(SequenceRequest):
    """`max_tokens` in all. The answer is one JSON line a round: VerifyResponse, or ErrorBody as the last."""

    logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    speculation: TargetSpeculation | None = None


class DraftBatchRequest(Message):
    protocol: Literal[1] = 1
    items: list[DraftRequest] = Field(min_length=1, max_length=256)


class VerifyBatchRequest(Message):
    protocol: Literal[1] = 1
    items: list[VerifyRequest] = Field(min_length=1, max_length=256)


class BatchError(Reply):
    status: int
    code: str
    message: str
    field: str | None = None


class DraftBatchItem(Reply):
    """Exactly one of the two is set."""

    response: DraftResponse | None = None
    error: BatchError | None = None


class DraftBatchResponse(Reply):
    items: list[DraftBatchItem]


class VerifyBatchItem(Reply):
    """Exactly one of the two is set."""

    response: VerifyResponse | None = None
    error: BatchError | None = None


class VerifyBatchResponse(Reply):
    items: list[VerifyBatchItem]
