"""Sessions' grammars: what they force, and what they refuse of a draft that was copied."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from protocol.errors import WireError
from protocol.messages import DraftRequest

if TYPE_CHECKING:  # they import torch, which lookup alone can do without
    from engines.grammar.service import Grammars
    from engines.grammar.state import GrammarState

logger = logging.getLogger(__name__)


class SessionGrammars:
    """Needs the target's vocabulary, which may take seconds to load: it is, with the first grammar that comes.

    For sessions alone, and only once `read` has had their grammar compiled, were it too late for the call that waited:
    nothing here makes a draft wait.
    """

    def __init__(self, load: Callable[[], tuple[Grammars, Tokenizer]]) -> None:
        """`load` runs in a thread. If it raises, grammars play no part in drafts."""
        self._load = load
        self._loading: asyncio.Task[tuple[Grammars, Tokenizer] | None] | None = None
        self._loaded: tuple[Grammars, Tokenizer] | None = None

    async def read(self, request: DraftRequest, owner: int | None, deadline: float) -> None:
        """Get ready for a session's grammar; one that can't be used is left to the target to refuse. Never raises."""
        if request.grammar is None or request.vocabulary is not None:
            return
        if self._loading is None:
            self._loading = asyncio.get_running_loop().create_task(asyncio.to_thread(self._try_to_load))
        self._loaded = await asyncio.shield(self._loading)
        if self._loaded is None:
            return
        grammars, _ = self._loaded
        try:
            await grammars.state(request.grammar, owner, deadline)
        except WireError as error:
            logger.info("no drafts from a grammar: %s", error.code)

    def forced(self, request: DraftRequest, ids: list[int], owner: int | None, tokens: int) -> list[int]:
        """At most `tokens` tokens of what must follow `ids`.

        The target may spell the same text with other tokens, so this too is only a draft.
        """
        state = self._state(request, ids, owner)
        if state is None or self._loaded is None or tokens < 1:
            return []
        forced = state.forced_tokens(tokens)
        text = state.jump_forward_text()
        if not text:
            return forced
        encoded: list[int] = self._loaded[1].encode(text, add_special_tokens=False).ids
        if len(encoded) > 1:
            del encoded[-1]  # what follows the text may join its last token
        spelled = _permitted(state, encoded[:tokens])
        return spelled if len(spelled) > len(forced) else forced

    def permitted(self, request: DraftRequest, ids: list[int], owner: int | None, draft: list[int]) -> list[int]:
        """The draft up to the first token that the grammar refuses."""
        state = self._state(request, ids, owner)
        return _permitted(state, draft) if state is not None else draft

    def disown(self, owner: int) -> None:
        """The session with this serial is gone."""
        if self._loaded is not None:
            self._loaded[0].disown(owner)

    def close(self) -> None:
        if self._loaded is not None:
            self._loaded[0].close()

    def _state(self, request: DraftRequest, ids: list[int], owner: int | None) -> GrammarState | None:
        if request.grammar is None or owner is None or self._loaded is None:
            return None
        if request.vocabulary is not None:
            return None  # the ids are another target's than the grammars'
        state = self._loaded[0].at_once(request.grammar, owner)
        if state is not None:
            try:
                state.sync(ids[request.grammar.start :])
            except WireError:
                return None
        return state

    def _try_to_load(self) -> tuple[Grammars, Tokenizer] | None:
        try:
            grammars, tokenizer = self._load()
        except Exception as error:  # noqa: BLE001 - whatever it is, lookup goes on without grammars
            logger.warning("nothing will be drafted from grammars: %s", error)
            return None
        return (grammars, tokenizer) if grammars.types else None


def _permitted(state: GrammarState, draft: list[int]) -> list[int]:
    try:
        alive = state.masks_along(draft).alive
    except WireError:
        return []
    return draft[: alive.index(False)] if False in alive else draft


def load_vocabulary(model: str) -> tuple[Grammars, Tokenizer]:
    """Grammars over a model's vocabulary, and its tokenizer. Raises engines.errors.ModelError."""
    from engines.grammar.service import Grammars
    from engines.models import resolve_model
    from engines.tokenizer import load_tokenizer, stop_token_ids  # transformers takes seconds to import

    loaded = load_tokenizer(resolve_model(model, with_weights=False))
    tokenizer: Tokenizer = loaded.backend_tokenizer
    stops = stop_token_ids(loaded, None, None)
    return Grammars.of_tokenizer(tokenizer.to_str(), max(loaded.get_vocab().values()) + 1, stops), tokenizer
