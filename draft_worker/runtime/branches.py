"""Chains that leave a draft at some of its places, grown together as a tree over the shared context."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from draft_worker.outcomes import Branch
from engines.drawing import RequestSampling
from engines.runtime.jobs import Feed, Passed, Steps
from engines.sampling.columns import Columns
from protocol.messages import Sampling, TopK


def grow(
    drawing: RequestSampling,
    draft: Sequence[int],
    branches: Sequence[Branch],
    on_pass: Callable[[Feed, Passed], object],
    sampling: Sampling | None = None,
    truncate: int | None = None,
    columns: Columns | None = None,
    time: Callable[[int], bool] = lambda rows: True,
) -> Steps[None]:
    """Grow all branches a token a pass; each pass feeds the branches' tokens anew, as nothing of them is kept.

    `sampling` in place of the request's; `columns`: see DrawRequest. With `truncate` tokens are drawn from so many of
    the likeliest, and q is kept. It ends where there is no `time` for a pass of so many rows.
    """
    for branch in branches:
        branch.done = len(branch.tokens) >= branch.depth or branch.tokens[-1] in drawing.stops
    # A tree pass leaves nothing of the draft behind the place it hangs from, so that all hang from the first one.
    first = min((branch.at for branch in branches), default=0)
    while growing := [branch for branch in branches if not branch.done]:
        last = max(branch.at for branch in growing)
        # The draft from the first place where one leaves to the last, then the branches, their tips at the end.
        token_ids = list(draft[first:last])
        parents = list(range(-1, len(token_ids) - 1))
        tips: list[int] = []
        for branch in growing:
            parent = branch.at - first - 1
            for token_id in branch.tokens[:-1]:
                parents.append(parent)
                parent = len(token_ids)
                token_ids.append(token_id)
            tips.append(parent)
        logits_from = len(token_ids)
        token_ids += [branch.tokens[-1] for branch in growing]
        if not time(len(token_ids)):
            return
        places = drawing.after([[*draft[: branch.at], *branch.tokens] for branch in growing], sampling)
        feed = Feed(
            token_ids,
            logits_from,
            parents + tips,
            rows=places.rows,
            allowed=places.allowed,
            start=drawing.length + first,
            truncate=truncate,
            columns=columns,
        )
        passed = yield feed
        assert passed is not None
        on_pass(feed, passed)
        if truncate is not None:
            for branch, (ids, logprobs) in zip(growing, passed.distribution.entries(), strict=True):
                branch.q.append(TopK(token_ids=ids, logprobs=logprobs))
        for branch, logits, token_id in zip(growing, passed.logits, passed.drawn.tokens, strict=True):
            branch.keep(logits[None])
            branch.add(token_id, drawing.stops)
