"""The round loop: draft, verify, append, adapt, repeat; or let the target decode plainly for a while."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace

from basics.names import MAX_DRAFT_TOKENS, MAX_UNDER_WAY
from protocol.errors import WireError
from protocol.messages import Candidate, StopReason, TargetSpeculation, VerifyResponse
from protocol.worker_info import ModelInfo
from server.backend import GenerationRequest, Round, RoundTimings
from server.rounds.adaptive.candidates import gain_of, rows_of
from server.rounds.adaptive.round import RoundOutcome, RoundPlan
from server.rounds.context import RequestContext
from server.rounds.draft import Ahead, Draft, blames_the_draft
from server.rounds.draft_side import READ_AHEAD
from server.rounds.flight import Preparing
from server.rounds.speculating import Speculating
from server.rounds.target_side import TargetSide

OWN_DRAFTER = "target"
"""Stands for the drafter, and for the source of its drafts, if the target itself asks for them."""

# How many tokens are decoded plainly before the drafter is checked again: while it reads, and while there is none.
_WHILE_READING, _WHILE_ABSENT = 8, 16
# Tokens of context that a verification may have read for its time to count as a round's.
_MOST_UNREAD = 40
_IN_TIME = 0.8
"""Of a pass, for what is to be sent while it runs to be prepared."""
_UNDER_WAY = 0.003
"""What a call to a target takes beside the network."""


class RoundLoop:
    """One request's rounds over one target at a time and, if `speculating` is given, a drafter."""

    def __init__(
        self,
        context: RequestContext,
        target: TargetSide,
        info: ModelInfo,
        speculating: Speculating | None,
        target_drives: bool = False,
    ) -> None:
        """`target_drives`: the target asks a draft worker itself, and streams rounds that carry drafts."""
        self._context = context
        self._request: GenerationRequest = context.request
        self._sequence = context.sequence
        self._target = target
        self._info = info
        self._speculating = speculating
        self._target_drives = target_drives
        self._remaining = min(context.request.max_tokens, info.context_length - len(context.sequence))
        self._stopped = False
        self._looked_ahead = False
        self._asking: Draft | None = None
        self._draft_id = OWN_DRAFTER if target_drives and context.request.speculation.enabled else None

    async def rounds(self) -> AsyncIterator[Round]:
        """See server.backend.RoundSource. Whoever closes this must close the target's and the draft's side too."""
        if self._speculating is None:
            async for round_ in self._plain(self._remaining):
                yield round_
            return
        first = self._plan(self._speculating)
        if first.draft_tokens:
            self._speculating.drafts.read(self._prices(self._speculating, first))
            yield await self._verify(Draft.none(), 0, 0)
        while not self._stopped:
            foreseen = self._target.foreseen()
            plan = self._plan(self._speculating)
            if foreseen is not None:
                yield await self._follow(self._speculating, *foreseen, plan)
            elif plan.draft_tokens and await self._can_draft(self._speculating, plan):
                drafted = await self._draft_and_verify(self._speculating, plan)
                if drafted is not None:
                    yield drafted
            else:
                reading = self._speculating.drafts.state == "reading"
                stretch = plan.plain_tokens or (_WHILE_READING if reading else _WHILE_ABSENT)
                async for round_ in self._plain(min(stretch, self._remaining)):
                    self._speculating.planner.observe_plain(len(round_.token_ids))
                    yield round_

    def _plan(self, speculating: Speculating) -> RoundPlan:
        """The planner's, within what is left to generate: the last token is the target's own."""
        plan = speculating.planner.plan(speculating.times(self._target.step_times))
        room = self._remaining - 1
        draft_tokens, prepared_tokens = min(plan.draft_tokens, room), min(plan.prepared_tokens, room)
        depth = min(plan.depth, speculating.depth, MAX_UNDER_WAY if speculating.drafts.assumes else 2)
        return replace(plan, draft_tokens=draft_tokens, prepared_tokens=prepared_tokens, depth=depth)

    def _within(self, speculating: Speculating, plan: RoundPlan) -> RoundPlan:
        """A plan for drafts, as far as the workers in use can do it."""
        for worker in (self._info, speculating.drafts.worker.info if speculating.drafts.worker is not None else None):
            if worker is not None:
                able = worker.capabilities
                plan = replace(
                    plan,
                    draft_tokens=max(1, min(plan.draft_tokens, able.max_draft_tokens)),
                    prepared_tokens=min(plan.prepared_tokens, able.max_draft_tokens),
                    num_candidates=max(1, min(plan.num_candidates, able.max_candidates)),
                )
        return plan

    def _prices(self, speculating: Speculating, plan: RoundPlan) -> list[float] | None:
        """What a worker that chooses is told of the target's times; None: it does not."""
        if not plan.worker_chooses:
            return None
        return speculating.times(self._target.step_times).prices(plan.draft_tokens)

    async def _can_draft(self, speculating: Speculating, plan: RoundPlan) -> bool:
        """Whether a draft may be asked for now; if not, starts what is missing."""
        drafts = speculating.drafts
        if drafts.state == "absent" or (drafts.state == "ready" and drafts.unread > READ_AHEAD):
            drafts.read(self._prices(speculating, plan))
        if drafts.state == "reading":
            steps = self._target.step_times
            patience = speculating.draft_seconds(steps, 1) if speculating.patient else steps.verify(1)
            await drafts.until_read(patience)
        return drafts.state == "ready"

    async def _draft_and_verify(self, speculating: Speculating, plan: RoundPlan) -> Round | None:
        """A round; None if the worker chose to draft nothing, which is decoded plainly and so faster."""
        worker = speculating.drafts.worker
        self._draft_id = worker.info.id if worker is not None and worker.info is not None else self._draft_id
        plan = self._within(speculating, plan)
        draft_tokens, num_candidates = plan.draft_tokens, plan.num_candidates
        self._context.metrics.draft_tokens.observe(draft_tokens)
        self._context.metrics.candidates.observe(num_candidates)
        seconds = speculating.draft_seconds(self._target.step_times, draft_tokens, num_candidates)
        verify, ahead = self._prices(speculating, plan), self._ahead(speculating, plan)
        draft = await speculating.drafts.draft(draft_tokens, num_candidates, self._remaining, seconds, verify, ahead)
        if plan.worker_chooses and draft.planned == 0:
            speculating.planner.observe_nothing(draft.seconds, speculating.times(self._target.step_times))
            self._asking, self._looked_ahead = draft, False
            return None
        if draft.planned is not None:
            draft_tokens = draft.planned
        if self._looked_ahead and draft.candidates:
            self._count_prepared(speculating, draft, draft_tokens)
        looks_on = ahead is not None
        preparing = self._preparing(speculating, plan, draft_tokens, draft)
        round_ = await self._verify(draft, draft_tokens, num_candidates, looks_on, preparing)
        self._looked_ahead = looks_on
        return round_

    def _ahead(self, speculating: Speculating, plan: RoundPlan) -> Ahead | None:
        """What to ask of lookahead; None: nothing."""
        drafts = speculating.drafts
        if not plan.lookahead or drafts.ahead_times is None:
            return None
        # One more than is drafted now where that can't follow from what is there: so a longer γ is tried at no cost.
        more = 0 if plan.worker_chooses or drafts.extends else 1
        tokens = min(max(plan.draft_tokens + more, plan.prepared_tokens), MAX_DRAFT_TOKENS)
        steps, seconds = self._target.step_times, None
        if plan.depth > 2:  # what follows is prepared after this, for each as long as a pass takes
            seconds = _IN_TIME * (steps.verify(1 + plan.draft_tokens) - steps.network)
        return Ahead(tokens, plan.prepared_tokens, steps.network if plan.depth > 1 else 0.0, seconds)

    async def _follow(self, speculating: Speculating, candidate: Candidate, planned: int, plan: RoundPlan) -> Round:
        """A round whose verification is under way already. The draft worker is told of it, so that it looks ahead.

        `planned`: the draft's length if there was time, and no stop token; unless the worker said how long it is.
        """
        drafts, told = speculating.drafts, speculating.drafts.told(candidate)
        asked = planned if self._cut_short(candidate, planned) else len(candidate.token_ids)
        if told is not None and told.planned is not None:
            asked = told.planned
        goes_on = plan.draft_tokens > 0 and drafts.state == "ready"
        plan = self._within(speculating, plan) if goes_on else plan
        looks_on = plan.lookahead and goes_on
        drafting: asyncio.Task[Draft] | None = None
        preparing: Preparing | None = None
        if self._target.flies_on(plan.lookahead and plan.draft_tokens > 0 and plan.depth > 2):
            looks_on = True  # the draft worker has been told, and is further already
        elif looks_on or (told is not None and goes_on and plan.depth > 1):
            ahead = self._ahead(speculating, plan)
            seconds = speculating.draft_seconds(self._target.step_times, asked)
            ahead = replace(ahead, most=0) if ahead is not None else None  # what is verified is what was sent
            most = max(asked, plan.draft_tokens) if told is not None else asked
            verifying = candidate.token_ids if told is not None else None
            prices = self._prices(speculating, replace(plan, draft_tokens=most))
            draft_again = drafts.draft(most, 1, self._remaining, seconds, prices, ahead, verifying)
            drafting = self._context.background.start(draft_again)
            preparing = self._preparing(speculating, plan, asked, Draft.told(candidate, asked, ()), drafting)
        try:
            answered = await self._target.follow(self._remaining, preparing)
            if drafting is not None:
                await asyncio.wait({drafting})  # a session has one call at a time
        finally:
            if drafting is not None:
                drafting.cancel()
        if answered is None:
            draft = drafting.result() if drafting is not None else Draft.none()
            asked = draft.planned if draft.planned is not None else asked
            round_ = await self._verify(draft, asked if draft.candidates else 0, 1, looks_on)
        else:
            self._context.metrics.draft_tokens.observe(asked)
            self._context.metrics.candidates.observe(1)
            draft = Draft.told(candidate, asked, told.parts if told is not None else ())
            self._count_prepared(speculating, draft, asked, whole=True)
            round_ = self._account(*answered, draft, asked, 1, looks_on, followed=True)
        self._looked_ahead = looks_on
        return round_

    def _preparing(
        self,
        speculating: Speculating,
        plan: RoundPlan,
        draft_tokens: int,
        draft: Draft,
        drafting: asyncio.Task[Draft] | None = None,
    ) -> Preparing | None:
        """What asks for the drafts that can be sent ahead, if that is worth it, while `draft` is verified.

        `drafting`: that verification is under way already, and the draft worker is being told.
        """
        drafts, least = speculating.drafts, plan.least_ahead
        if least is None or plan.depth < 2 or not drafts.tells:
            return None
        most = max(plan.draft_tokens, plan.prepared_tokens)
        facts = self._info.capabilities.facts(self._request.speculation.strategy)
        if facts is None or facts.needs_q:
            least = most  # how long a draft is must not follow from the time there was (docs/exactness.md)
        steps = self._target.step_times
        # Sent so that it is there when the pass ends it saves the whole round trip, half a way later still half of it,
        # or of the pass. A verification under way began when the verdict before it set out.
        network, verify = steps.network, steps.verify(1 + draft_tokens)
        late = network + 0.5 * min(network, verify - network) if drafting is not None else 0.5 * network
        until = time.perf_counter() + verify - late - _UNDER_WAY
        ahead = self._ahead(speculating, plan) or Ahead()
        return Preparing(
            drafts=drafts,
            drafted=draft.candidates[0].token_ids if draft.candidates else [],
            until=until,
            least=least,
            most=most,
            observe=speculating.planner.observe_ahead,
            depth=plan.depth,
            ahead=replace(ahead, most=0),
            seconds=speculating.draft_seconds(steps, most),
            each=verify - 0.5 * network,
            drafting=drafting,
        )

    def _count_prepared(self, speculating: Speculating, draft: Draft, draft_tokens: int, whole: bool = False) -> None:
        metrics = self._context.metrics
        if not draft.drawn:
            outcome = "copy"  # there was nothing to prepare
        elif whole or draft.prepared == len(draft.candidates[0].token_ids):
            outcome = "hit"
        else:
            outcome = "part" if draft.prepared else "miss"
        metrics.lookahead_rounds.labels(outcome).inc()
        metrics.lookahead_tokens.inc(draft.prepared)
        times = speculating.drafts.times
        if draft.prepared and times.measured():
            metrics.lookahead_hidden.inc(max(0.0, times.draft(draft_tokens) - draft.seconds))

    async def _verify(
        self,
        draft: Draft,
        asked: int,
        num_candidates: int,
        lookahead: bool = False,
        preparing: Preparing | None = None,
    ) -> Round:
        try:
            answer, seconds = await self._target.verify(draft.candidates, self._remaining, preparing)
        except WireError as refusal:
            if not draft.candidates or self._speculating is None or not blames_the_draft(refusal):
                raise
            self._speculating.drafts.disown(refusal)
            return await self._verify(Draft.none(draft.seconds, failed=True), asked, num_candidates)
        return self._account(answer, seconds, draft, asked, num_candidates, lookahead)

    def _account(
        self,
        answer: VerifyResponse,
        seconds: float,
        draft: Draft,
        asked: int,
        num_candidates: int,
        lookahead: bool = False,
        followed: bool = False,
    ) -> Round:
        """Append what a verification brought, and learn from it. `followed`: it was sent ahead."""
        rows = rows_of(draft.candidates)
        length = len(self._sequence)
        # Time spent on reading a prompt, or on waiting for another call to read it, is not a round's.
        if length > len(self._request.prompt) and length - answer.cached_tokens <= _MOST_UNREAD:
            steps, took = self._target.step_times, answer.timings.total_ms / 1000
            if followed:
                steps.observe_followed(rows, answer.timings.rows, took)
            else:
                steps.observe_verify(rows, answer.timings.rows, took, seconds)
        round_ = self._emit(answer, seconds, draft, speculative=asked > 0)
        if self._speculating is not None and (draft.failed or draft.source is not None):
            times = self._speculating.times(self._target.step_times)
            outcome = RoundOutcome(
                asked=asked,
                num_candidates=num_candidates,
                drafted=answer.num_drafted,
                accepted=answer.num_accepted,
                emitted=len(answer.token_ids),
                gain=gain_of(draft.candidates, answer),
                draft_seconds=draft.seconds,
                draft_failed=draft.failed,
                verify_seconds=seconds,
                rows=rows,
                lookahead=lookahead,
                looked_ahead=self._looked_ahead,
                prepared=draft.prepared,
                asked_at=time.perf_counter() - seconds - draft.seconds,
                drawn=draft.drawn,
            )
            drafting = times.of(self._looked_ahead)
            if draft.candidates and self._cut_short(draft.candidates[answer.candidate or 0], asked):
                outcome = outcome.as_whole(drafting)
            elif not draft.failed and not followed:
                drafting.drafts.observe(asked - draft.prepared, draft.seconds, num_candidates)
            self._speculating.planner.observe(outcome, times)
        return round_

    def _cut_short(self, candidate: Candidate, asked: int) -> bool:
        """Whether the drafter drew a stop token, and so no further."""
        if len(candidate.token_ids) >= asked or self._speculating is None:
            return False
        worker = self._speculating.drafts.worker
        drafters = worker.info.stop_token_ids if worker is not None and worker.info is not None else []
        stops = {*self._info.stop_token_ids, *drafters, *self._request.sampling.stop_token_ids}
        return candidate.token_ids[-1] in stops

    async def _plain(self, max_tokens: int) -> AsyncIterator[Round]:
        speculation = self._request.speculation
        facts = self._info.capabilities.facts(speculation.strategy)
        if speculation.enabled and facts is not None and not facts.draws and not self._target_drives:
            # A strategy for debugging, whose choice of tokens only verification makes.
            for _ in range(max_tokens):
                yield await self._verify(Draft.none(), 0, 0)
                if self._stopped:
                    return
            return
        async with aclosing(self._target.generate(max_tokens, self._target_speculation())) as stream:  # type: ignore[type-var]
            async for answer, seconds in stream:
                # The first one's time includes reading the prompt.
                if answer.num_drafted == 0 and len(self._sequence) > len(self._request.prompt):
                    self._target.step_times.observe_plain(answer.timings.rows, seconds / len(answer.token_ids))
                draft, self._asking = self._asking or Draft.none(), None  # asking for nothing took its time, too
                yield self._emit(answer, seconds, draft, OWN_DRAFTER if answer.num_drafted else None)

    def _target_speculation(self) -> TargetSpeculation:
        """What a target that can drive rounds itself is to do."""
        drives = self._target_drives and self._request.speculation.enabled
        return TargetSpeculation(
            enabled=drives, draft_tokens=self._request.speculation.draft_tokens if drives else None
        )

    def _emit(
        self,
        answer: VerifyResponse,
        seconds: float,
        draft: Draft,
        source: str | None = None,
        speculative: bool = False,
    ) -> Round:
        """Append the tokens; a call's limit that is not the request's own is no reason to stop."""
        self._sequence.append(answer.token_ids)
        self._remaining -= len(answer.token_ids)
        stop: StopReason | None = answer.stop_reason
        if stop != "stop_token":
            stop = "length" if self._remaining <= 0 else None
        self._stopped = stop is not None
        timings = answer.timings
        draft_ms = 1000 * draft.seconds
        workers_ms = timings.total_ms + draft.worker_ms
        total_ms = 1000 * seconds + draft_ms
        return Round(
            token_ids=answer.token_ids,
            num_drafted=answer.num_drafted,
            num_accepted=answer.num_accepted,
            logprobs=answer.logprobs,
            stop_reason=stop,
            stop_token_id=answer.stop_token_id,
            lossless=answer.lossless,
            source=source or draft.source,
            num_candidates=len(draft.candidates),
            parts=draft.parts if answer.num_drafted else (),
            cached_tokens=answer.cached_tokens,
            timings=RoundTimings(
                draft=draft.worker_ms,
                verify_forward=timings.forward_ms,
                sample=timings.sample_ms,
                queue=timings.queue_ms,
                network=max(0.0, total_ms - workers_ms),
                total=total_ms,
            ),
            target=self._info.id,
            draft=self._draft_id,
            speculative=speculative or self._draft_id == OWN_DRAFTER,
        )
