"""Shared ids: the drafter draws only tokens whose strings both vocabularies have.

Token-level intersection, from Timor et al., *Accelerating LLM Inference with Lossless Speculative Decoding Algorithms
for Heterogeneous Vocabularies* (ICML 2025). The noise is taken at the target's ids and places, so that both models draw
alike; q is what is left after the others are masked, renormalised: the distribution that tokens are really drawn from.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import torch

from basics.prefix import shared_prefix
from draft_worker.vocabularies.speech import Speech
from engines.sampling.columns import Columns


class IdMap:
    """Ids of a target and of the draft model that stand for one another: one to one, −1 for those that have none."""

    def __init__(self, target: Speech, draft: Speech, draft_logits: int) -> None:
        """`draft_logits` is the draft model's rows of logits. O(both vocabularies): about half a second for 150,000."""
        pairs = _pairs(target, draft)
        self.to_draft = array("i", [-1]) * len(target.spelled)
        self.to_target = array("i", [-1]) * max(len(draft.spelled), draft_logits)
        for theirs, ours in pairs.items():
            self.to_draft[theirs] = ours
            self.to_target[ours] = theirs
        self.shared = len(pairs)
        targets = torch.tensor(self.to_target[:draft_logits], dtype=torch.int64)
        mask = torch.zeros(draft_logits).masked_fill_(targets < 0, -torch.inf)
        self.columns = Columns(targets.clamp(min=0), mask)
        self._target, self._draft = target, draft
        self._spelled: dict[int, list[int]] = {}

    def read_as(self, token_id: int) -> list[int]:
        """The draft model's tokens for one of the target's: its like, else what spells the same text."""
        if token_id >= len(self.to_draft):
            return []
        ours = self.to_draft[token_id]
        if ours >= 0:
            return [ours]
        known = self._spelled.get(token_id)
        if known is None:
            known = self._spelled[token_id] = _spelled_out(self._target.spelled[token_id], self._draft)
        return known


class IdReading:
    """One session's context as the draft model reads it, token by token."""

    def __init__(self, ids: IdMap, lead: Sequence[int], begin: int | None) -> None:
        """`lead` comes before everything; `begin` is the target's own BOS, which it stands for."""
        self._ids = ids
        self._begin = begin
        self.target: list[int] = []
        self.read: list[int] = list(lead)
        self._ends = array("l")
        self._lead = len(self.read)

    def update(self, token_ids: Sequence[int], unchanged: int) -> None:
        """Make it the context `token_ids`, whose first `unchanged` are as they were. O(what is new)."""
        kept = min(unchanged, len(self.target))
        kept += shared_prefix(self.target, list(token_ids[kept:]), kept)
        del self.target[kept:], self._ends[kept:]
        del self.read[self._ends[-1] if kept else self._lead :]
        for token_id in token_ids[kept:]:
            if self.target or token_id != self._begin or not self._lead:
                self.read.extend(self._ids.read_as(token_id))
            self.target.append(token_id)
            self._ends.append(len(self.read))

    def length_at(self, count: int) -> int:
        """How many of the draft model's tokens stand for the first `count` of the target's."""
        return self._ends[count - 1] if count else self._lead


def _pairs(target: Speech, draft: Speech) -> dict[int, int]:
    """Target id → draft id, one to one."""
    known = draft.ids_by_bytes
    pairs = {token_id: known[spelled] for spelled, token_id in target.ids_by_bytes.items() if spelled in known}
    special = {draft.spelled[token_id]: token_id for token_id in draft.special}
    for token_id in target.special:
        if target.spelled[token_id] in special:
            pairs[token_id] = special[target.spelled[token_id]]
    # What ends a turn has other names elsewhere, and the same meaning.
    theirs, ours = target.stop, draft.stop
    if theirs is not None and ours is not None and theirs not in pairs and ours not in pairs.values():
        pairs[theirs] = ours
    return pairs


def _spelled_out(text: bytes, draft: Speech) -> list[int]:
    try:
        return draft.encode(text.decode())
    except UnicodeDecodeError:  # a part of a character
        alone = draft.bytes_alone
        return [alone[byte] for byte in text] if alone is not None else []
