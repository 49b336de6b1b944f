"""What can be wrong with a model, said to the person who named it."""

from __future__ import annotations


class ModelError(ValueError):
    """The model cannot be found, fetched, trusted or served; the message says which and why."""


class BatchInvarianceError(ModelError):
    """Batch-invariant mode was asked for where it does not hold; the message says where bits differ, or may."""
