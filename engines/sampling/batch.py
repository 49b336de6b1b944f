"""The draws of a whole pass, batched over requests; a row that can't be drawn from fails its own request alone."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from basics.names import GREEDY_TEMPERATURE
from engines.sampling.columns import Columns
from engines.sampling.distribution import Distribution
from engines.sampling.draw import draw, draw_top2
from engines.sampling.process import UnusableLogits, process
from engines.sampling.rows import SamplingRow
from protocol.errors import EngineFailure

logger = logging.getLogger(__name__)

_TWO_LIKELIEST = {"temperature": 1.0, "top_k": 2, "top_p": 1.0, "min_p": 0.0}


@dataclass(eq=False, slots=True, kw_only=True)
class DrawRequest:
    """Tokens to be drawn, one from each row of logits; `rows` says how. `allowed` is what a grammar permits there, a
    bitmask int32 [rows, W]. `truncate`: tokens come from the likeliest K alone; `top2`: the runner-up is returned too.
    `columns`: the noise is shared in another vocabulary than the model's.
    """

    rows: Sequence[SamplingRow] = ()
    allowed: Tensor | None = None
    top2: bool = False
    truncate: int | None = None
    columns: Columns | None = None


@dataclass(frozen=True, slots=True)
class DrawnTokens:
    """Draws for a request's rows. `second` (−1: none) and `gaps` are filled if `top2` was asked for."""

    tokens: list[int]
    second: list[int] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Draws:
    """A request's draws, and on demand the distributions (one a row) that they came from."""

    drawn: DrawnTokens
    distribution: Callable[[], Distribution]


def draw_batch(asked: Sequence[tuple[Tensor, DrawRequest]]) -> list[Draws | EngineFailure]:
    """Draw from every request's logits, float32 [n, V] each; one that fails gets an error in place of draws.

    If it is unclear which request an error came from, each is drawn for alone: a row's bits are the same either way.
    """
    try:
        return _draw_together(asked)
    except Exception:
        logger.exception("drawing for %d requests failed", len(asked))
        if len(asked) == 1:
            return [EngineFailure("drawing failed")]
        return [answer for one in asked for answer in draw_batch([one])]


def _draw_together(asked: Sequence[tuple[Tensor, DrawRequest]]) -> list[Draws | EngineFailure]:
    """An error caused by a row's logits fails that row's request; any other is raised."""
    answers: list[Draws | EngineFailure | None] = [None] * len(asked)
    left = list(range(len(asked)))
    while left:
        rows = [row for i in left for row in asked[i][1].rows]
        each = [_drawable(*asked[i]) for i in left]
        logits = torch.cat(each) if len(each) > 1 else each[0]
        try:
            distribution = process(logits, rows, _allowed([asked[i][1] for i in left], logits.device))
        except UnusableLogits as error:
            at_fault = set(error.rows)
            place = 0
            for i in left:
                size = len(asked[i][1].rows)
                if not at_fault.isdisjoint(range(place, place + size)):
                    answers[i] = EngineFailure(f"the model gave no usable logits: {error.reason}")
                place += size
            left = [i for i in left if answers[i] is None]
            continue
        requests = [asked[i][1] for i in left]
        for i, answer in zip(left, _draw(distribution, logits, requests), strict=True):
            answers[i] = answer
        break
    return [answer for answer in answers if answer is not None]


def _drawable(logits: Tensor, request: DrawRequest) -> Tensor:
    return logits if request.columns is None else request.columns.masked(logits)


def _draw(distribution: Distribution, logits: Tensor, requests: Sequence[DrawRequest]) -> list[Draws]:
    """Requests that draw in one way are drawn together."""
    ways: dict[tuple[bool, int | None, Columns | None], list[int]] = defaultdict(list)
    for number, request in enumerate(requests):
        ways[request.top2, request.truncate, request.columns].append(number)
    starts = [0]
    for request in requests:
        starts.append(starts[-1] + len(request.rows))
    answers: dict[int, Draws] = {}
    for (top2, truncate, columns), numbers in ways.items():
        rows = [row for number in numbers for row in requests[number].rows]
        chosen, chosen_logits = distribution, logits
        if len(numbers) < len(requests):
            index = torch.tensor(
                [place for n in numbers for place in range(starts[n], starts[n + 1])], device=logits.device
            )
            chosen, chosen_logits = distribution.rows(index), logits[index]
        if truncate is not None:
            chosen = chosen.truncate(truncate)
        permitted = _allowed([requests[number] for number in numbers], logits.device) if top2 else None
        noise_ids = columns.noise_ids.to(logits.device) if columns is not None else None
        if top2:
            drawn = _top2(chosen, chosen_logits, rows, permitted, noise_ids)
        else:
            drawn = DrawnTokens(draw(chosen, rows, noise_ids=noise_ids).tolist())
        place = 0
        for number in numbers:
            stop = place + len(requests[number].rows)
            answers[number] = Draws(
                DrawnTokens(drawn.tokens[place:stop], drawn.second[place:stop], drawn.gaps[place:stop]),
                _part_of(chosen, place, stop),
            )
            place = stop
    return [answers[number] for number in range(len(requests))]


def _part_of(distribution: Distribution, start: int, stop: int) -> Callable[[], Distribution]:
    if stop - start == distribution.num_rows:
        return lambda: distribution
    return lambda: distribution.rows(torch.arange(start, stop, device=distribution.device))


def _allowed(requests: Sequence[DrawRequest], device: torch.device) -> Tensor | None:
    """What grammars permit, row by row: everything for requests without one. None: no request has a grammar."""
    width = next((request.allowed.shape[1] for request in requests if request.allowed is not None), None)
    if width is None:
        return None
    everything = torch.full((1, width), -1, dtype=torch.int32)
    masks = [
        everything.expand(len(request.rows), -1) if request.allowed is None else request.allowed for request in requests
    ]
    return torch.cat(masks).to(device)


def _top2(
    distribution: Distribution,
    logits: Tensor,
    rows: Sequence[SamplingRow],
    allowed: Tensor | None,
    noise_ids: Tensor | None,
) -> DrawnTokens:
    best = draw_top2(distribution, rows, noise_ids=noise_ids)
    drawn = DrawnTokens(best.first.tolist(), best.second.tolist(), best.gap.tolist())
    greedy = [i for i, row in enumerate(rows) if row.sampling.temperature < GREEDY_TEMPERATURE]
    if greedy:
        # A greedy distribution has one token; without noise the runner-up is that of the logits.
        likeliest = [_two_likeliest(rows[i]) for i in greedy]
        index = torch.tensor(greedy, device=logits.device)
        two = process(logits[index], likeliest, allowed[index] if allowed is not None else None).entries()
        for i, (ids, logprobs) in zip(greedy, two, strict=True):
            if len(ids) > 1:
                drawn.second[i], drawn.gaps[i] = ids[1], logprobs[0] - logprobs[1]
    return drawn


def _two_likeliest(row: SamplingRow) -> SamplingRow:
    sampling = row.sampling.model_copy(update=_TWO_LIKELIEST)
    return SamplingRow(sampling, row.seed, row.position, row.history, row.num_prompt_tokens, row.stop_token_ids)
