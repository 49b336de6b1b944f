"""What can be wrong with the input of training."""

from __future__ import annotations


class TrainingError(Exception):
    """Shown to the user in one sentence."""
