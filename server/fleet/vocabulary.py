"""Whether two workers speak one vocabulary, and in words what differs if not."""

from __future__ import annotations

from tokenizers import Tokenizer

from protocol.messages import TokenizerInfo, Vocabulary

_SHOWN = 3


def same_vocabulary(target: Vocabulary, draft: Vocabulary | None) -> bool:
    """A drafter without a vocabulary of its own (lookup) speaks any. Padded logits are no difference."""
    return draft is None or draft.fingerprint == target.fingerprint


def differences(target: TokenizerInfo, draft: TokenizerInfo) -> str:
    """The first ids that mean different tokens, and the sizes. Parses both tokenizers: run it in a thread."""
    ours, theirs = _tokens_by_id(target), _tokens_by_id(draft)
    different = sorted(i for i in ours.keys() | theirs.keys() if ours.get(i) != theirs.get(i))
    shown = [f"id {i}: target {_name(ours.get(i))}, draft {_name(theirs.get(i))}" for i in different[:_SHOWN]]
    more = len(different) - len(shown)
    sizes = f"the target's vocabulary has {len(ours)} tokens, the draft's {len(theirs)}"
    return "; ".join([sizes, *shown]) + (f"; and {more} more ids differ" if more > 0 else "")


def sizes(target: Vocabulary, draft: Vocabulary) -> str:
    """What can be said without the tokenizers."""
    if target.size != draft.size:
        return f"the target's vocabulary has {target.size} tokens, the draft's {draft.size}"
    return f"both have {target.size} tokens, but not the same ones"


def _tokens_by_id(info: TokenizerInfo) -> dict[int, str]:
    tokenizer = Tokenizer.from_str(info.tokenizer_json)
    return {token_id: token for token, token_id in tokenizer.get_vocab(with_added_tokens=True).items()}


def _name(token: str | None) -> str:
    return "has none" if token is None else repr(token)
