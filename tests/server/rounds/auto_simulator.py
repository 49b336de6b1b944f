"""An agent's day on a virtual clock: the real chooser and planner, against the drafters one by one.

Texts consist of stretches: `prose` repeats nothing, `code` repeats short pieces, `call` repeats an earlier answer,
`quotation` repeats long pieces of the prompt. The target always generates the text; a model predicts a token with the
accuracy of its stretch's kind.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from basics.names import AUTO, CACHE, MODEL, OnOffAuto
from config.workers import DraftWorkerConfig
from draft_worker.auto import Auto
from draft_worker.drafter import Asked, Copier, Means, Memory
from draft_worker.drafters.history import HistoryDrafter
from draft_worker.drafters.lookup import LookupDrafter
from draft_worker.engine import Drafted
from draft_worker.foresight import Foresight
from draft_worker.memory import AnswerMemory
from draft_worker.outcomes import Ahead, Branch
from protocol.messages import Candidate, DraftRequest, DraftTimings
from protocol.worker_info import StepTime
from server.fleet.times import DraftTimes, StepTimes
from server.rounds.adaptive.lookahead import SharedLookahead
from server.rounds.adaptive.pair import PairState
from server.rounds.adaptive.planner import AdaptivePlanner
from server.rounds.adaptive.round import RoundOutcome, Times
from worker.session import Session

MODEL_IS_RIGHT = {
    "prose": 0.7,
    "code": 0.75,
    "call": 0.6,
    "quotation": 0.7,
    "chat": 0.7,
    "warm chat": 0.52,
    "mild chat": 0.45,
    "other": 0.0,
}
"""`chat` and `warm chat`: the bundled draft's at temperature 0 and 0.7; in `mild chat` it hardly pays, in `other` it is
always wrong."""
KINDS: dict[str, list[str]] = {
    "prose": ["prose"] * 8,
    "code": ["code"] * 8,
    "calls": ["call"] * 8,
    "quotation": ["quotation"] * 8,
    "mixed": ["prose", "code", "call", "quotation"] * 2,
}
SINGLES = ("lookup", "history", "model")
_STRETCH = 64
_SCOPE = "a" * 32
_WRONG = 10**6
_NO_TIME = DraftTimings(queue_ms=0.0, forward_ms=0.0, sample_ms=0.0, total_ms=0.0)


@dataclass
class Machine:
    """Seconds of the target's passes, of a call to the draft worker, of what the model draws and has to read first, and
    of the way to the target and back (plain decoding has none)."""

    step: float = 0.030
    per_row: float = 0.002
    call: float = 0.0005
    fixed: float = 0.002
    per_token: float = 0.003
    per_read: float = 0.0
    read_delay: float = 0.0
    """By which an id of the prompt that the model reads delays a target on the same cores."""
    network: float = 0.0
    noise: float = 0.05
    busy_until: float = 0.0
    """Until then others start on its cores: all takes 1.5 to 4.5 times as long, and the target's first passes most."""
    rng: Random = field(default_factory=lambda: Random(1))
    now: float = 0.0

    def take(self, seconds: float) -> float:
        seconds *= self.rng.uniform(1 - self.noise, 1 + self.noise)
        if self.now < self.busy_until:
            seconds *= self.rng.uniform(1.5, 4.5)
        self.now += seconds
        return seconds

    def curve(self) -> list[StepTime]:
        """What the target says of its passes."""
        seconds = {rows: self.step + self.per_row * (rows - 1) for rows in (1, 2, 4, 8, 16, 32, 64)}
        busy = bool(self.busy_until)
        others = {rows: self.rng.uniform(1.5, 6.0 if rows < 4 else 3.0) if busy else 1.0 for rows in seconds}
        return [StepTime(rows=rows, seconds=others[rows] * took) for rows, took in seconds.items()]


@dataclass
class Text:
    """A prompt's length, all ids, and for each whether a model is right about it."""

    prompt: int
    ids: list[int]
    easy: list[bool]


def write(rng: Random, stretches: list[str], earlier: list[list[int]]) -> Text:
    ids = [rng.randrange(50_000) for _ in range(400)]
    text = Text(len(ids), ids, [False] * len(ids))
    for kind in stretches:
        end = len(ids) + _STRETCH
        while len(ids) < end:
            piece = [rng.randrange(50_000) for _ in range(4)]
            if kind == "code" and rng.random() < 0.5:
                start = rng.randrange(len(ids) - 16)
                piece += ids[start : start + rng.randint(6, 14)]
            elif kind == "call":
                said = rng.choice(earlier)
                start = rng.randrange(len(said) - 40)
                piece = said[start : start + 40]
            elif kind == "quotation":
                start = rng.randrange(text.prompt - 40)
                piece = ids[start : start + 40]
            ids += piece
            text.easy += [rng.random() < MODEL_IS_RIGHT[kind] for _ in piece]
        del ids[end:], text.easy[end:]
    return text


