"""What a draft worker has prepared for the verification that is under way (docs/lookahead.md)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from protocol.messages import MAX_ALTERNATIVES, Alternative, DraftPart, Message, Reply, SessionId


class PreparedRequest(Message):
    """`POST /v1/prepared` on a draft worker: the drafts that it prepares after a draft with `lookahead_tokens`.

    It answers when all are whole, or `wait_ms` are over, with what there is.
    """

    protocol: Literal[1] = 1
    session_id: SessionId
    round: int = Field(ge=0, le=2**53, description="that of the draft")
    wait_ms: int = Field(ge=0, le=10_000)


class Prepared(Reply):
    alternative: Alternative
    whole: bool = Field(description="as long as was asked for, or as `auto` would have it; or ended by a stop token")
    parts: list[DraftPart] = Field(default_factory=list, description="for `auto`: as in a draft's answer")
    planned: int | None = Field(default=None, ge=0, description="likewise")

    def at_least(self, tokens: int) -> bool:
        """Whether its draft has so many, or has come to its end."""
        return self.whole or len(self.alternative.candidate.token_ids) >= tokens


class PreparedResponse(Reply):
    session_id: SessionId
    round: int
    prepared: list[Prepared] = Field(max_length=MAX_ALTERNATIVES, description="the likeliest first")
