"""What is read from a model's tokenizer: vocabulary, special tokens, the ends of turns."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines.errors import ModelError
from engines.models import ModelFiles
from protocol.worker_info import TokenizerInfo, Vocabulary


def load_tokenizer(files: ModelFiles) -> Any:
    """The model's tokenizer: its tokenizer.json as it stands, else what transformers makes of its other files.

    transformers picks a class by the model's type and, for some, by its name on the hub, and most classes build a
    tokenizer of their own from the file's vocabulary. In a folder there is no such name, and the class may split
    text otherwise than the file says. So the file is taken as it is, by the one class that does so.

    Raises:
        ModelError: if it has none, or one that the `tokenizers` library does not back.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    folder = files.folder if files.parts is None else files.parts.folder
    by_file = (folder / "tokenizer.json").is_file()
    loader = PreTrainedTokenizerFast if by_file else AutoTokenizer
    try:
        tokenizer = loader.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # the library's bindings raise plain Exception for a broken file
        what = "its tokenizer.json" if by_file else "its tokenizer (there is no tokenizer.json)"
        raise ModelError(f"{files.id}: {what} could not be loaded: {str(error).strip().splitlines()[0]}") from error
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise ModelError(f"{files.id}: its tokenizer has no `tokenizers` form, which the gateway needs")
    if not tokenizer.chat_template:
        tokenizer.chat_template = _processors_template(folder)
    return tokenizer


def _processors_template(folder: Path) -> str | None:
    """Early models that read images have their chat template beside their processor, in chat_template.json."""
    try:
        template = json.loads((folder / "chat_template.json").read_text())["chat_template"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return template if isinstance(template, str) else None


def fingerprint_vocabulary(vocabulary: Mapping[str, int]) -> str:
    """A hash over (id, token) pairs sorted by id, added tokens included: 32 hexadecimal digits.

    Every entry is the id as 4 bytes, the length of the token's UTF-8 as 4 bytes, and that UTF-8.
    """
    digest = hashlib.sha256()
    for token, token_id in sorted(vocabulary.items(), key=lambda entry: (entry[1], entry[0])):
        text = token.encode("utf-8", errors="surrogatepass")
        digest.update(token_id.to_bytes(4, "little") + len(text).to_bytes(4, "little") + text)
    return digest.hexdigest()[:32]


def vocabulary_of(tokenizer: Any, logits_size: int) -> Vocabulary:
    """`size` counts ids; `logits_size` is the model's output rows, which may be padded."""
    entries: dict[str, int] = tokenizer.get_vocab()
    return Vocabulary(
        fingerprint=fingerprint_vocabulary(entries), size=len(set(entries.values())), logits_size=logits_size
    )


def special_token_ids(tokenizer: Any) -> list[int]:
    """Ids of the tokens that are not text: named ones and added tokens marked special."""
    added = {token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
    return sorted(added | set(tokenizer.all_special_ids))


def stop_token_ids(tokenizer: Any, config: Any, generation_config: Any) -> list[int]:
    """Ids that end a generation, ascending: the tokenizer's end, and those of the generation config.

    If the generation config names none, those of the config (then those of its text part) stand in for them. They
    are not added: a generation config is the later word, and may leave out an id on purpose.
    """
    found = _ids(tokenizer)
    for source in (generation_config, config, getattr(config, "text_config", None)):
        ids = _ids(source)
        if ids:
            return sorted(found | ids)
    return sorted(found)


def _ids(source: Any) -> set[int]:
    ids = getattr(source, "eos_token_id", None)
    if ids is None:
        return set()
    return {ids} if isinstance(ids, int) else {int(token_id) for token_id in ids}


def tokenizer_info(
    files: ModelFiles, tokenizer: Any, *, stop_ids: list[int], logits_size: int, context_length: int
) -> TokenizerInfo:
    """All that the gateway needs to turn chats into ids and ids into text (`GET /v1/tokenizer`)."""
    template: Any = tokenizer.chat_template
    with_tools: str | None = None
    if isinstance(template, Mapping):  # named ones: transformers picks by these two names
        template, with_tools = template.get("default"), template.get("tool_use")
    named = tokenizer.special_tokens_map
    return TokenizerInfo(
        model_id=files.id,
        tokenizer_json=tokenizer.backend_tokenizer.to_str(),
        chat_template=template,
        tool_chat_template=with_tools,
        bos_token=tokenizer.bos_token,
        eos_token=tokenizer.eos_token,
        special_tokens={name: str(token) for name, token in named.items() if not isinstance(token, list | tuple)},
        stop_token_ids=stop_ids,
        vocabulary=vocabulary_of(tokenizer, logits_size),
        context_length=context_length,
    )
