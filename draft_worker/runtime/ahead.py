"""Drafts for what may come, as idle work of the engine's loop (docs/lookahead.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from draft_worker.outcomes import MOST_CHAINED, Ahead, Branch, Place
from draft_worker.runtime.branches import grow
from draft_worker.runtime.guesses import Guesses, places_of
from engines.drawing import Limits, Places, RequestSampling
from engines.grammar.errors import GrammarError
from engines.runtime.jobs import Feed, Job, Passed, Seat, Steps, prompt_of
from engines.sampling.process import UnusableLogits
from protocol.messages import DraftRequest, TopK

if TYPE_CHECKING:
    from engines.grammar.state import GrammarState  # it imports xgrammar, which a worker without grammars lacks


def ahead_job(
    request: DraftRequest,
    ids: list[int],
    owner: int,
    limits: Limits,
    q_top_k: int,
    ahead: Ahead,
    grammar: GrammarState | None = None,
) -> Job[None]:
    """Fills in `ahead` for a checked request, whose whole context is `ids`; those must not change meanwhile."""
    drawing = RequestSampling(request, ids, limits, grammar)
    looking = _LookingAhead(request, drawing, q_top_k if request.want_q else None, ahead)
    if ahead.alone or ahead.known:  # it goes on where the draft stands, whose keys are there
        ids = [*ids, *ahead.drafted]
    return Job(ids, request.cache_salt, owner, len(ids) - 1, looking.steps, idle=True, prompt=prompt_of(request))


class _LookingAhead:
    def __init__(self, request: DraftRequest, drawing: RequestSampling, truncate: int | None, ahead: Ahead) -> None:
        self._drawing = drawing
        self._truncate = truncate
        self._ahead = ahead
        self._guesses = Guesses(request, ahead.most_guesses + 1)

    def steps(self, seat: Seat) -> Steps[None]:
        try:
            yield from self._steps(seat)
        except (GrammarError, UnusableLogits):
            return  # what has been prepared by now is as good as ever

    def _steps(self, seat: Seat) -> Steps[None]:
        drawing, ahead = self._drawing, self._ahead
        drafted = ahead.drafted
        if drawing.room <= len(drafted):
            return
        if ahead.known:
            ahead.likely = self._of_draft()
        if ahead.alone:
            yield from self._grow_on(seat)
            return
        began = yield from self._branch_off(seat) if ahead.known else self._look(seat)
        if not began:
            return
        if len(ahead.branches) == 1 and ahead.branches[0].at == len(drafted):
            yield from self._grow(ahead.branches[0])
        else:
            yield from grow(
                drawing,
                drafted,
                ahead.branches,
                self._note,
                truncate=self._truncate,
                time=ahead.time,
            )

    def _look(self, seat: Seat) -> Steps[bool]:
        """Feed the draft, to know all its places; False without time for that."""
        drawing, ahead = self._drawing, self._ahead
        drafted = ahead.drafted
        places = drawing.along(drafted, range(-1, len(drafted) - 1))
        unread = drawing.ids[seat.length :]
        feed = Feed([*unread, *drafted], len(unread) - 1, divisible=len(unread) - 1)
        if not ahead.time(len(feed.token_ids)):
            return False
        passed = yield feed
        assert passed is not None
        own, last = _split(places, len(drafted))
        found = self._guesses.at(passed.logits[:-1], own) if drafted else []
        ahead.likely = [self._others(place, ids) for place, ids in enumerate(found)]
        self._begin_after(passed.logits[-1:], last)
        self._note(feed, passed)
        return True

    def _branch_off(self, seat: Seat) -> Steps[bool]:
        """Feed what of the draft has not been fed, to know what follows it, and beside it the guesses at its places."""
        drawing, ahead = self._drawing, self._ahead
        drafted = ahead.drafted
        ahead.begin(drawing.room, drawing.stops)
        branches = list(ahead.branches)
        first = drawing.length + min((branch.at for branch in branches), default=len(drafted))
        start = min(seat.length, first)  # a tree has to hang from where its first branch leaves, or before
        stem = [*drawing.ids, *drafted][start:]
        tips = [token_id for branch in branches for token_id in branch.tokens]
        parents = [*range(-1, len(stem) - 1), *(drawing.length + branch.at - 1 - start for branch in branches)]
        if not ahead.time(len(stem) + len(tips)):
            return False
        places = drawing.after([drafted, *([*drafted[: branch.at], *branch.tokens] for branch in branches)])
        feed = Feed(
            [*stem, *tips],
            len(stem) - 1,
            parents if branches else None,
            rows=places.rows,
            allowed=places.allowed,
            divisible=max(0, first - start - 1),
            start=start if start < seat.length else None,
            truncate=self._truncate,
        )
        passed = yield feed
        assert passed is not None
        if branches:
            seat.commit([])  # the draft
            entries = passed.distribution.entries()[1:] if self._truncate is not None else []
            for branch, (ids, logprobs) in zip(branches, entries, strict=False):
                branch.q.append(TopK(token_ids=ids, logprobs=logprobs))
            drawn = passed.drawn.tokens[1:]
            for branch, logits, token_id in zip(branches, passed.logits[1:], drawn, strict=True):
                branch.keep(logits[None])
                branch.add(token_id, drawing.stops)
        self._begin_after(passed.logits[:1], _split(places, 1)[0])
        self._note(feed, passed)
        return True

    def _grow_on(self, seat: Seat) -> Steps[None]:
        """A branch after the whole draft: only what the draft's own passes have not fed is fed before it.

        Its keys stay: if the text takes it, nothing has to be read again.
        """
        drawing, ahead = self._drawing, self._ahead
        if ahead.drafted and ahead.drafted[-1] in drawing.stops:
            return  # nothing follows
        if not ahead.known:
            ahead.likely = [[] for _ in ahead.drafted]
        unread = [*drawing.ids, *ahead.drafted][seat.length :]
        if ahead.chains:
            yield from self._draw_on(seat, unread)
            return
        feed = Feed(unread, len(unread) - 1, divisible=len(unread) - 1)
        if not ahead.time(len(unread)):
            return
        passed = yield feed
        assert passed is not None
        self._begin_after(passed.logits, drawing.after([ahead.drafted]))
        self._note(feed, passed)
        for branch in ahead.branches:
            yield from self._grow(branch)

    def _draw_on(self, seat: Seat, unread: list[int]) -> Steps[None]:
        """The same where the engine draws tokens in a row: the likeliest one after the draft is how it would go on.

        The other outcomes come in turn, each where it leaves the draft.
        """
        drawing, ahead = self._drawing, self._ahead
        drawn, places = yield from self._draw(unread, ahead.drafted, 1 + ahead.guesses[0].tokens)
        if not drawn:
            return
        instead = places[0] if isinstance(places[0], list) else []
        if isinstance(places[0], Tensor) and len(ahead.guesses) > 1:
            (instead,) = self._guesses.at(places[0], drawing.after([ahead.drafted]), drafted=False)
        found = [drawn[0], *(token_id for token_id in instead if token_id != drawn[0])]
        ahead.likely = [*ahead.likely, found[: ahead.most_guesses]]
        ahead.begin(drawing.room, drawing.stops)
        for branch in ahead.branches:
            if branch.at == len(ahead.drafted) and branch.tokens[0] == drawn[0]:
                self._add(branch, drawn[1:], places[1:])
                unread = []
            else:
                before = [*drawing.ids, *ahead.drafted[: branch.at]]
                seat.go_back(before)
                unread = before[seat.length :]
            yield from self._grow(branch, unread)

    def _grow(self, branch: Branch, unread: list[int] | None = None) -> Steps[None]:
        """Alone, behind what the slot holds and `unread`."""
        drawing, ahead = self._drawing, self._ahead
        while ahead.chains and not branch.done:
            before = [*ahead.drafted[: branch.at], *branch.tokens]
            unread = [*(unread or []), before[-1]]
            drawn, kept = yield from self._draw(unread, before, branch.depth - len(branch.tokens))
            if not drawn:
                return
            unread = []
            self._add(branch, drawn, kept)
        while not branch.done and ahead.time(1):
            places = drawing.after([[*ahead.drafted, *branch.tokens]])
            feed = Feed(branch.tokens[-1:], 0, rows=places.rows, allowed=places.allowed, truncate=self._truncate)
            passed = yield feed
            assert passed is not None
            self._note(feed, passed)
            if self._truncate is not None:
                ((ids, logprobs),) = passed.distribution.entries()
                branch.q.append(TopK(token_ids=ids, logprobs=logprobs))
            branch.keep(passed.logits)
            branch.add(passed.drawn.tokens[0], drawing.stops)

    def _draw(self, unread: list[int], before: list[int], count: int) -> Steps[tuple[list[int], list[Place]]]:
        """Up to `count` tokens in a row after the context and `before`, and what is known of their places; none without
        time. `unread` is fed first."""
        ahead = self._ahead
        count = min(count, MOST_CHAINED)
        if not ahead.time_to_draw(count):
            return [], []
        place = self._drawing.after([before])
        last = len(unread) - 1
        feed = Feed(unread, last, rows=place.rows, allowed=place.allowed, divisible=last, chain=count, keeps=True)
        passed = yield feed
        assert passed is not None
        drawn = passed.drawn.tokens
        ahead.draws.append((len(drawn), _seconds(passed)))
        return drawn, places_of(passed)

    def _add(self, branch: Branch, tokens: list[int], places: list[Place]) -> None:
        for token_id, place in zip(tokens, places, strict=True):
            if not branch.done:  # a chain goes on after a stop token
                branch.places.append(place if branch.keeps or not isinstance(place, Tensor) else None)
                branch.add(token_id, self._drawing.stops)

    def _begin_after(self, logits: Tensor, place: Places) -> None:
        """Begin what may come after the draft, whose logits there are given, and all that could not be begun before."""
        drawing, ahead = self._drawing, self._ahead
        if not ahead.drafted or ahead.drafted[-1] not in drawing.stops:
            (likely,) = self._guesses.at(logits, place, drafted=False)
            ahead.likely = [*ahead.likely, likely[: ahead.most_guesses]]
        ahead.begin(drawing.room, drawing.stops)

    def _of_draft(self) -> list[list[int]]:
        """The guesses at the draft's places, from what drawing has kept of them."""
        drafted, kept = self._ahead.drafted, self._ahead.places
        found = [place if isinstance(place, list) else [] for place in kept]
        of = [number for number, place in enumerate(kept) if isinstance(place, Tensor)]
        if of:
            logits = torch.cat([place for place in kept if isinstance(place, Tensor)])
            places = self._drawing.after([drafted[:number] for number in of])
            for number, ids in zip(of, self._guesses.at(logits, places), strict=True):
                found[number] = ids
        return [self._others(number, ids) for number, ids in enumerate(found)]

    def _others(self, place: int, likely: list[int]) -> list[int]:
        """Without the drafted token: if it were right, it would be accepted."""
        drafted = self._ahead.drafted[place]
        return [token_id for token_id in likely if token_id != drafted][: self._ahead.most_guesses]

    def _note(self, feed: Feed, passed: Passed) -> None:
        """What the pass took with all its rows, those of other sessions too."""
        self._ahead.passes.append((max(len(feed.token_ids), passed.timings.rows), _seconds(passed)))


def _seconds(passed: Passed) -> float:
    return (passed.timings.forward_ms + passed.timings.sample_ms) / 1e3


def _split(places: Places, count: int) -> tuple[Places, Places]:
    """The first `count` and the rest."""
    rows, allowed = places.rows, places.allowed
    first = Places(rows[:count], allowed[:count] if allowed is not None else None)
    return first, Places(rows[count:], allowed[count:] if allowed is not None else None)