class ScriptedModel:
    """A draft model that knows the text, and is wrong where the text is hard.

    What it prepares goes on after the whole draft and its own guess of the next token, as far as there was time.
    """

    source = "model"

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.text = Text(0, [], [])
        self.read = 0
        """Ids of the text that it has read."""
        self.after: list[int] | None = None
        """The ids that it has prepared for, and how many tokens."""
        self.grown = 0

    def look_ahead(self, ids: list[int], seconds: float) -> Ahead:
        """After these: the context and a draft."""
        machine, place = self._machine, len(ids)
        guess = self.text.ids[place] if place < len(self.text.ids) and self.text.easy[place] else _WRONG
        self.after, self.grown = [*ids, guess], max(0, int((seconds - machine.fixed) / machine.per_token) - 1)
        return Ahead([], [], 1, branches=[Branch(0, [guess], 1)])

    def prepared(self, asked: Asked) -> int:
        return self.grown if self.after == asked.ids else 0

    def there(self, asked: Asked, ahead: list[int], tokens: int) -> tuple[Drafted, bool]:
        count = min(tokens, self.grown) if self.after == [*asked.ids, *ahead] else 0
        found = self._says(len(asked.ids) + len(ahead), count)
        return Drafted([Candidate(token_ids=found)], 0, _NO_TIME, count), count == tokens

    async def go_on(self, asked: Asked, ahead: list[int], tokens: int) -> Drafted:
        machine, read = self._machine, self.read
        there = self.there(asked, ahead, tokens)[0].prepared
        if there < tokens:
            machine.take(
                machine.fixed + machine.per_read * (len(asked.ids) - read) + machine.per_token * (tokens - there)
            )
        self.read = len(asked.ids)
        drafted = self._says(len(asked.ids) + len(ahead), tokens)
        return Drafted([Candidate(token_ids=drafted)], read, _NO_TIME, there)

    def _says(self, start: int, tokens: int) -> list[int]:
        text = self.text
        return [
            text.ids[place] if place < len(text.ids) and text.easy[place] else _WRONG
            for place in range(start, start + tokens)
        ]


class Foreseeing:
    """In place of the worker's Lookahead: what is prepared is the scripted model's."""

    def __init__(self) -> None:
        self.ahead: Ahead | None = None

    async def prepared(self, session: Session[Memory], round_: int, seconds: float) -> Ahead | None:
        return self.ahead


