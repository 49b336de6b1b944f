"""The proposer's options: `--additional-config '{"tandem": {…}}'`, else TANDEM_PROPOSER_… variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, FilePath, SecretStr

from basics.names import OnOffAuto

PREFIX = "TANDEM_PROPOSER_"
SECTION = "tandem"

Url = Annotated[str, Field(pattern=r"^https?://[^/?#]+$")]


def _split(value: Any) -> Any:
    """A list may be written with commas between."""
    return [part.strip().rstrip("/") for part in value.split(",")] if isinstance(value, str) else value


class ProposerOptions(BaseModel):
    """vLLM's speculative configuration takes no fields that it does not know, so these have a place of their own."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    draft_url: Annotated[list[Url], BeforeValidator(_split), Field(min_length=1)] = Field(
        description="draft workers' addresses, commas between; the first that answers is used"
    )
    token: SecretStr | None = Field(default=None, description="bearer token of the draft workers")
    ca: FilePath | None = Field(default=None, description="certificates to trust for https, as a PEM file")
    draft_model: str | None = Field(default=None, max_length=256, description="lookup, or none: the worker's own")
    deadline_ms: float | None = Field(
        default=None, gt=0.0, le=60_000.0, description="how long a step waits for drafts; none: half a measured step"
    )
    lookahead: OnOffAuto = Field(
        default="off",
        description="have the draft worker prepare the next drafts while vLLM's step runs; auto: where steps with it "
        "bring more tokens a second",
    )
    check_vocabulary: bool = Field(default=True, description="ask the draft worker for its vocabulary's fingerprint")
    trust_sampler: bool = Field(default=False, description="do not test vLLM's rejection sampler at start")


def read_options(additional_config: object, environ: Mapping[str, str] = os.environ) -> ProposerOptions:
    """The configuration's section over the environment. Raises pydantic.ValidationError, a ValueError."""
    section = additional_config.get(SECTION, {}) if isinstance(additional_config, Mapping) else {}
    names = ProposerOptions.model_fields
    variables = {name: environ[key] for name in names if environ.get(key := PREFIX + name.upper())}
    return ProposerOptions.model_validate(variables | dict(section))
