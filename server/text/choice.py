"""One choice on its way from rounds to text: detokenised, cut at stop strings, counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from protocol.messages import TokenLogprob
from server.backend import GenerationRequest, Round
from server.errors import Unavailable
from server.text.attribution import Attributed, Attribution, tokens_of
from server.text.detokenizer import Detokenizer
from server.text.stops import StopStrings

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Delta:
    """What one round added to a choice. `token_ids` are the counted ones, `logprobs` (where wanted) theirs.

    `stop_reason` is the stop string or the request's stop token that ended the choice, null for the model's own.
    `attributed`, if the request asks for it: who made which token, and which text is whose.
    """

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    attributed: Attributed | None = None


@dataclass(slots=True)
class Counts:
    """What was generated so far. accepted + the target's own = completion_tokens; rejected = drafted - accepted.

    `cached_prompt_tokens`: of the prompt, those that the target still held; null if it did not report it.
    """

    completion_tokens: int = 0
    rounds: int = 0
    step_drafted: list[int] = field(default_factory=list)
    step_accepted: list[int] = field(default_factory=list)
    accepted_by_drafter: dict[str, int] = field(default_factory=dict)
    lossless: bool = True
    cached_prompt_tokens: int | None = None

    @property
    def drafted(self) -> int:
        return sum(self.step_drafted)

    @property
    def accepted(self) -> int:
        return sum(self.step_accepted)


class Choice:
    """The text of one generation, fed round by round.

    A stop string ends the choice at the token that completed it: tokens after that one are neither shown nor counted,
    so that counts, like the text, do not depend on how the rounds fell. Stop strings inside the first `min_tokens`
    tokens do not count. A stop token is counted, but shown only where `include_stop` is set.
    """

    def __init__(
        self,
        index: int,
        request: GenerationRequest,
        detokenizer: Detokenizer,
        *,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        attribute: bool = False,
    ) -> None:
        """`attribute`: say of every delta which token its text comes from."""
        self.index = index
        self.request = request
        self.counts = Counts()
        self.finish_reason: FinishReason | None = None
        self._detokenizer = detokenizer
        self._stops = StopStrings(stop, include=include_stop)
        self._include_stop = include_stop
        self._attribution = Attribution(detokenizer) if attribute else None

    def push(self, round: Round) -> Delta:
        """Raises nothing; once `finish_reason` is set no more rounds may be pushed."""
        text = ""
        kept = 0
        attribution, number = self._attribution, self.counts.rounds
        tokens = tokens_of(round, number, len(round.token_ids)) if attribution is not None else []
        for token_id in round.token_ids:
            kept += 1
            is_stop_token = round.stop_reason == "stop_token" and kept == len(round.token_ids)
            if not is_stop_token or self._include_stop:
                piece = self._detokenizer.push(token_id)
                if attribution is not None:
                    attribution.decoded(piece, tokens[kept - 1])
                text += self._through_stops(piece, self.counts.completion_tokens + kept)
            if self._stops.found is not None:
                break
        self._count(round, kept)
        if self._stops.found is None and round.stop_reason is not None:
            piece = self._detokenizer.finish()
            if attribution is not None and piece:
                attribution.decoded(piece, tokens[kept - 1])
            text += self._through_stops(piece, self.counts.completion_tokens)
            text += self._stops.finish()
        if attribution is not None:
            attribution.shown(text)
        stop_reason: str | int | None = None
        if self._stops.found is not None:
            self.finish_reason, stop_reason = "stop", self._stops.found
        elif round.stop_reason == "stop_token":
            own = round.stop_token_id not in self.request.sampling.stop_token_ids
            self.finish_reason, stop_reason = "stop", None if own else round.stop_token_id
        elif round.stop_reason == "length":
            self.finish_reason = "length"
        return Delta(
            index=self.index,
            text=text,
            token_ids=round.token_ids[:kept],
            logprobs=round.logprobs[:kept] if round.logprobs is not None else None,
            finish_reason=self.finish_reason,
            stop_reason=stop_reason,
            attributed=Attributed(number, round, tokens[:kept], attribution.take())
            if attribution is not None
            else None,
        )

    def end(self) -> None:
        """To be called when the rounds are over. Raises Unavailable if they ended without a reason."""
        if self.finish_reason is None:
            raise Unavailable("the target stopped answering before the text was complete")

    def _through_stops(self, piece: str, tokens: int) -> str:
        if tokens <= self.request.sampling.min_tokens:
            return piece
        return self._stops.push(piece)

    def _count(self, round: Round, kept: int) -> None:
        counts = self.counts
        if counts.rounds == 0 and round.cached_tokens is not None:
            counts.cached_prompt_tokens = min(round.cached_tokens, len(self.request.prompt))
        counts.completion_tokens += kept
        counts.rounds += 1
        counts.lossless = counts.lossless and round.lossless
        if round.num_drafted:
            counts.step_drafted.append(round.num_drafted)
            accepted = min(round.num_accepted, kept)
            counts.step_accepted.append(accepted)
            for source, _, came in round.by_source(accepted):
                if source is not None:
                    counts.accepted_by_drafter[source] = counts.accepted_by_drafter.get(source, 0) + came
