"""Everything textual about the served model, built once from what the target sent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from protocol.worker_info import TokenizerInfo
from server.errors import NoModelYet
from server.text.chat_template import ChatTemplate
from server.text.detokenizer import Detokenizer, detokenizer_factory
from server.text.tokenizer import TextTokenizer

logger = logging.getLogger(__name__)

T = TypeVar("T")


class TextModel:
    """Tokenizer, chat templates and detokenizers. Raises ValueError on a broken tokenizer.

    A broken chat template is told in the log, and as `template_error` to who would need it: completions need none.
    """

    def __init__(self, info: TokenizerInfo) -> None:
        self.info = info
        self.tokenizer = TextTokenizer(info)
        self.template_error: str | None = None
        self._plain_template: ChatTemplate | None = None
        self._tool_template: ChatTemplate | None = None
        try:
            plain, tool = _compile(info.chat_template, info), _compile(info.tool_chat_template, info)
        except ValueError as error:
            self.template_error = str(error)[:500]
            logger.error("%s: chats will be refused", self.template_error)
        else:
            self._plain_template, self._tool_template = plain, tool
        self.detokenizer: Callable[[bool], Detokenizer] = detokenizer_factory(self.tokenizer)

    def template(self, *, tools: bool) -> ChatTemplate | None:
        """The chat template for a request with or without tools; None if the model has none for it that can be used."""
        return self._tool_template if tools and self._tool_template is not None else self._plain_template

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Token by token, since the library's own decoding of a long list holds the GIL to its end."""
        detokenizer = self.detokenizer(skip_special_tokens)
        return "".join(map(detokenizer.push, token_ids)) + detokenizer.finish()


def _compile(source: str | None, info: TokenizerInfo) -> ChatTemplate | None:
    return ChatTemplate(source, info.special_tokens) if source else None


class TextModels:
    """Hands out the TextModel of a TokenizerInfo, and threads for what would hold up the event loop."""

    def __init__(self, threads: int = 2) -> None:
        """`threads`: for chats, and as many for all else, which slow chat templates shall not hold up."""
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="text")
        self._chats = ThreadPoolExecutor(threads, thread_name_prefix="chats")
        self._lock = asyncio.Lock()
        self._current: TextModel | None = None

    async def get(self, info: TokenizerInfo) -> TextModel:
        """Built in a thread the first time, and again when the target sends another tokenizer.

        Raises NoModelYet if it cannot be.
        """
        async with self._lock:
            # Equal ones need no new model: replicas of one target each send their own.
            if self._current is None or (self._current.info is not info and self._current.info != info):
                try:
                    self._current = await self.run(lambda: TextModel(info))
                except ValueError as error:
                    raise NoModelYet(str(error)[:500]) from None
            return self._current

    async def run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def run_chat(self, work: Callable[[], T]) -> T:
        """`run`, for what renders a chat template."""
        return await asyncio.get_running_loop().run_in_executor(self._chats, work)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._chats.shutdown(wait=False, cancel_futures=True)
