"""What the loop runs: jobs that feed tokens and get back what the model and the draw made of them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

from basics.prefix import shared_prefix
from engines.runtime.runner import ModelRunner
from engines.runtime.slots import Slot
from engines.sampling.batch import DrawnTokens, DrawRequest, Draws
from engines.sampling.distribution import Distribution
from engines.sampling.rows import SamplingRow
from protocol.messages import SequenceRequest

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Apart:
    """A chain that is drawn beside a feed's own, and leaves nothing in the slot: `token_ids` from position `start` on,
    which the slot holds once the feed's own tokens are fed, then up to `count` tokens, drawn as `sampling` says."""

    start: int
    token_ids: list[int]
    sampling: SamplingRow
    count: int


@dataclass(eq=False, slots=True)
class Feed(DrawRequest):
    """Tokens to feed behind what the job's slot holds, as one chain or, with `parents`, as a tree (see Row).

    Logits are wanted for token_ids[logits_from:]. `rows` has one entry for each of them, to draw a token from it, or is
    empty. The loop may feed the first `divisible` tokens, of a tree a chain that ends in the parent of all the rest,
    over several passes; what follows goes into one. A tree that is not to be committed may hang from `start`, short of
    what the slot holds; the slot then forgets what it held from there on. Up to `chain` tokens may be drawn in a row,
    their logits kept (`keeps`) where the engine has them; beside them those of `apart`, where the engine can (see
    Chains).
    """

    token_ids: list[int]
    logits_from: int
    parents: list[int] | None = None
    divisible: int = 0
    start: int | None = None
    chain: int = 0
    keeps: bool = False
    apart: Sequence[Apart] = ()


@dataclass(frozen=True, slots=True)
class Wait:
    """A job that has nothing to feed until `ready()`; it fails after `timeout` seconds."""

    ready: Callable[[], bool]
    timeout: float


@dataclass(frozen=True, slots=True)
class PassTimings:
    """Milliseconds from a job's feed to its result, and the last pass it took: tokens and sessions in it."""

    queue_ms: float
    forward_ms: float
    sample_ms: float
    total_ms: float
    rows: int
    sessions: int


@dataclass(frozen=True, slots=True)
class Passed:
    """What came of a feed: raw logits float32 [n, V], and the draws, if rows were given.

    Of tokens drawn in a row there are logits only if they were to be kept, and could be. `apart`: what was drawn for
    each chain of the feed's `apart`, maybe nothing; empty if the feed's own was not drawn in a row.
    """

    logits: Tensor
    draws: Draws | None
    timings: PassTimings
    apart: Sequence[DrawnTokens] = ()

    @property
    def drawn(self) -> DrawnTokens:
        return self._draws.drawn

    @property
    def distribution(self) -> Distribution:
        """What the tokens were drawn from, one distribution a row."""
        return self._draws.distribution()

    @property
    def _draws(self) -> Draws:
        if self.draws is None:
            raise RuntimeError("nothing was asked to be drawn")
        return self.draws


class Seat:
    """A job's hold on its slot, for use from within its steps."""

    def __init__(self, slot: Slot, runner: ModelRunner) -> None:
        self.slot = slot
        self.cached_tokens = len(slot.ids)
        self._runner = runner
        self._tree: tuple[Feed, int] | None = None

    @property
    def length(self) -> int:
        """How many tokens the slot holds keys and values for."""
        return len(self.slot.ids)

    def go_back(self, ids: Sequence[int]) -> None:
        """Keep of the slot's tokens only those that `ids` begins with: what is fed next goes on behind them."""
        del self.slot.ids[shared_prefix(self.slot.ids, ids) :]

    def fed_tree(self, feed: Feed, already_fed: int) -> None:
        """The loop's note that a tree was fed, its first `already_fed` tokens as a chain in earlier passes."""
        self._tree = (feed, already_fed)

    def commit(self, accepted: Sequence[int]) -> None:
        """Keep, of the tree just fed, its chain up to `logits_from` (the root) and then these nodes, root first."""
        if self._tree is None:
            raise RuntimeError("no tree was fed")
        feed, already_fed = self._tree
        path = [*range(already_fed, feed.logits_from + 1), *accepted]
        self._runner.commit(self.slot.index, self.length, [node - already_fed for node in path])
        self.slot.ids.extend(feed.token_ids[node] for node in path)
        self._tree = None


Steps = Generator[Feed | Wait, Passed | None, T]
"""Feeds are answered with Passed, waits with None."""


def prompt_of(request: SequenceRequest) -> int:
    """How many of a request's ids are read as a prompt: not the last one, after which the first token is drawn."""
    return max(0, request.num_prompt_tokens - 1)


@dataclass(eq=False, slots=True)
class Job(Generic[T]):
    """Work on one sequence. `ids` is its context, of which `usable` tokens at most may come from a slot's memory.

    `owner` is the session's serial, None for work that belongs to no session; `steps(seat)` starts the generator.
    The first `prompt` of the ids are the request's prompt, but for its last token (see Row).

    An `idle` job has no caller waiting for it. It is fed only while no other job has anything to feed, gets no slot
    but its owner's, and ends with QueueFull if another job needs that, or the loop is to end.
    """

    ids: Sequence[int]
    salt: str | None
    owner: int | None
    usable: int
    steps: Callable[[Seat], Steps[T]]
    idle: bool = False
    prompt: int = 0
