"""The processes of one run, one for each GPU, as `accelerate launch` or torchrun start them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from training.errors import TrainingError

_LOOK_SECONDS = 0.5
_MOST_HOURS = 24.0


@dataclass(frozen=True, slots=True)
class Processes:
    """This process is number `rank` of `count`, and number `local` of those on this machine. The first one, `main`,
    speaks and writes for all."""

    rank: int = 0
    count: int = 1
    local: int = 0

    @classmethod
    def from_environment(cls) -> Processes:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
        rank, count, local = (int(os.environ.get(name, default)) for name, default in zip(names, "010", strict=True))
        return cls(rank, count, local)

    @property
    def main(self) -> bool:
        return self.rank == 0

    def device(self, name: str) -> str:
        """The device that `name` means for this process: each has a GPU of its own."""
        if self.count == 1 or name not in ("auto", "cuda") or not torch.cuda.is_available():
            return name
        return f"cuda:{self.local}"

    def wait_for(self, files: Iterable[Path]) -> None:
        """Until other processes have written them. Whoever started the processes ends this one if another fails.

        Not a collective call: one process may generate for longer than such a call waits.

        Raises:
            TrainingError: after a day.
        """
        missing = list(files)
        end = time.monotonic() + 3600 * _MOST_HOURS
        while missing := [file for file in missing if not file.exists()]:
            if time.monotonic() > end:
                raise TrainingError(f"{missing[0]} was not written by the process that should have")
            time.sleep(_LOOK_SECONDS)
