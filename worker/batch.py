"""Batch calls: each item is served, or refused, on its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json, to_json

from protocol.errors import EngineFailure, WireError
from protocol.messages import BatchError
from worker.errors import complaint, invalid_message

logger = logging.getLogger(__name__)
M = TypeVar("M", bound=BaseModel)
A = TypeVar("A", bound=BaseModel)


def parse_batch(batch: type[BaseModel], item: type[M], body: bytes) -> list[M | WireError]:
    """The items of a batch message, or in place of each invalid one what is wrong with it.

    Raises InvalidMessage if the batch itself is malformed.
    """
    try:
        return list(batch.model_validate_json(body).items)  # type: ignore[attr-defined]
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        if not all(len(one["loc"]) >= 2 and one["loc"][0] == "items" for one in details):
            raise invalid_message(error, batch) from None
    wrong: dict[int, WireError] = {}
    for one in details:
        index = int(one["loc"][1])
        if index not in wrong:
            one["loc"] = one["loc"][2:]
            wrong[index] = complaint(one, item)
    items = from_json(body)["items"]
    return [wrong.get(index) or item.model_validate_json(to_json(raw)) for index, raw in enumerate(items)]


async def serve_batch(
    items: list[M | WireError],
    serve: Callable[[M], Coroutine[Any, Any, BaseModel]],
    answer: type[A],
) -> list[A]:
    """All items at once, each with its response or its error in an `answer`; cancelling cancels them all."""

    async def one(item: M | WireError) -> A:
        try:
            if isinstance(item, WireError):
                raise item
            return answer(response=await serve(item))
        except WireError as error:
            return answer(error=_batch_error(error))
        except Exception:
            logger.exception("an item of a batch failed")
            return answer(error=_batch_error(EngineFailure("the worker failed to serve this item")))

    return await asyncio.gather(*(one(item) for item in items))


def _batch_error(error: WireError) -> BatchError:
    return BatchError(status=error.status, code=error.code, message=error.message, field=error.field)
