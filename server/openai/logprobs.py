"""Log-probabilities in the shapes of the two endpoints. They are the target's, of its unprocessed logits."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.messages import TokenLogprob
from server.openai.answers import ChatLogprob, ChatLogprobs, CompletionLogprobs, TopLogprob
from server.text.detokenizer import token_text
from server.text.tokenizer import TextTokenizer


def _entry(tokenizer: TextTokenizer, token_id: int, logprob: float) -> TopLogprob:
    text, data = token_text(tokenizer, token_id)
    return TopLogprob(token=text, logprob=logprob, bytes=data)


def chat_logprobs(tokenizer: TextTokenizer, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob]) -> ChatLogprobs:
    """One entry for each token, the stop token included."""
    content = []
    for token_id, entry in zip(token_ids, logprobs, strict=True):
        own = _entry(tokenizer, token_id, entry.logprob)
        top = [_entry(tokenizer, other, logprob) for other, logprob in entry.top]
        content.append(ChatLogprob(token=own.token, logprob=own.logprob, bytes=own.bytes, top_logprobs=top))
    return ChatLogprobs(content=content, refusal=None)


class CompletionLogprobWriter:
    """The older shape, with each token's offset in the text, over any number of pieces."""

    def __init__(self, tokenizer: TextTokenizer, offset: int = 0) -> None:
        """`offset`: characters of the answer's text before the first token."""
        self._tokenizer = tokenizer
        self._offset = offset

    def write(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob]) -> CompletionLogprobs:
        result = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for token_id, entry in zip(token_ids, logprobs, strict=True):
            text, _ = token_text(self._tokenizer, token_id)
            result.tokens.append(text)
            result.token_logprobs.append(entry.logprob)
            top = {token_text(self._tokenizer, other)[0]: logprob for other, logprob in reversed(entry.top)}
            top[text] = entry.logprob
            result.top_logprobs.append(top)
            result.text_offset.append(self._offset)
            self._offset += len(text)
        return result
