"""Prepares drafts while the target verifies, and hands them out where they fit (docs/lookahead.md)."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from basics.names import AUTO
from draft_worker.engine import DraftEngine, LooksAhead
from draft_worker.fan_out import MOST_GUESSES, GuessRates, laid_out, likeliest, worths
from draft_worker.looking import Looking, same_draws
from draft_worker.outcomes import Ahead, Branch, Guess, Place
from draft_worker.pass_seconds import PassSeconds
from draft_worker.plans import DrawSeconds
from draft_worker.yields import Kind, Yields
from protocol.errors import WireError
from protocol.messages import Alternative, Candidate, DraftRequest, TopK
from protocol.prepared import Prepared
from serving.tasks import let_go
from worker.session import Session

if TYPE_CHECKING:
    from draft_worker.drafter import Asked, Memory
    from draft_worker.metrics import DraftMetrics

logger = logging.getLogger(__name__)

NAME = "lookahead"
_KIND: Kind = (NAME, 4)
"""Drafts that were sent, of any source. At first they are taken to be as good as those of a fair match."""
_MOST_OUTCOMES = 24
_FIRST_OUTCOMES = 6
"""While it is not known how long a verification takes."""
_MOST_TOKENS = 128
_LEAST_CHANCE = 0.01
_MOST_SECONDS = 5.0
_LOOK_ROUND = 16
"""Every so many preparations all places are looked at, so that what guesses are worth there stays known."""
_SMOOTHING = 0.2
_MOST_KEPT_BYTES = 16 * 2**20
"""Logits of prepared tokens that a session keeps until its next call."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is prepared of a draft; `ends` if it ends there with a stop token. `planned` is its length without that.

    `places`: what else may stand in its tokens' places.
    """

    token_ids: list[int]
    q: list[TopK]
    ends: bool
    planned: int
    places: Sequence[Place] = ()


@dataclass(frozen=True, slots=True)
class _Answered:
    """A draft that was answered, after which others are to be prepared: `planned` tokens were meant, `usual` would be
    of one of which nothing is prepared; `each` are to be prepared for an outcome. `places` of all its tokens; `known`
    if they say what else may stand there."""

    request: DraftRequest
    ids: list[int]
    owner: int
    drafted: list[int]
    planned: int
    usual: int
    each: int
    places: Sequence[Place]
    known: bool
    chains: bool

    @property
    def layout(self) -> tuple[object, ...]:
        """What the layout depends on, but for what was learned of the session."""
        return self.planned, self.usual, self.each, self.request.flight_seconds, self.known, self.chains


class Lookahead:
    """One for a worker whose engine can do it. On the event loop's thread."""

    def __init__(self, engine: DraftEngine, metrics: DraftMetrics) -> None:
        assert isinstance(engine, LooksAhead)
        self._engine: LooksAhead = engine
        self._metrics = metrics
        self._yields = Yields(strength=4.0)
        self._rates = GuessRates()
        self._gap: float | None = None
        self._seconds = PassSeconds(engine.model.info.step_seconds)
        self._drawing = DrawSeconds()
        """Of tokens that an engine with chains draws in a row."""
        self._begun = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._calls = 0
        self._no_calls = asyncio.Event()
        self._layouts: dict[tuple[object, ...], list[Guess]] = {}
        """Of those that were answered together last: they share them."""
        vocabulary = engine.model.info.vocabulary
        self._most_kept = _MOST_KEPT_BYTES // (4 * vocabulary.logits_size) if vocabulary is not None else 0

    @property
    def running(self) -> int:
        """Sessions that drafts are being prepared for."""
        return len(self._tasks)

    def settle(self, asked: Asked) -> None:
        """A call of the session has come: what is prepared is judged by its context, and no more is."""
        unchanged = asked.session.settle(NAME)
        looking: Looking | None = asked.session.state.get(NAME)
        if looking is None:
            return
        looking.fits = False
        looking.keep_older(asked, unchanged)
        if looking.task is not None:
            looking.task.cancel()
        ahead, request = looking.ahead, looking.request
        if ahead is None or request is None:
            return
        gap = time.perf_counter() - looking.began
        came = asked.ids[looking.at : asked.certain]
        beyond = len(asked.ids) > looking.at
        looking.fits = unchanged >= looking.at > 0 and beyond and same_draws(request, asked.request)
        for older, brought in looking.certain_now(asked):
            self._judge(looking, older, brought)
        if looking.fits and came:
            if not request.assumed_tokens and not asked.request.assumed_tokens:
                looking.gap = _smoothed(looking.gap, gap)
                self._gap = _smoothed(self._gap, gap)
            self._judge(looking, ahead, came)
        for rows, seconds in ahead.passes:
            self._seconds.observe(rows, seconds)
        for tokens, seconds in ahead.draws:
            self._drawing.observe(tokens, seconds)
        ahead.passes.clear()
        ahead.draws.clear()
        self._metrics.prepared(sum(len(branch.tokens) - 1 for branch in ahead.branches))

    def known(self, asked: Asked, ahead: list[int]) -> Known | None:
        """What is prepared for the context and `ahead`, which is drafted already; None without anything."""
        found = _branch(asked, ahead)
        if found is None:
            return None
        branch, own = found
        ended, tokens = branch.stopped, branch.tokens[own:]  # the engine's thread may still append to them
        if not tokens:
            return None
        drawn = slice(own - 1, own - 1 + len(tokens))
        q = branch.q[drawn]  # none, unless they were wanted
        return Known(tokens, q, ended, branch.depth - own if ended else len(tokens), branch.places[drawn])

    def counted_on(self, asked: Asked) -> int:
        """How many tokens after the context γ may take to be there; a stop token does not count as their end.

        Where q is wanted as many as were to be prepared for that context: how far they have grown follows from the time
        that passes took, and so from stop tokens in branches whose noise will be drawn again (docs/exactness.md).
        """
        if asked.request.want_q:
            found = _branch(asked, [])
            return found[0].depth - found[1] if found is not None else 0
        known = self.known(asked, [])
        return known.planned if known is not None else 0

    def lengthened(self, asked: Asked) -> Asked:
        """As many tokens as are there, if that is wanted; a stop token that ends them does not count as an end."""
        known = self.known(asked, []) if asked.tokens and asked.request.prepared_tokens else None
        tokens = min(known.planned, asked.request.prepared_tokens) if known is not None else 0
        if tokens <= asked.tokens:
            return asked
        return replace(asked, request=asked.request.model_copy(update={"draft_tokens": tokens}))

    async def alternatives(self, session: Session[Memory], round_: int, seconds: float) -> list[Prepared]:
        """What is prepared for what may come of the draft of this round, once all is whole or the time is over.

        That round must be the session's last: what is prepared goes on meanwhile, and afterwards.
        """
        ahead = await self.prepared(session, round_, seconds)
        looking: Looking | None = session.state.get(NAME)
        if ahead is None or looking is None or looking.request is None:
            return []
        found, request = [], looking.request
        for branch in ahead.branches:
            stopped, tokens = branch.stopped, list(branch.tokens)  # the engine's thread may still append to them
            if len(tokens) > 1:
                candidate = candidate_of(tokens[1:], branch.q[: len(tokens) - 1], request.want_q)
                came = [*ahead.drafted[: branch.at], tokens[0]]
                whole = stopped or len(tokens) > looking.each
                found.append(Prepared(alternative=Alternative(token_ids=came, candidate=candidate), whole=whole))
        return found

    async def prepared(self, session: Session[Memory], round_: int, seconds: float) -> Ahead | None:
        """What is prepared after the draft of this round, once that is all or the time is over; None without anything,
        and if that round is not the session's last by then."""
        looking: Looking | None = session.state.get(NAME)
        if looking is None or looking.request is None or looking.request.round != round_ or looking.task is None:
            return None
        if not looking.task.done():
            await asyncio.wait({looking.task}, timeout=seconds)
        return looking.ahead if session.latest_round == round_ else None

    async def free(self, session: Session[Memory]) -> None:
        """Wait until the engine has let go of what was being prepared for the session: by its next pass."""
        looking: Looking | None = session.state.get(NAME)
        if looking is not None and looking.task is not None and not looking.task.done():
            await asyncio.wait({looking.task})

    @contextmanager
    def serving(self) -> Iterator[None]:
        """A draft call is being served: nothing is begun meanwhile.

        So real calls are not delayed; and of those that come at about the same time, from a batch, or from streams
        whose target verifies them in one pass, what follows is prepared together, once all are answered.
        """
        self._calls += 1
        self._no_calls.clear()
        try:
            yield
        finally:
            self._calls -= 1
            if not self._calls:
                self._layouts.clear()
                self._no_calls.set()

    def begin(self, asked: Asked, drafted: list[int], planned: int, usual: int, places: Sequence[Place] = ()) -> None:
        """Prepare for what may come of `drafted`, a draft meant to have `planned` tokens, once all calls are answered.

        `usual`: the length of one of which nothing is prepared; `places`: what is known of the draft's. To be called
        before `drafted` is added to the session.
        """
        request, session = asked.request, asked.session
        looking: Looking | None = session.state.get(NAME)
        if looking is None:
            looking = session.state[NAME] = Looking(Yields(strength=6.0, prior=self._yields))
        looking.older = looking.still_open(asked) if request.assumed_tokens else []
        looking.ahead = None
        if not request.lookahead_tokens or asked.owner is None:
            return
        if asked.translator is not None or request.grammar is not None:
            return  # copying drafters read the session's state of the grammar, which must not be elsewhere meanwhile
        # Where this worker chooses lengths, what is asked for is the most: one more than now can be tried at no cost.
        each = min(request.lookahead_tokens, planned + 1) if request.draft_model == AUTO else request.lookahead_tokens
        chains = self._engine.chains and not request.want_q  # a chain keeps no distributions
        # Whether the planned part was drawn by the model: what a copy went on with after it must not count.
        of_draft = [*places, *[None] * len(drafted)][: len(drafted)]
        own = of_draft[:planned]
        known = len(own) > 0 and all(place is not None for place in own)
        answered = _Answered(
            request, list(asked.ids), asked.owner, list(drafted), planned, usual, each, of_draft, known, chains
        )
        looking.at, looking.each, looking.request = len(asked.ids), each, request
        looking.task = asyncio.get_running_loop().create_task(self._look(looking, looking.task, answered))
        self._tasks.add(looking.task)
        looking.task.add_done_callback(self._tasks.discard)
        looking.task.add_done_callback(let_go)

    def drop(self, session: Session[Memory]) -> None:
        """The session is gone."""
        looking: Looking | None = session.state.pop(NAME, None)
        if looking is not None and looking.task is not None:
            looking.task.cancel()

    async def close(self) -> None:
        """End all that is being prepared."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_MOST_SECONDS)

    def _time(self, looking: Looking, request: DraftRequest) -> float | None:
        """Seconds until the session's next call, as far as is known."""
        if request.lookahead_seconds is not None:
            return request.lookahead_seconds
        return looking.gap if looking.gap is not None else self._gap

    def _lay_out(self, looking: Looking, answered: _Answered, guesses: list[Guess], together: int = 1) -> None:
        """`together` sessions are prepared for in the same passes."""
        request, drafted, known = answered.request, answered.drafted, answered.known
        looking.began = began = time.perf_counter()
        gap = self._time(looking, request) if request.lookahead_seconds is None else None
        self._begun += 1
        everywhere = self._begun % _LOOK_ROUND == 0
        abreast = self._abreast(together)
        ahead = Ahead(drafted, guesses, MOST_GUESSES, request.want_q, everywhere, answered.chains, abreast, known=known)
        ahead.places = answered.places if known else []
        ahead.most_kept = self._most_kept // together
        if gap is not None:
            ahead.time = lambda rows: time.perf_counter() + self._seconds.of(rows * together) <= began + gap
            ahead.time_to_draw = lambda tokens: time.perf_counter() + self._drawing.of(tokens) <= began + gap
        looking.ahead = ahead

    async def _look(self, looking: Looking, previous: asyncio.Task[None] | None, answered: _Answered) -> None:
        deadline = time.monotonic() + _MOST_SECONDS
        while self._calls:
            await self._no_calls.wait()
        if self._engine.calls:
            return  # that of one who reads, or has left
        together = sum(not task.cancelling() for task in self._tasks)  # what a call has ended may not have let go yet
        if together == 1:
            guesses = self._choose(looking, answered, self._time(looking, answered.request))
        else:
            # A layout takes milliseconds: those of calls answered together are made once, by what was learned of all.
            if answered.layout not in self._layouts:
                self._layouts[answered.layout] = self._choose(looking, answered, self._gap, together)
            guesses = self._layouts[answered.layout]
        self._lay_out(looking, answered, guesses, together)
        ahead = looking.ahead
        assert ahead is not None
        if previous is not None and not previous.done():
            await asyncio.wait({previous})
        for one in looking.older:
            one.ahead.forget()
        try:
            with suppress(WireError):  # there is other work, or no time left
                await self._engine.look_ahead(answered.request, answered.ids, answered.owner, ahead, deadline)
        except Exception:
            logger.exception("preparing drafts failed")
        finally:
            ahead.places = ()  # logits take memory

    def _judge(self, looking: Looking, ahead: Ahead, came: list[int]) -> None:
        looking.yields.observe(_KIND, ahead.drafted, came)
        place = 0
        while place < min(len(came), len(ahead.drafted)) and came[place] == ahead.drafted[place]:
            place += 1
        if place < len(came) and place < len(ahead.likely) and (likely := ahead.likely[place]):
            rank = likely.index(came[place]) if came[place] in likely else None
            self._rates.observe(place < len(ahead.drafted), rank)
        found = ahead.following(came)
        self._metrics.foreseen(found is not None and len(found[0].tokens) > found[1])

    def _choose(self, looking: Looking, answered: _Answered, gap: float | None, together: int = 1) -> list[Guess]:
        """What is likeliest to be used of all that there is time for, and a token at least.

        For several sessions by what was learned of all, as they get the same.
        """
        yields = looking.yields if together == 1 else self._yields
        planned, usual, each, chains = answered.planned, answered.usual, answered.each, answered.chains
        most = _FIRST_OUTCOMES if gap is None else _MOST_OUTCOMES
        outcomes = likeliest(yields.chances(_KIND, planned), self._rates, most)
        likely = [outcome for outcome in outcomes if outcome[0] >= _LEAST_CHANCE] or outcomes[:1]
        right = yields.chances(_KIND, max(each, planned))
        pace = (gap or 0.0) / (1.0 + sum(right[:planned]))

        def seconds(rows: int) -> float:
            return self._seconds.of(rows * together)

        drawing = self._drawing.of if chains else lambda tokens: tokens * seconds(1)
        drawn = max(1, usual)  # none, if the draft that was answered was not worth its rows
        worth = worths(usual, max(drawing(drawn) / drawn, 1e-6), answered.request.flight_seconds, right[:each], pace)
        time = math.inf if gap is None else gap
        abreast = self._abreast(together)
        return laid_out(likely, planned, worth, _MOST_TOKENS, seconds, time, drawing, answered.known, chains, abreast)

    def _abreast(self, together: int) -> int:
        return max(1, self._engine.abreast // together)


def supposed(state: Memory) -> Memory:
    """What is remembered of a session, for one that stands in for it, whose context is an outcome."""
    found = {who: copy(what) for who, what in state.items()}
    if NAME in found:
        found[NAME] = replace(found[NAME], fits=True)
    return found


def _branch(asked: Asked, ahead: list[int]) -> tuple[Branch, int] | None:
    """What was begun for the context and `ahead`, however far it has grown, and how many of its tokens these are."""
    looking: Looking | None = asked.session.state.get(NAME)
    return looking.branch(asked, ahead) if looking is not None else None


def candidate_of(token_ids: list[int], q: list[TopK], wants_q: bool) -> Candidate:
    """A draft of tokens drawn from these distributions, which are known if they are wanted."""
    if not wants_q:
        return Candidate(token_ids=token_ids)
    logprobs = [top.logprobs[top.token_ids.index(token_id)] for token_id, top in zip(token_ids, q, strict=True)]
    return Candidate(token_ids=token_ids, logprobs=logprobs, q=q)


def _smoothed(old: float | None, new: float) -> float:
    return new if old is None else old + _SMOOTHING * (new - old)
