"""What decides the draw of one token, apart from its logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # so that drawing needs torch alone (benchmarks/gpu_noise.py runs where pydantic may be missing)
    from protocol.messages import Sampling


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """One row of logits to draw from.

    `position` is the absolute index, prompt included, of the token to be drawn; `history` holds the ids before it
    (drafts included), of which the first `num_prompt_tokens` are the prompt. `seed`, an int64, has `choice_index` mixed
    in already (noise.mix_choice). `stop_token_ids` are the model's own and the request's, masked while fewer than
    `sampling.min_tokens` have been drawn.
    """

    sampling: Sampling
    seed: int
    position: int
    history: Sequence[int]
    num_prompt_tokens: int
    stop_token_ids: frozenset[int] = frozenset()