class Day:
    """Requests one after the other, all by one drafter (or `auto`), whose estimates live on."""

    def __init__(
        self,
        drafter: str,
        most: int,
        machine: Machine,
        seed: int,
        with_model: bool = True,
        draw_seconds: float | None = None,
        lookahead: OnOffAuto = "off",
    ) -> None:
        """`draw_seconds`: what the model's engine says that a token takes. `lookahead`: the gateway's setting."""
        self.machine = machine
        self.drafter = drafter
        self._most = most
        self._rng = Random(seed)
        self._model = ScriptedModel(machine)
        memory = AnswerMemory(2**24)
        self._earlier = [[self._rng.randrange(50_000) for _ in range(200)] for _ in range(8)]
        for said in self._earlier:
            memory.add(_SCOPE, said)
        means = Means(DraftWorkerConfig(), memory=memory)
        self._copiers: dict[str, Copier] = {}
        for kind in (HistoryDrafter, LookupDrafter):
            made = kind.of(means)
            assert isinstance(made, Copier)
            self._copiers[kind.source] = made
        model: Any = self._model if with_model else None
        self._auto = Auto(list(self._copiers.values()), model, None, lambda: machine.now, draw_seconds)
        self._pair = PairState(lookahead=SharedLookahead(lookahead))
        self._foreseeing: Any = Foreseeing()
        self._foresight = Foresight(self._auto, self._foreseeing, 10**6)
        drafts = DraftTimes([])
        ahead = DraftTimes([], like=drafts) if with_model and lookahead != "off" else None
        self._times = Times(StepTimes(machine.curve()), drafts, ahead)
        self.followed = 0

    async def answer(self, stretches: list[str]) -> float:
        """Decode one text; its seconds."""
        machine, times = self.machine, self._times
        text = self._model.text = write(self._rng, stretches, self._earlier)
        chooses = self.drafter == AUTO
        planner = AdaptivePlanner(self._pair, 5, self._most, 1, worker_chooses=chooses)
        session: Session[Memory] = Session("s", None, {}, list(text.ids[: text.prompt]))
        began = machine.now
        reading = Asked(_request(0, times.steps.prices(self._most)), session, 0, 0.0)
        self._model.read = text.prompt if self._auto.to_be_read(reading) else 0  # meanwhile the target reads, too
        machine.take(machine.read_delay * self._model.read)
        sent: dict[tuple[int, ...], list[int]] | None = None
        looked_ahead, before, last = False, 0, 0.0
        session.latest_round = _BASE.round
        while (done := len(session.ids)) < len(text.ids):
            left = len(text.ids) - done
            under_way = sent.get(tuple(session.ids[before:])) if sent is not None else None
            if sent is not None:
                planner.observe_ahead(under_way is not None, 1)
            sent, before = None, done
            plan = planner.plan(times)
            if under_way is None and (plan.draft_tokens == 0 or left == 1):
                looked_ahead = False
                for _ in range(min(plan.plain_tokens or 1, left)):
                    times.steps.observe_plain(1, machine.take(machine.step))
                    planner.observe_plain(1)
                    session.ids.append(text.ids[len(session.ids)])
                continue
            most = min(max(plan.draft_tokens, len(under_way or ())), left - 1)
            start = machine.now
            machine.take(machine.call if under_way is None else 0.0)
            told = under_way is None or (plan.draft_tokens and (plan.least_ahead or plan.lookahead))
            draft, planned, drawn = (
                await self._draft(session, most, left, under_way) if told else (under_way, len(under_way), False)
            )
            assert under_way is None or draft == under_way
            draft_seconds = machine.now - start
            self._model.after = self._foreseeing.ahead = None
            if chooses and not planned:
                planner.observe_nothing(draft_seconds, times)
                looked_ahead = False
                continue
            if told and plan.lookahead:
                expected = machine.step + machine.per_row * len(draft) + (0.0 if under_way else machine.network)
                self._foreseeing.ahead = self._model.look_ahead([*session.ids, *draft], expected)
                for branch in self._foreseeing.ahead.branches:
                    branch.at, self._foreseeing.ahead.drafted = len(draft), draft
            if told and plan.least_ahead and machine.network:
                found = await self._foresight.alternatives(session, _BASE.round, 0.0)
                sent = {
                    tuple(one.alternative.token_ids): one.alternative.candidate.token_ids for one in found if one.whole
                }
            accepted = 0
            while accepted < len(draft) and draft[accepted] == text.ids[done + accepted]:
                accepted += 1
            rows = 1 + len(draft)
            took = machine.take(machine.step + machine.per_row * (rows - 1))
            # One behind another that was sent ahead set out when the verdict before that came.
            way = machine.network if under_way is None else max(0.0, machine.network - last) if last else 0.0
            last = 0.0 if under_way is None else took
            waited = took + machine.take(way)
            if under_way is None:
                times.steps.observe_verify(rows, rows, took, waited)
                times.of(looked_ahead).drafts.observe(planned, draft_seconds)
            else:
                times.steps.observe_followed(rows, rows, took)
                self.followed += 1
            planner.observe(
                RoundOutcome(
                    planned,
                    1,
                    len(draft),
                    accepted,
                    accepted + 1,
                    0,
                    draft_seconds,
                    False,
                    took + way,
                    rows,
                    lookahead=plan.lookahead,
                    looked_ahead=looked_ahead,
                    drawn=drawn,
                ),
                times,
            )
            looked_ahead = plan.lookahead
            session.ids.extend(text.ids[done : done + accepted + 1])
        return machine.now - began

    async def _draft(
        self, session: Session[Memory], most: int, left: int, verifying: list[int] | None = None
    ) -> tuple[list[int], int, bool]:
        """A draft, how long it is meant to be, and whether the model drew any of it."""
        asked = Asked(_request(most, self._times.steps.prices(most), left, verifying), session, 0, 0.0)
        if self.drafter == AUTO:
            chosen = await self._auto.draft(asked)
            candidates = chosen.drafted.candidates
            drawn = any(part.source in (CACHE, MODEL) for part in chosen.parts)
            return (candidates[0].token_ids if candidates else []), chosen.planned, drawn
        if self.drafter == "model":
            return (await self._model.go_on(asked, [], most)).candidates[0].token_ids, most, True
        copy = self._copiers[self.drafter].copy(asked, [])
        return (copy.token_ids if copy is not None else []), most, False


_BASE = DraftRequest.model_validate_json(
    '{"session_id": "s", "round": 0, "context": {"start": 0, "token_ids": [1], "prefix_hash": "e4a6a0577479b2b4"},'
    ' "num_prompt_tokens": 1, "max_tokens": 512, "sampling": {"seed": 1}, "draft_tokens": 1}'
)


def _request(most: int, verify: list[float], left: int = 512, verifying: list[int] | None = None) -> DraftRequest:
    asked = {"draft_tokens": most, "verify_seconds": verify, "max_tokens": left, "verifying": verifying}
    return _BASE.model_copy(update={**asked, "history": _SCOPE})


async def tokens_per_second(
    drafter: str, kind: str, most: int = 32, seed: int = 1, requests: int = 8, **settings: Any
) -> float:
    """Of all but the first two requests of a day."""
    with_model, lookahead = settings.pop("with_model", True), settings.pop("lookahead", "off")
    machine = Machine(**settings, rng=Random(seed))
    day = Day(drafter, most, machine, seed, with_model, lookahead=lookahead)
    seconds = [await day.answer(KINDS[kind]) for _ in range(requests)]
    return (requests - 2) * len(KINDS[kind]) * _STRETCH / sum(seconds[2:])
