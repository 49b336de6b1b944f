"""Drafts for what may come, as idle work of the engine's loop (docs/lookahead.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from draft_worker.outcomes import MOST_CHAINED, Ahead, Branch, Place
from draft_worker.runtime.branches import grow
from draft_worker.runtime.guesses import Guesses, places_of
from engines.drawing import Limits, Places, RequestSampling
from engines.grammar.errors import GrammarError
from engines.runtime.jobs import Apart, Feed, Job, Passed, Seat, Steps, prompt_of
from engines.sampling.batch import DrawnTokens
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
    longest_apart: int = 0,
) -> Job[None]:
    """Fills in `ahead` for a checked request, whose whole context is `ids`; those must not change meanwhile.

    `longest_apart`: tokens that a chain apart may have (engines/runtime/runner.py).
    """
    drawing = RequestSampling(request, ids, limits, grammar)
    looking = _LookingAhead(request, drawing, q_top_k if request.want_q else None, ahead, longest_apart)
    if ahead.alone or ahead.known:  # it goes on where the draft stands, whose keys are there
        ids = [*ids, *ahead.drafted]
    return Job(ids, request.cache_salt, owner, len(ids) - 1, looking.steps, idle=True, prompt=prompt_of(request))


class _LookingAhead:
    def __init__(
        self,
        request: DraftRequest,
        drawing: RequestSampling,
        truncate: int | None,
        ahead: Ahead,
        longest_apart: int,
    ) -> None:
        self._longest_apart = longest_apart
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
            yield from self._draw_abreast(unread) if ahead.abreast > 1 else self._draw_on(seat, unread)
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
        drawn, places, _ = yield from self._draw(unread, ahead.drafted, 1 + ahead.guesses[0].tokens)
        if not drawn:
            return
        self._begin_with(drawn[0], places[0])
        for branch in ahead.branches:
            if branch.at == len(ahead.drafted) and branch.tokens[0] == drawn[0]:
                self._add(branch, drawn[1:], places[1:])
                unread = []
            else:
                before = [*drawing.ids, *ahead.drafted[: branch.at]]
                seat.go_back(before)
                unread = before[seat.length :]
            yield from self._grow(branch, unread)

    def _draw_abreast(self, unread: list[int]) -> Steps[None]:
        """Several outcomes at once: that of the likeliest token after the draft in the slot,
        the others apart, each behind what it takes of the draft."""
        drawing, ahead = self._drawing, self._ahead
        drafted, depth = ahead.drafted, 1 + ahead.guesses[0].tokens
        ahead.begin(drawing.room, drawing.stops)
        drawn: list[int] = []
        likeliest: Branch | None = None
        while len(drafted) + len(drawn) < drawing.room:  # the slot's own goes on with them, whether it is done or not
            others = [branch for branch in ahead.branches if branch is not likeliest and not branch.done]
            if not others and (len(drawn) >= depth or (likeliest is not None and likeliest.done)):
                return
            own = max(1, depth - len(drawn))
            tokens, places, apart = yield from self._draw(unread, [*drafted, *drawn], own, others)
            if not tokens:
                return
            if not drawn:
                self._begin_with(tokens[0], places[0])
                follows = (b for b in ahead.branches if b.at == len(drafted) and b.tokens[0] == tokens[0])
                likeliest = next(follows, None)
            if likeliest is not None:
                self._add(likeliest, tokens[0 if drawn else 1 :], places[0 if drawn else 1 :])
            for branch, found in zip(others, apart, strict=True):
                self._add(branch, found.tokens, [[token_id] for token_id in found.second])
                branch.done = branch.done or not found.tokens  # it can't be drawn on there
            drawn += tokens
            unread = tokens[-1:]

    def _begin_with(self, token_id: int, place: Place) -> None:
        """Begin what may come after the draft: with this token, or another one, as far as is known of its place."""
        drawing, ahead = self._drawing, self._ahead
        instead = place if isinstance(place, list) else []
        if isinstance(place, Tensor) and len(ahead.guesses) > 1:
            (instead,) = self._guesses.at(place, drawing.after([ahead.drafted]), drafted=False)
        found = [token_id, *(other for other in instead if other != token_id)]
        ahead.likely = [*ahead.likely, found[: ahead.most_guesses]]
        ahead.begin(drawing.room, drawing.stops)

    def _grow(self, branch: Branch, unread: list[int] | None = None) -> Steps[None]:
        """Alone, behind what the slot holds and `unread`."""
        drawing, ahead = self._drawing, self._ahead
        while ahead.chains and not branch.done:
            before = [*ahead.drafted[: branch.at], *branch.tokens]
            unread = [*(unread or []), before[-1]]
            drawn, kept, _ = yield from self._draw(unread, before, branch.depth - len(branch.tokens))
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

    def _draw(
        self, unread: list[int], before: list[int], count: int, others: Sequence[Branch] = ()
    ) -> Steps[tuple[list[int], list[Place], list[DrawnTokens]]]:
        """Up to `count` tokens in a row after the context and `before`, what is known of their places, and the next
        tokens of the `others`; none without time. `unread` is fed first."""
        ahead = self._ahead
        apart = [self._apart(branch) for branch in others]
        count = min(count, MOST_CHAINED)
        most = max([count, *(one.count for one in apart)])
        if not ahead.time_to_draw(most):
            return [], [], []
        place = self._drawing.after([before])
        last = len(unread) - 1
        feed = Feed(
            unread, last, rows=place.rows, allowed=place.allowed, divisible=last, chain=count, keeps=True, apart=apart
        )
        passed = yield feed
        assert passed is not None
        drawn = passed.drawn.tokens
        ahead.draws.append((max(len(drawn), *(len(one.tokens) for one in passed.apart), 0), _seconds(passed)))
        return drawn, places_of(passed), list(passed.apart) or [DrawnTokens([]) for _ in apart]

    def _apart(self, branch: Branch) -> Apart:
        """What the branch has is fed anew each time, as nothing of it stays."""
        drawing = self._drawing
        (row,) = drawing.after([[*self._ahead.drafted[: branch.at], *branch.tokens]]).rows
        room = self._longest_apart - len(branch.tokens)
        count = min(branch.depth - len(branch.tokens), MOST_CHAINED, room)
        return Apart(drawing.length + branch.at, list(branch.tokens), row, max(0, count))

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
