"""Request fields that endpoints share. Names and meanings are OpenAI's and vLLM's."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue

from basics.names import MAX_CANDIDATES, MAX_DRAFT_TOKENS, Strategy
from protocol.messages import Seed, TokenId

Number = Annotated[float, Field(allow_inf_nan=False)]


Metadata = dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]]


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _all_whole(values: Any) -> Any:
    return [_whole(value) for value in values] if isinstance(values, list) and float in map(type, values) else values


# JSON has one kind of number: 10.0 is 10. Put these after the bounds of an integer or a list.
Whole = BeforeValidator(_whole)
AllWhole = BeforeValidator(_all_whole)


class Request(BaseModel):
    """Strict types, no unknown fields: nothing that would change the answer is ignored in silence."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class SpeculativeOptions(Request):
    """How this request speculates. With the default strategy, nothing here changes the text.

    A field that does not apply (its description says when it does) is checked but has no effect, so that a client may
    send all fields with every request.
    """

    enabled: bool | None = Field(default=None, description="false: plain decoding by the target; default: true")
    draft_tokens: Annotated[int, Field(ge=1, le=MAX_DRAFT_TOKENS), Whole] | None = Field(
        default=None, description="γ: draft tokens a round; default: the pair's"
    )
    draft_model: str | None = Field(
        default=None, max_length=256, description="a drafter's name, or auto; default: the gateway's setting"
    )
    num_candidates: Annotated[int, Field(ge=1, le=MAX_CANDIDATES), Whole] | None = Field(
        default=None, description="N: candidates a round; default: 1"
    )
    candidate_temperature: Number | None = Field(
        default=None,
        ge=0.0,
        le=2.0,
        description="for candidates after the first; default: the request's",
    )
    candidate_top_p: Number | None = Field(
        default=None,
        gt=0.0,
        le=1.0,
        description="for candidates after the first; default: the request's",
    )
    strategy: Strategy | None = Field(
        default=None, description="the rule that accepts draft tokens; default: the target's, `deterministic`"
    )
    acceptance_threshold: Number | None = Field(
        default=None, ge=0.0, le=1.0, description="for the strategy `threshold` only; default: 0.1"
    )
    max_speculation_depth: Annotated[int, Field(ge=1, le=MAX_DRAFT_TOKENS), Whole] | None = Field(
        default=None,
        description="the largest γ that adaptation may choose; default: 32 with auto, else 8 or γ if larger",
    )
    adaptive_speculation: bool | None = Field(
        default=None, description="let γ and N adapt; default: the gateway's setting"
    )
    log_decisions: bool | None = Field(
        default=None, description="have the target log each token's verdict, if the gateway's settings allow it"
    )
    report_rounds: bool | None = Field(
        default=None,
        description="say in each chunk of a stream, in `tandem.rounds`, which tokens were drafted; default: false",
    )


class StreamOptions(Request):
    include_usage: bool | None = Field(default=None, description="send the usage in a last chunk without choices")
    continuous_usage_stats: bool | None = Field(default=None, description="send the usage in every chunk")
    include_obfuscation: bool | None = Field(default=None, description="accepted; chunks are never padded")


class JsonSchemaFormat(Request):
    name: str | None = Field(default=None, max_length=256, description="no effect")
    description: str | None = None
    schema_: dict[str, JsonValue] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Request):
    """`json_schema` goes with the type json_schema; `schema`, as in llama-server, with either JSON type."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None
    schema_: dict[str, JsonValue] | None = Field(default=None, alias="schema")


class StructuredOutputs(Request):
    """vLLM's structured outputs: exactly one of these fields."""

    json_: dict[str, JsonValue] | str | None = Field(default=None, alias="json", description="a JSON schema")
    regex: str | None = None
    choice: list[str] | None = Field(default=None, min_length=1, max_length=1024)
    grammar: str | None = None
    json_object: bool | None = None


class SamplingOptions(Request):
    """The fields of every endpoint that generates text. Null always means the default."""

    # Fields of other servers that are not supported, with the values that change nothing.
    REFUSED: ClassVar[dict[str, tuple[Any, ...]]] = {
        "best_of": (None, 1),
        "use_beam_search": (None, False),
        "length_penalty": (None, 1.0),
        "prompt_logprobs": (None,),
        "logprob_token_ids": (None,),
        "truncate_prompt_tokens": (None,),
        "allowed_token_ids": (None, []),
        "bad_words": (None, []),
        "guided_json": (None,),
        "guided_regex": (None,),
        "guided_choice": (None,),
        "guided_grammar": (None,),
        "logits_processors": (None, []),
        "priority": (None, 0),
        "return_token_ids": (None, False),
        "return_tokens_as_token_ids": (None, False),
        "spaces_between_special_tokens": (None, True),
        "kv_transfer_params": (None,),
        "vllm_xargs": (None,),
    }

    model: str = Field(min_length=1, max_length=512)
    temperature: Number | None = Field(default=None, ge=0.0, le=2.0)
    top_p: Number | None = Field(default=None, ge=0.0, le=1.0, description="0: greedy")
    seed: Annotated[Seed, Whole] | None = None
    stop: str | Annotated[list[str], Field(fail_fast=True)] | None = None
    stream: bool | None = None
    presence_penalty: Number | None = Field(default=None, ge=-2.0, le=2.0)
    frequency_penalty: Number | None = Field(default=None, ge=-2.0, le=2.0)
    logit_bias: dict[str, Annotated[float, Field(ge=-100.0, le=100.0, allow_inf_nan=False)]] | None = Field(
        default=None, max_length=1024
    )
    user: str | None = Field(default=None, max_length=1024)

    # Accepted as by OpenAI; they do not change the answer.
    metadata: Metadata | None = Field(default=None, max_length=16)
    store: bool | None = Field(default=None, description="accepted; nothing is stored")
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None = None
    safety_identifier: str | None = Field(default=None, max_length=1024)
    prompt_cache_key: str | None = Field(default=None, max_length=1024)
    prompt_cache_retention: str | None = Field(default=None, max_length=64)
    prompt_cache_options: dict[str, JsonValue] | None = Field(default=None, max_length=16)

    # Not in OpenAI's API; as in vLLM.
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1), Whole] | None = Field(default=None, description="0 or -1: off")
    min_p: Number | None = Field(default=None, ge=0.0, le=1.0)
    repetition_penalty: Number | None = Field(default=None, ge=0.01, le=100.0)
    stop_token_ids: Annotated[list[TokenId], Field(max_length=128), AllWhole] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Field(ge=0), Whole] | None = None
    skip_special_tokens: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    cache_salt: str | None = Field(default=None, min_length=1, max_length=256)

    # Tandem's own.
    speculative: SpeculativeOptions | None = None


class GenerationOptions(SamplingOptions):
    """The fields of the two completion endpoints."""

    # What else is too many is for the model's context and the server's settings, which refuse it by their own numbers.
    max_tokens: Annotated[int, Field(ge=1), Whole] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1), Whole] | None = Field(
        default=None, description="the newer name of max_tokens; counts if both are given"
    )
    n: Annotated[int, Field(ge=1), Whole] | None = None
    stream_options: StreamOptions | None = None
