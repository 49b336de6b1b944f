"""The proposer inside Tandem's own engine: what each request asks of it, and reports of what was proposed.

A plain `vllm serve` gives a proposer nothing but token ids. If Tandem starts the engine, a worker extension hands it
the model runner, so that it knows each row's request.
"""

from __future__ import annotations

import importlib
import socket
from contextlib import suppress
from typing import Any

from pydantic_core import to_json

from engines.vllm.proposer.soundness import keep_own_draws
from engines.vllm.requests import DRAFTS, EXTRA

EXTENSION = f"{__name__}.Extension"


class Extension:
    """Mixed into vLLM's worker class (`worker_extension_cls`); its methods are called through `collective_rpc`."""

    model_runner: Any
    vllm_config: Any
    device: Any

    def tandem_bind(self, processor: str, reports: str) -> str:
        """Install a logits processor ("module:Class") and bind the proposer; how far it may go (`Reach`).

        vLLM refuses custom logits processors beside speculation since it does not apply them to drafted rows. Requests
        that carry something for ours are not drafted for, and undrafted rows do pass through all processors.
        """
        module, name = processor.split(":")
        made = getattr(importlib.import_module(module), name)(self.vllm_config, self.device, False)
        self.model_runner.input_batch.logitsprocs.non_argmax_invariant.append(made)
        drafter = getattr(self.model_runner, "drafter", None)
        if drafter is None:  # the last pipeline stage alone has one, and samples
            return ""
        keep_own_draws(drafter.sampler, lambda: made.rows)
        return str(drafter.bind(Bound(self.model_runner, reports)))


class Bound:
    """The batch as the model runner knows it."""

    def __init__(self, runner: Any, reports: str) -> None:
        """`reports` is the path of a datagram socket that receives what is proposed (engines/vllm/reports.py)."""
        self._runner = runner
        self._reports: list[tuple[str, int, list[int]]] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        with suppress(OSError):  # no receiver on another machine: drafts go uncounted
            self._socket.connect(reports)

    @property
    def all_greedy(self) -> bool:
        return bool(self._runner.input_batch.all_greedy)

    def most_drafted(self, index: int) -> int:
        """How many tokens may be drafted for a row; 0 for what Tandem's own logits processor draws."""
        extra = self._extra(index)
        return 0 if EXTRA in extra else int(extra[DRAFTS]["draft_tokens"]) if DRAFTS in extra else 0

    def cache_salt(self, index: int) -> str | None:
        """The salt under which the draft worker keeps what it reads of a row that may be drafted for."""
        salt: str | None = self._extra(index)[DRAFTS]["cache_salt"]
        return salt

    def propose(self, index: int, length: int, tokens: list[int]) -> None:
        """These tokens are proposed to follow a row's first `length`."""
        if (drafts := self._extra(index).get(DRAFTS)) is not None:
            self._reports.append((drafts["key"], length, tokens))

    def tell(self) -> None:
        """Report this step's proposals. The report arrives before the step's tokens."""
        reports, self._reports = self._reports, []
        if reports:
            with suppress(OSError):  # no receiver, or a slow one: only the counts fall short
                self._socket.send(to_json(reports))

    def _extra(self, index: int) -> dict[str, Any]:
        request = self._runner.requests[self._runner.input_batch.req_ids[index]]
        return request.sampling_params.extra_args or {} if request.sampling_params is not None else {}
