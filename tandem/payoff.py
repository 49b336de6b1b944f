"""Whether speculation pays: the arithmetic, free of any network. Times are milliseconds.

A round drafts γ tokens, verifies them in one step of γ + 1 rows, and emits the accepted ones and one of the target's
own (Leviathan et al. 2022, section 3.1). Plain decoding emits one token a step of one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from basics.curves import rising
from basics.names import MAX_DRAFT_TOKENS, OnOffAuto

WORTH_IT = 1.1
"""A speed-up below this is explained: what holds speculation back."""
_WORTH_HIDING = 1.05
"""A round's time over that of one whose drafting is hidden."""
FAR = 0.05
"""The least part of a verification that must be network for one to be sent ahead (server/rounds/adaptive/depth.py)."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What was measured. `steps` are (rows, ms) of the target's forward pass; round trips are one call's overhead.

    `draft_call` is what a draft costs however short it is, `draft_token` what each token adds; `hidden` is what a round
    need not wait for of that, on average, since it was prepared while the target verified.
    """

    steps: tuple[tuple[int, float], ...]
    draft_call: float
    draft_token: float
    draft_round_trip: float
    target_round_trip: float
    hidden: float = 0.0

    def step(self, rows: int) -> float:
        """The target's step for a number of rows: between measurements by line, beyond them by the last one's slope.

        One of fewer rows takes no longer than one of more: where it was measured so, others were on the machine.
        """
        measured = sorted(self.steps)
        least = rising([ms for _, ms in measured])
        points = [(count, ms) for (count, _), ms in zip(measured, least, strict=True)]
        if not points:
            raise ValueError("no step time was measured")
        if len(points) == 1 or rows <= points[0][0]:
            return points[0][1]
        segments = list(pairwise(points))
        (left, low), (right, high) = next((s for s in segments if rows <= s[1][0]), segments[-1])
        return low + (high - low) * (rows - left) / (right - left)

    def drafting(self, draft_tokens: int) -> float:
        """What a round waits for γ draft tokens."""
        return max(0.0, self.draft_call + draft_tokens * self.draft_token - self.hidden)

    def round(self, draft_tokens: int) -> float:
        """One round with γ draft tokens."""
        drafting = self.drafting(draft_tokens)
        return drafting + self.draft_round_trip + self.step(draft_tokens + 1) + self.target_round_trip


@dataclass(frozen=True, slots=True)
class Yield:
    """What drafts bring.

    `acceptance` (α) is the chance that a draft token is accepted given that those before it were; `coverage` the share
    of rounds for which the drafter has a draft at all: a model always has one, lookup has not.
    """

    acceptance: float
    coverage: float = 1.0

    def tokens(self, draft_tokens: int) -> float:
        """Expected tokens a round: 1 + α + α² + … + α^γ with a draft, 1 without."""
        drafted = sum(self.acceptance**position for position in range(draft_tokens + 1))
        return self.coverage * drafted + (1 - self.coverage)


@dataclass(frozen=True, slots=True)
class Payoff:
    """`speed_up` is expected tokens a second over plain decoding's. Below WORTH_IT `reasons` say what holds it back."""

    draft_tokens: int
    tokens_a_round: float
    round_ms: float
    plain_ms: float
    speed_up: float
    best_draft_tokens: int
    best_speed_up: float
    needed_tokens_a_round: float
    reasons: tuple[str, ...]

    @property
    def pays(self) -> bool:
        return self.speed_up > 1


def acceptance_of(accepted: int, histogram: Sequence[int], draft_tokens: int) -> float:
    """α from rounds: accepted tokens over tokens that were looked at, a round's first rejected one included.

    `histogram[j]` counts the rounds that accepted exactly j; those that accepted all γ rejected nothing.
    """
    rejected = sum(histogram[:draft_tokens])
    return accepted / (accepted + rejected) if accepted + rejected else 0.0


def speed_up(costs: Costs, gains: Yield, draft_tokens: int) -> float:
    """Expected tokens a second with γ draft tokens over plain decoding's."""
    draft_only = costs.draft_call + costs.draft_round_trip
    without_draft = draft_only + costs.step(1) + costs.target_round_trip
    with_draft = costs.round(draft_tokens)
    mean_round = gains.coverage * with_draft + (1 - gains.coverage) * without_draft
    return gains.tokens(draft_tokens) * costs.step(1) / mean_round


def judge(costs: Costs, gains: Yield, draft_tokens: int) -> Payoff:
    """The speed-up to expect, the γ that would be best, and, if it does not pay, why."""
    expected = speed_up(costs, gains, draft_tokens)
    best = max(range(1, MAX_DRAFT_TOKENS + 1), key=lambda gamma: speed_up(costs, gains, gamma))
    best_speed_up = speed_up(costs, gains, best)
    plain = costs.step(1)
    tokens = gains.tokens(draft_tokens)
    return Payoff(
        draft_tokens=draft_tokens,
        tokens_a_round=tokens,
        round_ms=tokens * plain / expected,
        plain_ms=plain,
        speed_up=expected,
        best_draft_tokens=best,
        best_speed_up=best_speed_up,
        needed_tokens_a_round=tokens / expected,
        reasons=() if expected >= WORTH_IT else tuple(_reasons(costs, gains, draft_tokens, expected)),
    )


