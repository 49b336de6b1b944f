"""The targets' vocabularies that a draft worker has learned to draft in."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from config.workers import DraftWorkerConfig
from draft_worker.engine import DraftEngine
from draft_worker.metrics import DraftMetrics
from protocol.errors import BadRequest, UnknownVocabulary, Unsupported
from protocol.worker_info import ModelInfo, TokenizerInfo, Translation

if TYPE_CHECKING:  # it imports torch, which lookup alone can do without
    from draft_worker.vocabularies.speech import Speech
    from draft_worker.vocabularies.translation import Translator

logger = logging.getLogger(__name__)

_MOST = 4
"""Each takes tens of megabytes; the least recently used goes first."""


class Learned:
    """`info` is the worker's own description, with what it has learned. Lives on the event loop's thread."""

    def __init__(
        self, engine: DraftEngine | None, info: ModelInfo, config: DraftWorkerConfig, metrics: DraftMetrics
    ) -> None:
        self.info = info
        self._engine = engine
        self._config = config
        self._metrics = metrics
        self._translators: OrderedDict[str, Translator] = OrderedDict()
        self._one_at_a_time = asyncio.Lock()
        self._draft: Speech | None = None

    def get(self, vocabulary: str | None) -> Translator | None:
        """What translates; None where nothing has to be. Raises UnknownVocabulary."""
        own = self.info.vocabulary
        if vocabulary is None or own is None or vocabulary == own.fingerprint:
            return None
        if vocabulary not in self._translators:
            raise UnknownVocabulary("the vocabulary is not known here: POST /v1/vocabulary first", "vocabulary")
        self._translators.move_to_end(vocabulary)
        return self._translators[vocabulary]

    async def learn(self, tokenizer: TokenizerInfo) -> Translation:
        """Get ready for a target with this tokenizer, which takes seconds. Raises BadRequest, Unsupported."""
        own, name = self.info.vocabulary, tokenizer.vocabulary.fingerprint
        if self._engine is None or own is None:
            raise Unsupported("this worker drafts without a model, in any ids", "tokenizer")
        if name == own.fingerprint:
            raise BadRequest("is this worker's own", "tokenizer.vocabulary.fingerprint")
        async with self._one_at_a_time:
            if name not in self._translators:
                began = time.perf_counter()
                made = await asyncio.to_thread(self._translator, self._engine, tokenizer)
                self._translators[name] = made
                while len(self._translators) > _MOST:
                    self._translators.popitem(last=False)
                known = [one.told for one in self._translators.values()]
                self.info = self.info.model_copy(update={"translations": known})
                logger.info(
                    "drafts for %s by %s: %d tokens shared, %.1f%% of a sample (%.1f s)",
                    tokenizer.model_id,
                    made.told.way.replace("_", " "),
                    made.told.shared,
                    100 * made.told.coverage,
                    time.perf_counter() - began,
                )
            return self._translators[name].told

    def _translator(self, engine: DraftEngine, tokenizer: TokenizerInfo) -> Translator:
        from draft_worker.vocabularies.translation import opened, translator

        if self._draft is None:
            self._draft = opened(engine.model.tokenizer)
        return translator(tokenizer, engine, self.info, self._draft, self._config, self._metrics.prompt_judged)
