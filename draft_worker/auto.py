"""`draft_model: auto`: every drafter that copies, and the model, are candidates in every round; the draft expected
to bring most is made.

Drafters that copy propose each time, which costs next to nothing, and are judged each time by what the target then
said, whether or not their proposal was the one it saw. The model is judged where it was asked; now and then it is asked
though something else looks better, so that what is known of it stays true. A copy may be continued by the model, and
the model by a copy.

Under `probabilistic` what is chosen must not depend on noise that verification draws with again, or the text would be
biased. So choices follow from the context alone (whose noise is used up), from what is known of kinds of drafts, and
from times; never from a token that was drawn but is not part of the context. What a draft is continued by may follow
from the tokens before it: it is looked at only if they were all accepted, and then they are context.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from basics.names import AUTO, CACHE
from draft_worker.drafter import Asked, Copier, certain, joined, permitted
from draft_worker.drafters.model import ModelDrafter, model_parts
from draft_worker.engine import Drafted
from draft_worker.grammars import SessionGrammars
from draft_worker.plans import (
    AfterPrepared,
    Costs,
    DraftPlan,
    DrawSeconds,
    Proposal,
    best_plan,
    ceiling,
    extended,
    speed_of,
)
from draft_worker.yields import DRAWN, GREEDY, OTHERS_STRENGTH, Kind, Yields, match_class
from protocol.messages import DraftPart, DraftRequest
from protocol.target_rounds import is_greedy

_POOR = 0.9
"""Of plain decoding's speed: a model whose best draft is expected to bring less reads no prompts, which takes computing
from a target on the same cores, but those of which it is then to be tried."""
_FIRST_PATIENCE, _FIRST_PATIENCE_WITHOUT_HOPE = 6, 48
"""Asks of all sessions without a draw: then there is one, whatever is believed. Twice as many each time that the model
was not wanted before the next, up to _LONGEST_PATIENCE, or of a poor model _LONGEST_PATIENCE_WITH_POOR. Without hope: a
model too slow to pay even if it were always right, by what its engine and the target say of their passes."""
_LONGEST_PATIENCE, _PATIENCE_BESIDE_COPIES, _LONGEST_PATIENCE_WITH_POOR = 12, 48, 384
_DRAWS_UNTIL_JUDGED = 3
_FIRST_DRAW = 4
"""Tokens at most while it is not known what they take."""
_MOST_UNREAD = 40
"""Tokens of the context that a draw may have had to read, for its time to count as a draw's."""
_LEAST_EXTENDING_MATCH = 3


@dataclass(frozen=True, slots=True)
class Chosen:
    """A draft, the drafters that its tokens come from, and the length it would have without a stop token.

    `extended` of these are what another copy goes on with after the draft that was planned.
    """

    parts: list[DraftPart]
    drafted: Drafted
    planned: int
    extended: int = 0

    @property
    def source(self) -> str:
        return self.parts[0].source if self.parts else AUTO

    @property
    def token_ids(self) -> list[int]:
        return self.drafted.candidates[0].token_ids if self.drafted.candidates else []


@dataclass(slots=True)
class Choices:
    """What is remembered of a session: its own yields, its last call, of `at` ids, and how many the model has read.

    `proposed` are its proposals, `draft` is what was chosen; `told` what was said to be drafted next, by the ids
    that are to come before.
    """

    yields: Yields
    proposed: list[Proposal] = field(default_factory=list)
    at: int = 0
    read: int = 0
    request: DraftRequest | None = None
    draft: list[int] = field(default_factory=list)
    told: dict[tuple[int, ...], Chosen] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Weighed:
    """What could be drafted at a context, and the plan that is worth most."""

    proposals: list[Proposal]
    copies: list[tuple[Proposal, list[float]]]
    drawn: list[float]
    poor: bool
    costs: Costs
    plan: DraftPlan


