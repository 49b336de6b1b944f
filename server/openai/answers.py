"""Answers in OpenAI's form. Fields that are set are sent, null included; others are omitted."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from basics.names import Strategy

FinishReason = Literal["stop", "length", "tool_calls"]


class CompletionTokensDetails(BaseModel):
    """completion_tokens includes the accepted draft tokens and not the rejected ones (unlike OpenAI's bill)."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class PromptTokensDetails(BaseModel):
    cached_tokens: int


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    completion_tokens_details: CompletionTokensDetails
    prompt_tokens_details: PromptTokensDetails | None = Field(
        default=None, description="null if the target does not report cached tokens"
    )


class SpeculativeDecoding(BaseModel):
    """vLLM's per-request acceptance metrics. A step is a round that carried draft tokens."""

    mean_acceptance_length: float = Field(description="tokens a step, the target's own included; 1 without steps")
    draft_acceptance_rate: float = Field(description="accepted / drafted tokens; 0 without drafts")
    acceptance_histogram: list[int] = Field(description="[j]: steps that accepted exactly j draft tokens")
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int = Field(description="γ: the most draft tokens a step")
    accepted_by_drafter: dict[str, int] = Field(default_factory=dict, description="accepted draft tokens by drafter")
    per_step_accepted: list[int] | None = None
    per_step_drafted: list[int] | None = None


class Metrics(BaseModel):
    speculative_decoding: SpeculativeDecoding


class Tandem(BaseModel):
    """How the text was made. With the strategy `deterministic`, the same seed brings the same text again."""

    strategy: Strategy
    lossless: bool = Field(description="whether the text has the target's own distribution, whatever was drafted")
    seed: int


class TopLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int] | None


class ChatLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    content: list[ChatLogprob]
    refusal: None = None


class FunctionCalled(BaseModel):
    name: str
    arguments: str = Field(description="JSON, as the model wrote it")


class ToolCalled(BaseModel):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCalled


class ChatMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str | None = Field(description="null if there are only tool calls")
    reasoning_content: str | None = Field(default=None, description="the model's thought, if it writes one")
    tool_calls: list[ToolCalled] | None = None
    refusal: None = None


class ChatChoice(BaseModel):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    stop_reason: str | int | None = Field(
        description="the stop string or the member of stop_token_ids that ended the text"
    )


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str
    metrics: Metrics | None = None
    tandem: Tandem | None = None


class FunctionDelta(BaseModel):
    name: str | None = None
    arguments: str = ""


class ToolCallDelta(BaseModel):
    """A call's first delta has its id, type and function.name; the others have more of its arguments."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta


class ChatDelta(BaseModel):
    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChatChunkChoice(BaseModel):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None = None


class ChatCompletionChunk(BaseModel):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    system_fingerprint: str
    usage: Usage | None = None
    metrics: Metrics | None = None
    tandem: Tandem | None = None


class CompletionLogprobs(BaseModel):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None = None


class Completion(BaseModel):
    """Also the form of a streamed chunk, whose finish_reason may be null; only the last chunk has the usage."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    system_fingerprint: str
    usage: Usage | None = None
    metrics: Metrics | None = None
    tandem: Tandem | None = None


class ModelCard(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "tandem"
    root: str = Field(description="the target's own id")
    max_model_len: int
    tool_call_format: str | None = Field(description="how the model writes tool calls; null: tool calls are off")
    drafters: list[str] = Field(description="the names that `speculative.draft_model` may have now")


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class Tokenized(BaseModel):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class Detokenized(BaseModel):
    prompt: str


class ErrorInfo(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    error: ErrorInfo
