"""What ends a benchmark, and what only fails a request."""

from __future__ import annotations


class BenchError(Exception):
    """The run can't be made, or can't go on; the message is for the person at the terminal."""


class RequestFailure(Exception):
    """One request without a whole answer. `status` is None if none came at all."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status

    @property
    def refused(self) -> bool:
        """Asking again would get the same answer."""
        return self.status is not None and 400 <= self.status < 500 and self.status not in (408, 429)
