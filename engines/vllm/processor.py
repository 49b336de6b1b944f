"""The logits processor that draws: the whole chain of processing and the shared noise, inside vLLM.

vLLM's own draws know no positions, so its requests have temperature 0 and no penalties, and this processor leaves of
each row of logits what makes vLLM's argmax take the token that engines/sampling drew. What decides a draw comes with
the request (engines/vllm/requests.py). A worker's own subclass defines how a draw becomes a row of logits.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from engines.history import History
from engines.sampling.batch import DrawRequest, Draws, draw_batch
from engines.sampling.rows import SamplingRow
from engines.vllm.owner import end_with_owner
from engines.vllm.requests import EXTRA, sampling_of
from protocol.errors import EngineFailure

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.sampling_params import SamplingParams
    from vllm.v1.sample.logits_processor import BatchUpdate

logger = logging.getLogger(__name__)


class OwnRequest:
    """One request as the engine sees it: what its next token is drawn with."""

    def __init__(self, asked: dict[str, Any], prompt_ids: list[int], output_ids: list[int]) -> None:
        """`output_ids` is vLLM's own list, which grows as tokens are drawn."""
        self.asked = asked
        self._sampling = sampling_of(asked)
        self._stops = frozenset(asked["stops"])
        allowed = asked["allowed"]
        self._allowed = torch.frombuffer(bytearray(allowed), dtype=torch.int32)[None] if allowed is not None else None
        self._prompt_ids = prompt_ids
        self._output_ids = output_ids

    def request(self) -> DrawRequest:
        """What `draw_batch` is to be asked for: one row."""
        output = self._output_ids
        if output and output[-1] < 0:
            # vLLM fills this place in later. Drawing without the tokens before it could be wrong.
            raise RuntimeError("this vLLM draws before it knows the tokens drawn last: set async_scheduling to false")
        row = SamplingRow(
            self._sampling,
            self.asked["seed"],
            len(self._prompt_ids) + len(output),
            History(self._prompt_ids, len(self._prompt_ids), output),
            self.asked["num_prompt_tokens"],
            self._stops,
        )
        return DrawRequest(rows=[row], allowed=self._allowed, top2=self.asked["top2"], truncate=self.asked["truncate"])


class SamplingProcessor(LogitsProcessor):  # type: ignore[misc]
    """Rows of requests that carry nothing of ours stay as they are."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        end_with_owner()
        self._requests: dict[int, OwnRequest] = {}

    @property
    def rows(self) -> Collection[int]:
        """The batch's rows whose tokens this draws."""
        return self._requests.keys()

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self._requests, batch_update, _own_request)

    def apply(self, logits: Tensor) -> Tensor:
        places = sorted(self._requests)
        if not places:
            return logits
        requests = [self._requests[place].request() for place in places]
        answers = draw_batch([(logits[place, None], request) for place, request in zip(places, requests, strict=True)])
        for place, request, answer in zip(places, requests, answers, strict=True):
            if isinstance(answer, EngineFailure):
                logger.error("%s", answer.message)
                self.write_failure(logits[place])
            else:
                self.write(logits[place], answer, self._requests[place].asked, request.rows[0])
        return logits

    @staticmethod
    @abstractmethod
    def write(logits: Tensor, draws: Draws, asked: dict[str, Any], row: SamplingRow) -> None:
        """Write into one row, float32 [V], which token was drawn: its largest entry, and what else the worker reads."""

    @staticmethod
    @abstractmethod
    def write_failure(logits: Tensor) -> None:
        """Mark one row so that the worker recognises the failure: no token could be drawn.

        Raises RuntimeError, which ends vLLM's engine, if there is no such mark: any token would be wrong.
        """


def _own_request(params: SamplingParams, prompt_ids: list[int] | None, output_ids: list[int]) -> OwnRequest | None:
    asked = (params.extra_args or {}).get(EXTRA)
    if asked is None or prompt_ids is None:
        return None
    return OwnRequest(asked, prompt_ids, output_ids)
