"""Request fields that endpoints share. Names and meanings are OpenAI's and vLLM's."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue

from basics.names import MAX_CANDIDATES, MAX_DRAFT_TOKENS, Strategy
from protocol.messages import MAX_TOKENS_PER_MESSAGE, Seed, TokenId

Number = Annotated[float, Field(allow_inf_nan=False)]


Metadata = dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]]


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _all_whole(values: Any) -> Any:
    return [_whole(value) for value in values] if isinstance(values, list) and float in map(type, values) else values


# JSON has one kind of number: 10.0 is 10. These stand after an integer's bounds, or a list's.
Whole = BeforeValidator(_whole)
AllWhole = BeforeValidator(_all_whole)


class Request(BaseModel):
    """Strict types, no unknown fields: nothing that would change the answer is ignored in silence."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class SpeculativeOptions(Request):
    """How this request speculates. Whatever is said here, the default strategy's text stays the same.

    A field whose moment does not come (its description says when) is checked like any other and changes nothing: whole
    blocks of defaults are welcome.
    """

    enabled: bool | None = Field(default=None, description="false: plain decoding by the target; default: true")
    draft_tokens: Annotated[int, Field(ge=1, le=MAX_DRAFT_TOKENS), Whole] | None = Field(
        default=None, description="γ: draft tokens a round; default: the pair's"
    )
    draft_model: str | None = Field(default=None, max_length=256, description="which drafter; default: the pair's")
    num_candidates: Annotated[int, Field(ge=1, le=MAX_CANDIDATES), Whole] | None = Field(
        default=None, description="N: candidates a round; default: 1"
    )
    candidate_temperature: Number | None = Field(
        default=None,
        ge=0.0,
        le=2.0,
        description="of candidates beyond the first, where there are any; default: the request's",
    )
    candidate_top_p: Number | None = Field(
        default=None,
        gt=0.0,
        le=1.0,
        description="of candidates beyond the first, where there are any; default: the request's",
    )
    strategy: Strategy | None = Field(
        default=None, description="when a draft token is accepted; default: the target's own default, `deterministic`"
    )
    acceptance_threshold: Number | None = Field(
        default=None, ge=0.0, le=1.0, description="for the strategy `threshold`, and no other; default: 0.1"
    )
    max_speculation_depth: Annotated[int, Field(ge=1, le=MAX_DRAFT_TOKENS), Whole] | None = Field(
        default=None, description="the most γ may adapt to, where it adapts; default: 8, or γ where higher"
    )
    adaptive_speculation: bool | None = Field(
        default=None, description="let γ and N adapt; default: the gateway's setting"
    )
    log_decisions: bool | None = Field(
        default=None, description="let the target log each token's verdict, where the gateway's settings allow it"
    )
    report_rounds: bool | None = Field(
        default=None,
        description="say in each chunk of a stream, in `tandem.rounds`, which tokens were drafted; default: false",
    )


class StreamOptions(Request):
    include_usage: bool | None = Field(default=None, description="a last chunk without choices holds the usage")
    continuous_usage_stats: bool | None = Field(default=None, description="usage in every chunk")
    include_obfuscation: bool | None = Field(default=None, description="accepted; nothing is padded here")


class JsonSchemaFormat(Request):
    name: str | None = Field(default=None, max_length=256, description="without effect")
    description: str | None = None
    schema_: dict[str, JsonValue] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Request):
    """`json_schema` where the type is json_schema. `schema`: llama-server's place for one, beside either JSON type."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None
    schema_: dict[str, JsonValue] | None = Field(default=None, alias="schema")


class StructuredOutputs(Request):
    """vLLM's: exactly one of these."""

    json_: dict[str, JsonValue] | str | None = Field(default=None, alias="json", description="a JSON schema")
    regex: str | None = None
    choice: list[str] | None = Field(default=None, min_length=1, max_length=1024)
    grammar: str | None = None
    json_object: bool | None = None


class SamplingOptions(Request):
    """The fields that every endpoint has which generates. Null always means the default."""

    # Fields of other servers that cannot be honoured, with the values that ask for nothing.
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

    # Accepted as OpenAI accepts them; they change nothing about the answer.
    metadata: Metadata | None = Field(default=None, max_length=16)
    store: bool | None = Field(default=None, description="accepted; nothing is stored")
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None = None
    safety_identifier: str | None = Field(default=None, max_length=1024)
    prompt_cache_key: str | None = Field(default=None, max_length=1024)
    prompt_cache_retention: str | None = Field(default=None, max_length=64)
    prompt_cache_options: dict[str, JsonValue] | None = Field(default=None, max_length=16)

    # Beyond OpenAI, as vLLM has them.
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1), Whole] | None = Field(default=None, description="0 or -1: off")
    min_p: Number | None = Field(default=None, ge=0.0, le=1.0)
    repetition_penalty: Number | None = Field(default=None, ge=0.01, le=100.0)
    stop_token_ids: Annotated[list[TokenId], Field(max_length=128), AllWhole] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS_PER_MESSAGE), Whole] | None = None
    skip_special_tokens: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    cache_salt: str | None = Field(default=None, min_length=1, max_length=256)

    # Tandem's own.
    speculative: SpeculativeOptions | None = None


class GenerationOptions(SamplingOptions):
    """Those of the two completion endpoints."""

    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS_PER_MESSAGE), Whole] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS_PER_MESSAGE), Whole] | None = Field(
        default=None, description="max_tokens by its newer name; counts where both are given"
    )
    n: Annotated[int, Field(ge=1, le=128), Whole] | None = None
    stream_options: StreamOptions | None = None
