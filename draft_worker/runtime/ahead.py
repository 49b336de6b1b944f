"""Drafts for what may come, as idle work of the engine's loop (docs/lookahead.md)."""

from __future__ import annotations

from torch import Tensor

from basics.names import GREEDY_TEMPERATURE
from draft_worker.outcomes import MOST_CHAINED, Ahead, Branch
from draft_worker.runtime.branches import grow
from engines.drawing import Limits, Places, RequestSampling
from engines.grammar.errors import GrammarError
from engines.grammar.state import GrammarState
from engines.runtime.jobs import Feed, Job, Passed, Seat, Steps, prompt_of
from engines.sampling import noise
from engines.sampling.draw import draw_top
from engines.sampling.process import UnusableLogits, process
from engines.sampling.rows import SamplingRow
from protocol.messages import DraftRequest, TopK


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
    if ahead.alone:  # it goes on where the draft stands, whose keys are there
        ids = [*ids, *ahead.drafted]
    return Job(ids, request.cache_salt, owner, len(ids) - 1, looking.steps, idle=True, prompt=prompt_of(request))


class _LookingAhead:
    def __init__(self, request: DraftRequest, drawing: RequestSampling, truncate: int | None, ahead: Ahead) -> None:
        self._request = request
        self._drawing = drawing
        self._truncate = truncate
        self._ahead = ahead

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
        if ahead.alone:
            yield from self._grow_on(seat)
            return
        places = drawing.along(drafted, range(-1, len(drafted) - 1))
        unread = drawing.ids[seat.length :]
        feed = Feed([*unread, *drafted], len(unread) - 1, divisible=len(unread) - 1)
        if not ahead.time(len(feed.token_ids)):
            return
        passed = yield feed
        assert passed is not None
        for place, likely in enumerate(self._likely(passed.logits, places)):
            left = [token_id for token_id in likely if place == len(drafted) or token_id != drafted[place]]
            ahead.likely.append(left[: ahead.most_guesses])
        if drafted and drafted[-1] in drawing.stops:
            ahead.likely.pop()  # nothing follows
        self._note(feed, passed)
        ahead.begin(drawing.room, drawing.stops)
        if len(ahead.branches) == 1 and ahead.branches[0].at == len(drafted):
            yield from self._grow(ahead.branches[0])
        else:
            yield from grow(drawing, drafted, ahead.branches, self._note, truncate=self._truncate, time=ahead.time)

    def _grow_on(self, seat: Seat) -> Steps[None]:
        """A branch after the whole draft: only what the draft's own passes have not fed is fed before it.

        Its keys stay: if the text takes it, nothing has to be read again.
        """
        drawing, ahead = self._drawing, self._ahead
        if ahead.drafted and ahead.drafted[-1] in drawing.stops:
            return  # nothing follows
        unread = [*drawing.ids, *ahead.drafted][seat.length :]
        if ahead.chains:
            yield from self._draw_on(unread)
            return
        feed = Feed(unread, len(unread) - 1, divisible=len(unread) - 1)
        if not ahead.time(len(unread)):
            return
        passed = yield feed
        assert passed is not None
        (likely,) = self._likely(passed.logits, drawing.after([ahead.drafted]))
        ahead.likely = [*([] for _ in ahead.drafted), likely[: ahead.most_guesses]]
        self._note(feed, passed)
        ahead.begin(drawing.room, drawing.stops)
        for branch in ahead.branches:
            yield from self._grow(branch)

    def _draw_on(self, unread: list[int]) -> Steps[None]:
        """The same where the engine draws tokens in a row: the likeliest one after the draft is how it would go on."""
        ahead = self._ahead
        drawn = yield from self._draw(unread, [], 1 + ahead.guesses[0].tokens)
        if drawn:
            ahead.likely = [*([] for _ in ahead.drafted), drawn[:1]]
            ahead.begin(self._drawing.room, self._drawing.stops)
            for branch in ahead.branches:
                self._add(branch, drawn[1:])
                yield from self._grow(branch)

    def _grow(self, branch: Branch) -> Steps[None]:
        drawing, ahead = self._drawing, self._ahead
        while ahead.chains and not branch.done:
            drawn = yield from self._draw(branch.tokens[-1:], branch.tokens, branch.depth - len(branch.tokens))
            if not drawn:
                return
            self._add(branch, drawn)
        while not branch.done and ahead.time(1):
            places = drawing.after([[*ahead.drafted, *branch.tokens]])
            feed = Feed(branch.tokens[-1:], 0, rows=places.rows, allowed=places.allowed, truncate=self._truncate)
            passed = yield feed
            assert passed is not None
            self._note(feed, passed)
            if self._truncate is not None:
                ((ids, logprobs),) = passed.distribution.entries()
                branch.q.append(TopK(token_ids=ids, logprobs=logprobs))
            branch.add(passed.drawn.tokens[0], drawing.stops)

    def _draw(self, unread: list[int], after: list[int], count: int) -> Steps[list[int]]:
        """Up to `count` tokens in a row behind the draft and `after`; none without time. `unread` is fed first."""
        ahead = self._ahead
        count = min(count, MOST_CHAINED)
        if not ahead.time_to_draw(count):
            return []
        place = self._drawing.after([[*ahead.drafted, *after]])
        last = len(unread) - 1
        passed = yield Feed(unread, last, rows=place.rows, allowed=place.allowed, divisible=last, chain=count)
        assert passed is not None
        ahead.draws.append((len(passed.drawn.tokens), _seconds(passed)))
        return passed.drawn.tokens

    def _add(self, branch: Branch, tokens: list[int]) -> None:
        for token_id in tokens:
            if not branch.done:  # a chain goes on after a stop token
                branch.add(token_id, self._drawing.stops)

    def _note(self, feed: Feed, passed: Passed) -> None:
        self._ahead.passes.append((len(feed.token_ids), _seconds(passed)))

    def _likely(self, logits: Tensor, places: Places) -> list[list[int]]:
        """For each place what the target is likely to say, the likeliest first, one more than there may be guesses."""
        count = self._ahead.most_guesses + 1
        rows = places.rows
        if self._request.sampling.temperature < GREEDY_TEMPERATURE:
            distribution = process(logits, [_likeliest(row, count) for row in rows], places.allowed)
            return [ids for ids, _ in distribution.truncate(count).entries()]
        distribution = process(logits, rows, places.allowed)
        found = draw_top(distribution, rows, count).tolist()
        if self._request.want_q:
            # A token in the draft's place is replaced by a draw from the residual, which has a noise of its own.
            found[:-1] = draw_top(distribution, rows, count, noise.RESIDUAL).tolist()[:-1]
        return [[token_id for token_id in ids if token_id >= 0] for ids in found]


def _seconds(passed: Passed) -> float:
    return (passed.timings.forward_ms + passed.timings.sample_ms) / 1e3


def _likeliest(row: SamplingRow, count: int) -> SamplingRow:
    likeliest = {"temperature": 1.0, "top_k": count, "top_p": 1.0, "min_p": 0.0}
    sampling = row.sampling.model_copy(update=likeliest)
    return SamplingRow(sampling, row.seed, row.position, row.history, row.num_prompt_tokens, row.stop_token_ids)
