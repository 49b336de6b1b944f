"""What vLLM raises, as workers answer it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from protocol.errors import BadRequest, EngineFailure, QueueFull

logger = logging.getLogger(__name__)

# vLLM 0.24 raises subclasses of ValueError; later versions have a hierarchy of their own.
_REFUSALS = ("VLLMClientError", "VLLMValidationError")
_OVERLOAD = ("QueueOverflowError", "MaxQueuedTokensError")
_FAILURES = ("VLLMServerError",)


@contextmanager
def as_wire_errors() -> Iterator[None]:
    """Around whatever asks vLLM for something: its exceptions become BadRequest, QueueFull and EngineFailure."""
    from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

    try:
        yield
    except EngineDeadError as error:
        raise EngineFailure("vLLM's engine has died") from error
    except _kinds(_REFUSALS, ValueError) as error:
        raise BadRequest(f"vLLM refuses the request: {error}") from error
    except _kinds(_OVERLOAD) as error:
        raise QueueFull(f"vLLM takes no more requests: {error}") from error
    except _kinds(_FAILURES, EngineGenerateError) as error:
        logger.exception("vLLM failed to serve a request")
        raise EngineFailure("vLLM failed to serve this request") from error


def _kinds(names: tuple[str, ...], *always: type[Exception]) -> tuple[type[Exception], ...]:
    """`always`, and those of vLLM's exceptions with these names that the installed version has."""
    from vllm import exceptions

    return (*always, *(getattr(exceptions, name) for name in names if hasattr(exceptions, name)))
