"""Which workers fit together: what several of them can do, and whether two speak one vocabulary."""

from __future__ import annotations

from tokenizers import Tokenizer

from basics.names import STRATEGIES
from protocol.worker_info import Capabilities, TokenizerInfo, Translation, Vocabulary


def common(all_of: list[Capabilities]) -> Capabilities:
    """What every one of them can do."""
    first = all_of[0]
    return first.model_copy(
        update={
            "strategies": [s for s in first.strategies if all(s in c.strategies for c in all_of)],
            "sampling": [s for s in first.sampling if all(s in c.sampling for c in all_of)],
            "grammar_types": [g for g in first.grammar_types if all(g in c.grammar_types for c in all_of)],
            "max_candidates": min(c.max_candidates for c in all_of),
            "max_draft_tokens": min(c.max_draft_tokens for c in all_of),
            "q": all(c.q for c in all_of),
            "auto": all(c.auto for c in all_of),
            "history": all(c.history for c in all_of),
            "prediction": all(c.prediction for c in all_of),
            "batch_invariant": all(c.batch_invariant for c in all_of),
        }
    )


def of_any(reference: Capabilities, all_of: list[Capabilities]) -> Capabilities:
    """The reference's, with the strategies and the number of candidates that at least one of them offers."""
    return reference.model_copy(
        update={
            "strategies": [name for name in STRATEGIES if any(name in able.strategies for able in all_of)],
            "strategy_facts": list({facts.name: facts for able in all_of for facts in able.strategy_facts}.values()),
            "max_candidates": max(able.max_candidates for able in all_of),
        }
    )


_SHOWN = 3
WAYS = ("same", "shared_ids", "shared_text")
"""How a drafter's ids become the target's."""


def same_vocabulary(target: Vocabulary, draft: Vocabulary | None) -> bool:
    """A drafter without a vocabulary of its own (lookup) speaks any. Padded logits are no difference."""
    return draft is None or draft.fingerprint == target.fingerprint


def in_words(translation: Translation) -> str:
    """How a drafter with another vocabulary drafts."""
    return f"by {translation.way.replace('_', ' ')} ({translation.shared} tokens are the target's too)"


def differences(target: TokenizerInfo, draft: TokenizerInfo) -> str:
    """The first ids that mean different tokens, and the sizes. Parses both tokenizers: run it in a thread."""
    ours, theirs = _tokens_by_id(target), _tokens_by_id(draft)
    different = sorted(i for i in ours.keys() | theirs.keys() if ours.get(i) != theirs.get(i))
    shown = [f"id {i}: target {_name(ours.get(i))}, draft {_name(theirs.get(i))}" for i in different[:_SHOWN]]
    more = len(different) - len(shown)
    sizes = f"the target's vocabulary has {len(ours)} tokens, the draft's {len(theirs)}"
    return "; ".join([sizes, *shown]) + (f"; and {more} more ids differ" if more > 0 else "")


def sizes(target: Vocabulary, draft: Vocabulary) -> str:
    """What is known without the tokenizers."""
    if target.size != draft.size:
        return f"the target's vocabulary has {target.size} tokens, the draft's {draft.size}"
    return f"both have {target.size} tokens, but not the same ones"


def _tokens_by_id(info: TokenizerInfo) -> dict[int, str]:
    tokenizer = Tokenizer.from_str(info.tokenizer_json)
    return {token_id: token for token, token_id in tokenizer.get_vocab(with_added_tokens=True).items()}


def _name(token: str | None) -> str:
    return "has none" if token is None else repr(token)
