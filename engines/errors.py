"""What can be wrong with a model, for the person who named it."""

from __future__ import annotations


class ModelError(ValueError):
    """The model cannot be found, fetched, trusted or served; the message has the reason."""


class BatchInvarianceError(ModelError):
    """Batch-invariant mode was asked for but does not hold; the message says where bits differ, or may."""
