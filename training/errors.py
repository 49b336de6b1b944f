"""What can be wrong with what training was given."""

from __future__ import annotations


class TrainingError(Exception):
    """Said to the person who started it, in one sentence."""
