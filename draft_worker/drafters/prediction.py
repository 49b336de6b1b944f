"""Drafts from a predicted output (OpenAI's `prediction`): what the caller expects, re-aligned after mismatches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

from draft_worker.drafter import STATED, Asked, Copy, Means, certain, permitted
from draft_worker.engine import Drafted
from draft_worker.grammars import SessionGrammars

_LONGEST_ANCHOR = 16
_DISTANT_ANCHOR = 4
"""Tokens that must agree for a jump back, or further ahead than the window."""
_NEAR_ANCHOR = 2
"""The same for a jump within the window; right where an edit of a token or two would leave off, one is enough."""
_EDIT_SLACK = 2
_REPLACED = 2
"""Output tokens since a mismatch that are taken to replace as many predicted ones while nothing better is found."""


class PredictionDrafter:
    """Drafts if the request, or an earlier one of its session, has brought a prediction that goes on here."""

    source: ClassVar[str] = "prediction"

    def __init__(self, window: int, grammars: SessionGrammars | None) -> None:
        self._window = window
        self._grammars = grammars

    @classmethod
    def of(cls, means: Means) -> Self | None:
        return cls(means.config.prediction_window, means.grammars)

    async def draft(self, asked: Asked) -> Drafted | None:
        drafts = permitted(asked, [self._next(asked)[0]], self._grammars)
        return certain(asked, drafts) if drafts else None

    def copy(self, asked: Asked, ahead: list[int]) -> Copy | None:
        if ahead:
            return None  # it is followed by what was said alone
        draft, agreed = self._next(asked)
        return Copy(draft, agreed) if draft else None

    def _next(self, asked: Asked) -> tuple[list[int], int]:
        """The draft, and how many tokens in a row have agreed before it: STATED while all have."""
        request, memory = asked.request, asked.session.state
        if request.prediction is not None:
            memory[self.source] = PredictedText(request.prediction.token_ids, self._window)
        predicted: PredictedText | None = memory.get(self.source)
        if predicted is None or not asked.tokens:
            return [], 0
        prompt = request.num_prompt_tokens
        draft = predicted.draft(asked.ids[prompt:], asked.unchanged - prompt, asked.tokens)
        return draft, STATED if predicted.unbroken else max(predicted.agreed, _NEAR_ANCHOR + 1)


class PredictedText:
    """Follows one sequence's output through its predicted text.

    `_at` is the index of the predicted token that is expected next. While the output agrees, it moves along. After a
    mismatch the output's end is looked for in the prediction, the more of it the further away. Until it is found, the
    new tokens are taken to replace as many old ones (a renamed variable), and after `_REPLACED` there is no draft.
    """

    def __init__(self, predicted: Sequence[int], window: int) -> None:
        self._predicted = list(predicted)
        self._window = window
        self._ends: dict[int, list[int]] = {}
        for place, token_id in enumerate(self._predicted):
            self._ends.setdefault(token_id, []).append(place + 1)
        self.reset()

    def reset(self) -> None:
        """Start again from the output's beginning."""
        self._read = 0
        self._at = 0
        self._lost = 0
        self.agreed = 0
        self.unbroken = True

    def draft(self, output: Sequence[int], unchanged: int, tokens: int) -> list[int]:
        """Up to `tokens` predicted tokens after `output`, the first `unchanged` of which are as they were last time.

        Empty if the output is not found in the prediction, or has reached its end.
        """
        if unchanged < self._read:
            self.reset()
        for end in range(self._read + 1, len(output) + 1):
            self._follow(output, end)
        self._read = len(output)
        if self._lost > _REPLACED:
            return []
        start = self._at + self._lost
        return self._predicted[start : start + tokens]

    def _follow(self, output: Sequence[int], end: int) -> None:
        """Take the output's token before `end` into account."""
        token_id = output[end - 1]
        if not self._lost and self._at < len(self._predicted) and self._predicted[self._at] == token_id:
            self._at += 1
            self.agreed += 1
            return
        self._lost += 1
        self.agreed = 0
        self.unbroken = False
        found = self._find(output, end)
        if found is not None:
            self._at, self._lost = found, 0

    def _find(self, output: Sequence[int], end: int) -> int | None:
        """Where the prediction goes on after the output's end: the longest agreement, the nearest of equals."""
        best, best_length = None, 0
        for place in self._ends.get(output[end - 1], ()):
            length = self._agreement(output, end, place)
            ahead = place - self._at
            if 0 < ahead <= self._lost + _EDIT_SLACK:
                enough = 1
            else:
                enough = _NEAR_ANCHOR if 0 < ahead <= self._window else _DISTANT_ANCHOR
            nearer = best is not None and abs(ahead) < abs(best - self._at)
            if length >= enough and (length > best_length or (length == best_length and nearer)):
                best, best_length = place, length
        return best

    def _agreement(self, output: Sequence[int], end: int, place: int) -> int:
        length, most = 1, min(_LONGEST_ANCHOR, end, place)
        while length < most and output[end - length - 1] == self._predicted[place - length - 1]:
            length += 1
        return length