def lookahead_verdict(costs: Costs, draft_tokens: int, set_to: OnOffAuto | None = None, tried: bool = True) -> str:
    """Whether drafting while the target verifies pays (docs/lookahead.md): a sentence, with the reason if it does not.

    What is prepared takes a pass of the draft model over the draft, and then one for each of the γ tokens. `set_to` is
    the gateway's own setting, if it tells; `tried`: there it has been used in some round.
    """
    hidden, costs = costs.hidden, replace(costs, hidden=0.0)
    drafting, whole = costs.drafting(draft_tokens), costs.round(draft_tokens)
    room = costs.step(draft_tokens + 1) + costs.target_round_trip
    needed = (1 + draft_tokens) * costs.draft_token
    most = whole / (whole - drafting)
    measures = "which measures it" if tried else "not yet tried: it is measured"
    now = {
        None: "",
        "off": "; the gateway's is off",
        "auto": f"; the gateway's is auto, {measures} in requests whose γ adapts",
        "on": f"; the gateway's is on, which hid {hidden:.1f} ms a round here",
    }[set_to]
    if most < _WORTH_HIDING:
        return f"lookahead would not pay: drafting is only {drafting:.1f} of the {whole:.1f} ms of a round{now}"
    if needed > room:
        return (
            f"lookahead would hide little: preparing γ {draft_tokens} takes {needed:.1f} ms, and verification leaves "
            f"{room:.1f} ms for it{now}"
        )
    turn_on = "; `lookahead: auto` measures it" if set_to in (None, "off") else ""
    return (
        f"lookahead may pay: drafting is {drafting:.1f} of the {whole:.1f} ms of a round, so up to {most:.2f}×, if all "
        f"drafts are foreseen and the draft worker shares no cores with the target{now}{turn_on}"
    )


def flight_verdict(costs: Costs, draft_tokens: int, set_to: OnOffAuto | None = None, most: int | None = None) -> str:
    """Whether verifications pay that are sent before the last verdict is back (docs/lookahead.md, "Verification in
    flight"): a sentence, with the reason if they do not.

    `set_to` and `most` are the gateway's own `lookahead` and `verifications_in_flight`, if it tells. The round that it
    names is that of `lookahead_verdict`, nothing hidden.
    """
    costs = replace(costs, hidden=0.0)
    step, trip, whole = costs.step(draft_tokens + 1), costs.target_round_trip, costs.round(draft_tokens)
    needed = (1 + draft_tokens) * costs.draft_token
    if trip < FAR * (step + trip):
        return (
            f"verifications in flight would not pay: the way to the target and back is only {trip:.1f} of the "
            f"{step + trip:.1f} ms of a verification"
        )
    if 2 * costs.draft_token > step:
        return (
            f"verifications in flight would hide little: preparing a draft of one token takes "
            f"{2 * costs.draft_token:.1f} ms, and the target's pass leaves {step:.1f} ms for it"
        )
    shorter = f", with drafts of γ {int(step / costs.draft_token) - 1}" if needed > step else ""
    if most == 1:
        how = "the gateway's `verifications_in_flight: 1` turns them off"
    elif set_to in (None, "off"):
        how = "it comes with `lookahead: auto`" + ("; the gateway's is off" if set_to else "")
    else:
        how = f"the gateway's lookahead is {set_to}, with which they come"
    return (
        f"verifications in flight may pay: the way to the target and back is {trip:.1f} of the {whole:.1f} ms of a "
        f"round, and one that is foreseen takes {step:.1f} ms{shorter}; {how}"
    )


def _reasons(costs: Costs, gains: Yield, draft_tokens: int, expected: float) -> list[str]:
    """The parts that alone are to blame, the dearest first: without one of them speculation would pay or, if it pays
    as it is, be worth it.

    Each is measured by the speed-up there would be without it (for acceptance: were all accepted). Beside the first
    one; if no part alone is to blame, those that make up a tenth of a round or more are named.
    """
    gamma, plain = draft_tokens, costs.step(1)
    draft = costs.drafting(gamma)
    trips = costs.draft_round_trip + costs.target_round_trip
    extra = costs.step(gamma + 1) - plain
    tokens = gains.tokens(gamma)
    wanted = 1.0 if expected <= 1 else WORTH_IT
    needed = wanted * tokens / expected
    flat = replace(costs, steps=((1, plain),))

    def without(costs: Costs = costs, gains: Yield = gains) -> float:
        return speed_up(costs, gains, gamma)

    slow_draft = f"the draft is too slow: {draft:.1f} ms for {gamma} tokens, where a target step takes {plain:.1f} ms"
    few = (
        f"too little is accepted: {tokens:.2f} tokens a round come out (acceptance {gains.acceptance:.0%}, a draft in "
        f"{gains.coverage:.0%} of rounds), {needed:.2f} are needed" + ("" if wanted == 1 else f" for {wanted}×")
    )
    far = f"the round trips are too long: {trips:.1f} ms a round, where a target step takes {plain:.1f} ms"
    steep = f"verifying is too dear: {gamma + 1} rows take {extra:.1f} ms more than one row's {plain:.1f} ms"
    blame = [
        (without(replace(costs, draft_call=0.0, draft_token=0.0)), draft, slow_draft),
        (without(gains=Yield(1.0, 1.0)), plain, few),
        (without(replace(costs, draft_round_trip=0.0, target_round_trip=0.0)), trips, far),
        (without(flat), extra, steep),
    ]
    blame.sort(key=lambda part: part[0], reverse=True)
    worth_naming = costs.round(gamma) / 10
    material = [(speed, reason) for speed, cost, reason in blame if cost >= worth_naming or reason is few]
    alone = [reason for speed, _, reason in blame if speed > wanted][:1]
    if alone:
        return alone + [reason for speed, reason in material if speed > wanted and reason not in alone]
    return ["no part alone, but all of these together", *(reason for _, reason in material)]
