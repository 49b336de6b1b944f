"""What the OpenAI-facing half of the gateway needs from the half that talks to the workers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from prometheus_client.registry import Collector

from protocol.messages import Capabilities, Grammar, ModelInfo, TokenizerInfo
from server.rounds import GenerationRequest, Round


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


class Backend(Protocol):
    """Workers and the round loop over them. A `server.rounds.RoundSource` with a life of its own."""

    def rounds(self, request: GenerationRequest) -> AsyncIterator[Round]:
        """See RoundSource. May also raise a `protocol.errors.WireError` where a worker refused the request.

        An async generator: `aclose` stops generation within a round.
        """
        ...

    async def grammar_fault(self, grammar: Grammar) -> str | None:
        """Why the target cannot honour a grammar, in words; None where it can, or where none could be asked."""
        ...

    def model(self) -> ServedModel:
        """What is served now. Raises server.errors.NotReady while no target has been reached. Never blocks."""
        ...

    def ready(self) -> tuple[bool, str]:
        """Whether requests can be served, and in words why (not). Never blocks."""
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