class Auto:
    """Chooses among the worker's drafters."""

    def __init__(
        self,
        copiers: Sequence[Copier],
        model: ModelDrafter | None,
        grammars: SessionGrammars | None,
        clock: Callable[[], float] = time.perf_counter,
        draw_seconds: float | None = None,
        singly: bool = True,
    ) -> None:
        """`draw_seconds`: what the engine says that a pass of one token takes; `singly`: each drawn token takes one."""
        self._copiers = copiers
        self._model = model
        self._grammars = grammars
        self._clock = clock
        self._yields = Yields(strength=4.0)
        self._draws = DrawSeconds(draw_seconds)
        self._pass_seconds = draw_seconds if singly else None
        self._drawn = 0
        self._undrawn = 0
        self._patience = _FIRST_PATIENCE
        self._was_right = False
        self._poor = False

    def to_be_read(self, asked: Asked) -> bool:
        """Whether the model is to read this context: it is worth it, or to be tried."""
        choices, verify = self.choices(asked), asked.request.verify_seconds
        if verify and self._model is not None:
            chances = choices.yields.chances(_kind_of_model(asked), len(verify) - 1)
            self._poor = self._is_poor(chances, Costs(verify, self._draws))
        if self._poor and self._undrawn < self._asks_before_a_try(self._poor):
            return False
        choices.read = len(asked.ids)
        return True

    async def draft(self, asked: Asked) -> Chosen:
        """The draft that is worth most; an empty one if none is worth its rows.

        One that was told and is being verified already is the draft, whatever would be chosen now.
        """
        choices, told = self._settle(asked)
        if told is not None and told.token_ids == asked.request.verifying and told.planned <= asked.tokens:
            chosen = self._taken(asked, choices, told)
        else:
            chosen = await self._choose(asked, choices)
        choices.request, choices.draft = asked.request, chosen.token_ids
        return chosen

    def suppose(self, asked: Asked, came: list[int]) -> Chosen | None:
        """What `draft` would choose if `came` came after the session's last call, of what is there: nothing is drawn.

        None: nothing would be drafted, or something that is not there. `asked` is that call, of a session that stands
        in for its own.
        """
        choices = self.choices(asked)
        yields = choices.yields.supposing([(one.kind, one.token_ids) for one in choices.proposed], came)
        weighed = self._weigh(asked, yields)
        plan = weighed.plan
        if not plan.drawn and asked.request.verify_seconds and weighed.drawn:
            right = [one.token_ids[:1] == came[:1] for one in choices.proposed if one.kind[0] == ModelDrafter.source]
            was_right, unread = (right[-1] if right else self._was_right), len(asked.ids) - choices.read
            if self._try_is_due(unread, plan.copied > 0, weighed.poor, was_right):
                return None
        more: Drafted | None = None
        if plan.drawn and self._model is not None:
            more, whole = self._model.there(asked, _copied(plan), plan.drawn)
            if not whole and asked.request.want_q:
                return None  # how much is there must decide nothing (docs/exactness.md)
            if not whole:
                plan, more = self._of_what_is_there(asked, weighed)
        if not (plan.copied or plan.drawn):
            return None
        return self._put_together(asked, plan, yields, weighed.costs, more)

    def _of_what_is_there(self, asked: Asked, weighed: _Weighed) -> tuple[DraftPlan, Drafted | None]:
        """The best plan for which nothing has to be drawn, and what of it is prepared; an empty one if drawing is worth
        more than what such a draft saves, as it can be verified before the verdict on the one before it is back."""
        assert self._model is not None
        saved = asked.request.flight_seconds
        there = self._model.there(asked, [], len(weighed.drawn))[0].prepared
        for drawn in (weighed.drawn[:there] if not weighed.poor else [], []):
            plan = best_plan(weighed.copies, drawn, weighed.costs)
            more, whole = self._model.there(asked, _copied(plan), plan.drawn)
            if whole and plan.tokens >= weighed.plan.value * (plan.seconds - saved):
                return plan, more if plan.drawn else None
        return DraftPlan(0.0, 0.0, 0.0), None

    def _taken(self, asked: Asked, choices: Choices, told: Chosen) -> Chosen:
        """A draft that was told is the session's: what could be known of others is learned all the same."""
        choices.proposed = self.proposals(asked, [])
        drawn = sum(part.tokens for part in told.parts if part.source in (CACHE, ModelDrafter.source))
        if drawn:
            self._drawn += 1
            self._undrawn, self._patience = 0, _FIRST_PATIENCE
            choices.read = len(asked.ids)
            if told.parts[0].source in (CACHE, ModelDrafter.source):
                choices.proposed.append(Proposal(_kind_of_model(asked), told.token_ids[:drawn]))
        else:
            self._undrawn += 1
            self._draws.rest()
        return replace(told, drafted=replace(told.drafted, timings=certain(asked, []).timings))

    async def _choose(self, asked: Asked, choices: Choices) -> Chosen:
        weighed = self._weigh(asked, choices.yields)
        self._poor, plan, costs = weighed.poor, weighed.plan, weighed.costs
        tried = False
        if not plan.drawn and asked.request.verify_seconds and weighed.drawn:
            tried = self._is_to_be_tried(len(asked.ids) - choices.read, beside_copy=plan.copied > 0)
            plan = best_plan(weighed.copies, weighed.drawn, costs, must_draw=True) if tried else plan
        choices.proposed = weighed.proposals
        if not plan.drawn:
            self._undrawn += 1
            self._draws.rest()
        elif not tried:
            self._patience = _FIRST_PATIENCE
        more = await self._drawn_after(asked, plan, choices, tried)
        return self._put_together(asked, plan, choices.yields, costs, more)

    def _weigh(self, asked: Asked, yields: Yields) -> _Weighed:
        verify = asked.request.verify_seconds
        # Without the target's times only tokens count, and the draft is as long as was asked.
        prepared = self._model.prepared(asked) if self._model is not None else 0
        draws = AfterPrepared(self._draws, prepared) if prepared else self._draws
        costs = Costs(verify[: asked.tokens + 1] if verify else [1.0] * (asked.tokens + 1), draws)
        proposals = self.proposals(asked, [])
        copies = [(one, yields.chances(one.kind, len(one.token_ids))) for one in proposals]
        most = len(costs.verify) - 1 if self._drawn else min(_FIRST_DRAW, len(costs.verify) - 1)
        drawn = yields.chances(_kind_of_model(asked), most) if self._model is not None else []
        poor = self._is_poor(drawn, costs)
        return _Weighed(proposals, copies, drawn, poor, costs, best_plan(copies, drawn if not poor else [], costs))

    def _is_poor(self, drawn: Sequence[float], costs: Costs) -> bool:
        """Whether the model's best draft is far from being worth it: judged by its draws, and before there are any by
        what it could bring at most, so that a model that can't pay costs nothing from the first request on."""
        if self._drawn >= _DRAWS_UNTIL_JUDGED:
            return speed_of(drawn, costs) < _POOR
        return self._pass_seconds is not None and ceiling(costs.verify, self._pass_seconds) < 1.0

    def _asks_before_a_try(self, poor: bool) -> int:
        without_hope = poor and self._drawn < _DRAWS_UNTIL_JUDGED
        return max(self._patience, _FIRST_PATIENCE_WITHOUT_HOPE) if without_hope else self._patience

    def _is_to_be_tried(self, unread: int, beside_copy: bool) -> bool:
        """Whether the model draws though something else looks better, so that what is known of it stays true.

        If it was right when it was last tried, then again. A poor one only where it has read the context, unless that
        would never come about; where a copy has something to offer, which a try would cost, seldom.
        """
        was_right, self._was_right = self._was_right, False
        return self._try_is_due(unread, beside_copy, self._poor, was_right)

    def _try_is_due(self, unread: int, beside_copy: bool, poor: bool, was_right: bool) -> bool:
        patience = self._asks_before_a_try(poor)
        patience = max(patience, _PATIENCE_BESIDE_COPIES) if beside_copy else patience
        if self._undrawn < patience and not (was_right and not beside_copy):
            return False
        return not poor or unread <= _MOST_UNREAD or self._undrawn >= _LONGEST_PATIENCE_WITH_POOR

    def _observe_draw(self, tokens: int, seconds: float, tried: bool) -> None:
        self._draws.observe(tokens, seconds)
        self._undrawn = 0
        if tried and (self._poor or self._drawn >= _DRAWS_UNTIL_JUDGED):
            self._patience = min(
                2 * self._asks_before_a_try(self._poor),
                _LONGEST_PATIENCE_WITH_POOR if self._poor else _LONGEST_PATIENCE,
            )

    def choices(self, asked: Asked) -> Choices:
        """What is remembered of its session."""
        choices: Choices | None = asked.session.state.get(AUTO)
        if choices is None:
            choices = asked.session.state[AUTO] = Choices(Yields(OTHERS_STRENGTH, self._yields))
        return choices

    def _settle(self, asked: Asked) -> tuple[Choices, Chosen | None]:
        """Judge what was proposed last by the tokens that have come since; what was told to be drafted after these."""
        choices = self.choices(asked)
        told: Chosen | None = None
        if asked.session.settle(AUTO) >= choices.at > 0:
            came = asked.ids[choices.at :]
            told = choices.told.get(tuple(came))
            for proposal in choices.proposed:
                choices.yields.observe(proposal.kind, proposal.token_ids, came)
                if proposal.kind[0] == ModelDrafter.source:
                    self._was_right = proposal.token_ids[:1] == came[:1]
        choices.proposed, choices.at, choices.request = [], len(asked.ids), None
        choices.told = {}
        return choices, told

    def proposals(self, asked: Asked, ahead: list[int]) -> list[Proposal]:
        """What the copying drafters would say after the context and `ahead`."""
        found: list[Proposal] = []
        for copier in self._copiers:
            copy = copier.copy(asked, ahead)
            if copy is None or (ahead and copy.match < _LEAST_EXTENDING_MATCH):
                continue
            drafts = permitted(asked, [copy.token_ids], self._grammars, ahead)
            if drafts:
                found.append(Proposal((copier.source, match_class(copy.match)), drafts[0]))
        return found

    async def _drawn_after(self, asked: Asked, plan: DraftPlan, choices: Choices, tried: bool) -> Drafted | None:
        """What the model draws after what is copied, if it is to draw."""
        if not plan.drawn or self._model is None:
            return None
        began = self._clock()
        more = await self._model.go_on(asked, _copied(plan), plan.drawn)
        seconds = self._clock() - began
        token_ids = more.candidates[0].token_ids
        if len(token_ids) < plan.drawn:  # it ended with a stop token, which may be drawn again, or could say no more
            seconds = max(seconds, self._draws.of(plan.drawn))
        self._drawn += 1
        if more.prepared:
            self._undrawn = 0
        elif len(asked.ids) - more.cached_tokens <= _MOST_UNREAD:
            self._observe_draw(plan.drawn, seconds, tried)
        choices.read = len(asked.ids)
        if not plan.copied:
            choices.proposed.append(Proposal(_kind_of_model(asked), token_ids))
        return more

    def _put_together(
        self, asked: Asked, plan: DraftPlan, yields: Yields, costs: Costs, more: Drafted | None
    ) -> Chosen:
        """What is copied and `more`, what the model has drawn after it; and what another copy goes on with."""
        copied = _copied(plan)
        parts = [DraftPart(source=plan.copy.kind[0], tokens=plan.copied)] if plan.copy is not None else []
        drafted = certain(asked, [copied] if copied else [])
        if more is not None:
            places = [*[None] * len(copied), *more.places]
            drafted = Drafted(
                [joined(drafted.candidates, more.candidates)], more.cached_tokens, more.timings, places=places
            )
            parts += model_parts(more)
            if len(more.candidates[0].token_ids) < plan.drawn:
                return Chosen(parts, drafted, plan.copied + plan.drawn)
        chosen = Chosen(parts, drafted, plan.copied + plan.drawn)
        whole = plan.drawn or (plan.copy is not None and plan.copied == len(plan.copy.token_ids))
        return self._extend(asked, plan, yields, costs, chosen) if whole and asked.request.verify_seconds else chosen

    def _extend(self, asked: Asked, plan: DraftPlan, yields: Yields, costs: Costs, so_far: Chosen) -> Chosen:
        """Let another copy go on where the draft ends, if that is worth its rows."""
        ahead = so_far.drafted.candidates[0].token_ids
        best: tuple[int, Proposal] | None = None
        for proposal in self.proposals(asked, ahead):
            chances = yields.chances(proposal.kind, len(proposal.token_ids))
            count = extended(plan, len(ahead), chances, costs)
            if count and (best is None or count > best[0]):
                best = count, proposal
        if best is None:
            return so_far
        count, proposal = best
        tail = certain(asked, [proposal.token_ids[:count]])
        drafted = so_far.drafted
        whole = joined(drafted.candidates, tail.candidates)
        return Chosen(
            [*so_far.parts, DraftPart(source=proposal.kind[0], tokens=count)],
            Drafted([whole], drafted.cached_tokens, drafted.timings, places=drafted.places),
            so_far.planned + count,
            count,
        )


def _copied(plan: DraftPlan) -> list[int]:
    return plan.copy.token_ids[: plan.copied] if plan.copy is not None else []


def _kind_of_model(asked: Asked) -> Kind:
    return ModelDrafter.source, GREEDY if is_greedy(asked.request.sampling) else DRAWN
