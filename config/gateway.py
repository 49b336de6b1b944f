"""The gateway's settings, each with its meaning and range."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from basics.names import MAX_DRAFT_TOKENS, MAX_UNDER_WAY, OnOffAuto
from config.urls import worker_url

Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]


class GatewayConfig(BaseModel):
    """Where the workers are, what a client may ask for, and how long anything may take."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # Workers.
    target_urls: list[str] = Field(
        default=["http://127.0.0.1:8002"], min_length=1, max_length=64, description="addresses of target workers"
    )
    draft_urls: list[str] = Field(
        default=["http://127.0.0.1:8001"], max_length=64, description="addresses of draft workers; none: plain decoding"
    )
    draft_pools: dict[str, list[str]] = Field(
        default={},
        max_length=64,
        description='further drafters by name, {"small": ["http://host:8011"]}: addresses that `draft_model` picks',
    )
    worker_token: SecretStr | None = Field(default=None, description="sent to the workers as a bearer token")
    worker_ca_file: Path | None = Field(default=None, description="certificates that vouch for https workers")
    connect_timeout_seconds: Seconds = Field(default=2.0, description="to reach a worker")
    draft_timeout_seconds: Seconds = Field(default=5.0, description="for one draft, before the target goes on alone")
    verify_timeout_seconds: Seconds = Field(default=60.0, description="for one verification")
    start_timeout_seconds: Seconds = Field(
        default=2.0, description="for a target to come back, or to have room, before the first token; then 503 or 429"
    )
    recovery_timeout_seconds: Seconds = Field(
        default=120.0, description="for a lost target to come back, or another to take over, in mid-stream"
    )
    probe_interval_seconds: Seconds = Field(default=2.0, description="between looks at each worker's state")

    # What is served, and to whom.
    served_model_name: list[str] = Field(
        default=[], max_length=16, description="names clients may use for the model; none: the target's own id"
    )
    api_keys: list[SecretStr] = Field(default=[], max_length=1024, description="keys clients may use; none: open")
    api_key_file: Path | None = Field(
        default=None, description="file of further keys, one a line, # for comments; read again whenever it changes"
    )
    playground: bool = Field(default=True, description="a page to chat with and see what speculation does, at /")
    cors_origins: list[str] = Field(default=[], max_length=64, description="browser origins allowed to call; none: off")

    # What the model's text is read for.
    tool_call_parser: Literal[
        "auto",
        "none",
        "json",
        "hermes",
        "llama3_json",
        "mistral",
        "mistral_v11",
        "deepseek_v3",
        "deepseek_v31",
        "kimi",
        "glm",
        "qwen3_coder",
        "gemma4",
        "functiongemma",
        "granite",
        "phi4_mini",
        "command_a",
        "command_r",
        "harmony",
    ] = Field(
        default="auto",
        description="how the model writes tool calls; auto: as its chat template says, or its name, else as plain json",
    )
    reasoning_parser: Literal["auto", "none", "think", "seed", "magistral", "command_a", "gemma4", "harmony"] = Field(
        default="auto", description="the tags that the model thinks between; auto: those of its chat template"
    )

    # Speculation, unless a request says otherwise.
    draft_model: str | None = Field(
        default=None, description="default drafter; none, or auto: the draft worker chooses, round by round"
    )
    draft_tokens: int | None = Field(
        default=None,
        ge=1,
        le=MAX_DRAFT_TOKENS,
        description="default γ: draft tokens a round; none: the target's pair's, else 5",
    )
    adaptive_speculation: bool = Field(default=True, description="let γ and N adapt unless a request says otherwise")

    lookahead: OnOffAuto = Field(
        default="off",
        description="have draft workers that can do it prepare the next drafts while the target verifies; auto: where "
        "it is measured to pay, in requests whose γ adapts; on: always, but from three requests at a time on as auto",
    )
    verifications_in_flight: int = Field(
        default=2,
        ge=1,
        le=MAX_UNDER_WAY,
        description="with lookahead, and a target far away: the most under way at a time, as far as they pay, all but "
        "one sent before the last verdict is back; with the drafter `auto` two",
    )

    # Limits: a request beyond one of them is refused before any work is done.
    max_concurrent_requests: int = Field(default=64, ge=1, le=100_000, description="requests served at once; more: 429")
    max_body_bytes: int = Field(default=8 * 2**20, ge=1024, le=2**30, description="bytes in a request's body")
    max_messages: int = Field(default=2048, ge=1, le=1_000_000, description="messages in a chat request")
    max_prompt_tokens: int | None = Field(
        default=None, ge=1, description="tokens in a prompt; none: the model's context length"
    )
    default_max_tokens: int | None = Field(
        default=None, ge=1, description="max_tokens of a chat request that names none; none: what the context leaves"
    )
    max_stop_strings: int = Field(default=16, ge=1, le=128, description="stop strings in a request")
    max_stop_string_chars: int = Field(default=1024, ge=1, le=65_536, description="characters in a stop string")
    max_choices: int = Field(default=16, ge=1, le=128, description="choices (n, times prompts) in a request")
    template_timeout_seconds: Seconds = Field(default=5.0, description="of computing, to render a chat template")

    # Time.
    keep_alive_seconds: Seconds = Field(default=5.0, description="of silence in a stream before a comment is sent")
    write_timeout_seconds: Seconds = Field(default=30.0, description="for a client to read what was sent to it")
    request_timeout_seconds: Seconds = Field(default=3600.0, description="for a whole request")
    body_timeout_seconds: Seconds = Field(default=30.0, description="for a client to send its request's body")
    drain_seconds: Seconds = Field(default=30.0, description="for running requests to end after SIGTERM")

    speculation_metrics: Literal["none", "summary", "detailed"] = Field(
        default="summary", description="metrics.speculative_decoding in responses; detailed: step by step"
    )
    vllm_metric_names: bool = Field(
        default=True, description="show the vllm:spec_decode_* counters too, for tools that read no others"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="what is logged")
    log_format: Literal["console", "json"] = Field(default="console", description="lines for people, or JSON objects")
    log_content: bool = Field(default=False, description="log decisions with tokens in them if a request asks")

    @field_validator("target_urls", "draft_urls")
    @classmethod
    def _addresses(cls, urls: list[str]) -> list[str]:
        return [worker_url(url) for url in urls]

    @field_validator("draft_pools")
    @classmethod
    def _pools(cls, pools: dict[str, list[str]]) -> dict[str, list[str]]:
        return {name: cls._addresses(urls) for name, urls in pools.items()}
