"""Where draft tokens come from: a line a drafter, in the order in which they are asked (docs/add_a_drafter.md)."""

from __future__ import annotations

from draft_worker.drafter import Drafter
from draft_worker.drafters.forced import ForcedDrafter
from draft_worker.drafters.history import HistoryDrafter
from draft_worker.drafters.lookup import LookupDrafter
from draft_worker.drafters.model import ModelDrafter
from draft_worker.drafters.prediction import PredictionDrafter

DRAFTERS: tuple[type[Drafter], ...] = (
    PredictionDrafter,
    ForcedDrafter,
    HistoryDrafter,
    LookupDrafter,
    ModelDrafter,
)
