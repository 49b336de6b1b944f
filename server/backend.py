"""What the OpenAI-facing half of the gateway needs from the half that talks to the workers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from prometheus_client.registry import Collector

from basics.names import Strategy
from protocol.messages import Grammar, Sampling, StopReason, TokenLogprob
from protocol.worker_info import Capabilities, ModelInfo, TokenizerInfo


@dataclass(frozen=True, slots=True)
class RoundTimings:
    """Milliseconds. `network` is what the round trips cost beyond the workers' own totals."""

    draft: float = 0.0
    verify_forward: float = 0.0
    sample: float = 0.0
    queue: float = 0.0
    network: float = 0.0
    total: float = 0.0


@dataclass(frozen=True, slots=True)
class Round:
    """Tokens that one round added. `num_drafted` is 0 for plain decoding; `num_accepted` <= len(token_ids).

    `cached_tokens`: context tokens that the target did not compute again; null if it did not say. `target` and `draft`
    are the models' ids, `draft` null where nothing was to draft; `speculative`: a draft was asked for, whatever came
    of it.
    """

    token_ids: list[int]
    num_drafted: int
    num_accepted: int
    logprobs: list[TokenLogprob] | None
    stop_reason: StopReason | None
    stop_token_id: int | None
    lossless: bool
    source: str | None = None
    num_candidates: int = 0
    cached_tokens: int | None = None
    timings: RoundTimings = field(default_factory=RoundTimings)
    target: str = ""
    draft: str | None = None
    speculative: bool = False
    parts: tuple[tuple[str, int], ...] = ()
    """Of a draft that several drafters made: how many tokens each, in their order."""

    @property
    def pair(self) -> str:
        return pair_name(self.target, self.draft)

    def by_source(self, accepted: int) -> list[tuple[str | None, int, int]]:
        """(source, drafted, accepted) of each drafter, if the first `accepted` draft tokens are."""
        found: list[tuple[str | None, int, int]] = []
        place = 0
        for source, tokens in self.parts or ((self.source, self.num_drafted),):
            drafted = min(tokens, self.num_drafted - place)
            if drafted > 0:
                found.append((source, drafted, min(max(accepted - place, 0), drafted)))
            place += tokens
        return found


def pair_name(target: str, draft: str | None) -> str:
    """The name that metrics and logs give a pair of models, or a target alone."""
    return target if draft is None else f"{target}+{draft}"


@dataclass(frozen=True, slots=True)
class Speculation:
    """The resolved `speculative` block of one request."""

    enabled: bool
    draft_tokens: int
    draft_model: str | None
    num_candidates: int
    candidate_temperature: float | None
    candidate_top_p: float | None
    strategy: Strategy
    acceptance_threshold: float
    max_speculation_depth: int
    adaptive: bool


@dataclass(frozen=True, slots=True)
class OwnPrompt:
    """A chat rendered with one draft model's own template."""

    draft: str
    """The draft model's id."""
    text: str


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One choice to generate. `sampling.seed` is always set; `prompt` must not be empty."""

    request_id: str
    prompt: list[int]
    max_tokens: int
    sampling: Sampling
    choice_index: int
    speculation: Speculation
    logprobs: int | None = None
    grammar: Grammar | None = None
    prediction: list[int] | None = None
    own_prompt: OwnPrompt | None = None
    """The chat to a drafter that reads text, if it has a template of its own."""
    log_decisions: bool = False
    cache_salt: str | None = None
    caller: str = ""
    """Who asks, as a hash of the API key: one caller's answers are never used as drafts for another."""
    drawn_seed: bool = False
    """The seed is the gateway's own, drawn for this request: its noise is new."""
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class DrafterState:
    """The drafters as they are now. Without one (or with one that can't serve) requests fall back to plain decoding.

    `default` is the drafter used where a request names none; `names` are those a request may name. `capabilities` is
    what the reachable draft workers behind a name can do together; it lacks the names behind which none is reachable.
    """

    default: str | None
    names: tuple[str, ...]
    draft_tokens: int
    capabilities: Mapping[str | None, Capabilities]
    """By the name that a request gives; None: it names none."""
    templates: Mapping[str | None, TokenizerInfo] = field(default_factory=dict)
    """Of the drafters by text that have a chat template of their own, by the same names."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The one model this gateway serves. `names[0]` is how responses call it; a request may use any of `names`.

    The same object is handed out until something in it changes, so that callers may cache by identity what they
    derive from it. `target` is one of the targets, with the strategies and the number of candidates that any of them
    offers. `created` is seconds since the epoch.
    """

    names: tuple[str, ...]
    tokenizer: TokenizerInfo
    target: ModelInfo
    drafter: DrafterState
    created: int


class RoundSource(Protocol):
    """What generation consumes, whoever drives the rounds."""

    def rounds(self, request: GenerationRequest) -> AsyncIterator[Round]:
        """Rounds until the target stops or `max_tokens` are out. An async generator.

        Closing it (aclose, or cancelling its consumer) stops generation within a round and frees both sessions.
        Raises server.errors.NoTarget if no target can serve it, before the first round or in mid-stream, and
        `protocol.errors.WireError` where a worker refused the request.
        """
        ...


@dataclass(frozen=True, slots=True)
class GrammarFault:
    """`reason` is a sentence; `place` is where in a schema it applies ("properties.x"), "" if that is unknown."""

    reason: str
    place: str = ""


class Backend(RoundSource, Protocol):
    """Workers and the round loop over them, which are started and closed."""

    async def grammar_fault(self, grammar: Grammar) -> GrammarFault | None:
        """Why the target cannot honour a grammar; None if it can, or if no target could be asked."""
        ...

    def model(self) -> ServedModel:
        """What is served now. Raises server.errors.NoModelYet while no target has been reached. Never blocks."""
        ...

    def ready(self) -> tuple[bool, str]:
        """Whether requests can be served, and why or why not, in words. Never blocks."""
        ...

    def pairs(self) -> Iterable[str]:
        """The pairs (`pair_name`) that the workers known now can make. Never blocks."""
        ...

    def collectors(self) -> Iterable[Collector]:
        """Prometheus collectors of its own (made with `registry=None`), shown under the gateway's /metrics."""
        ...

    async def start(self) -> None:
        """Connect to the workers in the background; returns at once, also while none is up."""
        ...

    async def close(self) -> None:
        """Stop background tasks and free sessions; ends within seconds."""
        ...
