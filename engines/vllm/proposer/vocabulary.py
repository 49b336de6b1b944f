"""Does the draft worker speak the engine's language? Compared once, by fingerprint, beside the engine."""

from __future__ import annotations

from typing import Any

from protocol.messages import PROTOCOL_VERSION


class VocabularyCheck:
    """Called with a worker's ModelInfo it returns why the worker is of no use, None if it can serve."""

    def __init__(self, model_config: Any, check: bool) -> None:
        """`model_config` is vLLM's. The tokenizer is loaded at the first call that needs it."""
        self._model_config = model_config
        self._check = check
        self._fingerprint: str | None = None

    def __call__(self, info: Any) -> str | None:
        if not isinstance(info, dict) or info.get("role") != "draft" or info.get("protocol") != PROTOCOL_VERSION:
            return "it is no Tandem draft worker"
        theirs = info.get("vocabulary")
        if theirs is None or not self._check:  # a drafter without a model copies from the text
            return None
        if self._fingerprint is None:
            self._fingerprint = self._own_fingerprint()
        if not isinstance(theirs, dict) or theirs.get("fingerprint") != self._fingerprint:
            return f"the vocabulary of {info.get('id')} is another than the target's"
        return None

    def _own_fingerprint(self) -> str:
        """From the file that the draft worker also reads (engines.tokenizer.load_tokenizer), if the model has it."""
        from transformers import AutoTokenizer, PreTrainedTokenizerFast
        from transformers.utils import cached_file

        from engines.tokenizer import fingerprint_vocabulary

        config = self._model_config
        name, revision = config.tokenizer, config.tokenizer_revision
        file = cached_file(
            name,
            "tokenizer.json",
            revision=revision,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
        loader = AutoTokenizer if file is None else PreTrainedTokenizerFast
        trusted = {} if file is not None else {"trust_remote_code": config.trust_remote_code}
        tokenizer = loader.from_pretrained(name, revision=revision, **trusted)
        return fingerprint_vocabulary(tokenizer.get_vocab())
