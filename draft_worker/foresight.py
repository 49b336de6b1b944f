"""What `auto` would draft for what may come of a verification under way (docs/lookahead.md)."""

from __future__ import annotations

import asyncio

from basics.names import AUTO
from draft_worker.auto import Auto, Choices, Chosen
from draft_worker.drafter import Asked, Memory
from draft_worker.lookahead import Lookahead, supposed
from draft_worker.outcomes import Ahead
from protocol.messages import Alternative, DraftRequest
from protocol.prepared import Prepared
from worker.session import Session

_MOST_OUTCOMES = 24


class Foresight:
    """For drafts that `auto` chose. On the event loop's thread."""

    def __init__(self, auto: Auto, lookahead: Lookahead | None, context_length: int) -> None:
        self._auto = auto
        self._lookahead = lookahead
        self._context_length = context_length

    def chose(self, session: Session[Memory], round_: int) -> bool:
        """Whether the draft of this round, the session's last, is one of these."""
        choices: Choices | None = session.state.get(AUTO)
        return choices is not None and choices.request is not None and choices.request.round == round_

    async def alternatives(self, session: Session[Memory], round_: int, seconds: float) -> list[Prepared]:
        """For the likely outcomes of this round's draft, the session's last, what would be drafted then, as far as that
        is there once all is prepared or the time is over. Nothing under a grammar, which no such verification takes.

        What is told is remembered, for the call that says it is being verified.
        """
        ahead = await self._lookahead.prepared(session, round_, seconds) if self._lookahead is not None else None
        choices: Choices | None = session.state.get(AUTO)
        request = choices.request if choices is not None else None
        if choices is None or request is None or request.grammar is not None or _gone_on(session, round_):
            return []
        found = []
        for came in self._outcomes(session, choices, request, ahead):
            chosen = self._after(session, choices, request, came)
            if chosen is not None:
                choices.told[came] = chosen
                found.append(_prepared(came, chosen))
            await asyncio.sleep(0)  # others are served meanwhile
            if _gone_on(session, round_):
                return []
        return found

    def _outcomes(
        self, session: Session[Memory], choices: Choices, request: DraftRequest, ahead: Ahead | None
    ) -> list[tuple[int, ...]]:
        """What may come, each once: the whole draft and what a copy would say then; a place where another copy says
        something else; and what the model guesses. No more than that many of them."""
        draft = choices.draft
        likely: list[list[int]] = []
        if (asked := self._supposed(session, choices, request, draft)) is not None:
            likely += [[*draft, one.token_ids[0]] for one in self._auto.proposals(asked, [])]
        for proposal in choices.proposed:
            same = 0
            while same < min(len(draft), len(proposal.token_ids)) and draft[same] == proposal.token_ids[same]:
                same += 1
            if same < len(draft) and same < len(proposal.token_ids):
                likely.append(proposal.token_ids[: same + 1])
        if ahead is not None:
            likely += [[*ahead.drafted[: branch.at], branch.tokens[0]] for branch in ahead.branches]
        return list(dict.fromkeys(map(tuple, likely)))[:_MOST_OUTCOMES]

    def _after(
        self, session: Session[Memory], choices: Choices, request: DraftRequest, came: tuple[int, ...]
    ) -> Chosen | None:
        asked = self._supposed(session, choices, request, list(came))
        return self._auto.suppose(asked, list(came)) if asked is not None else None

    def _supposed(
        self, session: Session[Memory], choices: Choices, request: DraftRequest, came: list[int]
    ) -> Asked | None:
        """The session's next call, were its context the last one and `came`; None if no draft has room then."""
        left = request.max_tokens - len(came)
        tokens = min(request.draft_tokens, left - 1, self._context_length - choices.at - len(came))
        if tokens < 1:
            return None
        within = {"draft_tokens": tokens, "max_tokens": left, "prediction": None, "verifying": None}
        stand_in = session.supposing(choices.at, came, supposed(session.state))
        return Asked(request.model_copy(update=within), stand_in, choices.at, 0.0)


def _gone_on(session: Session[Memory], round_: int) -> bool:
    """Whether a call has come since that of this round, or comes now."""
    return session.latest_round != round_ or session.call is not None


def _prepared(came: tuple[int, ...], chosen: Chosen) -> Prepared:
    return Prepared(
        alternative=Alternative(token_ids=list(came), candidate=chosen.drafted.candidates[0]),
        whole=True,
        parts=chosen.parts,
        planned=chosen.planned,
    )
