"""What every request for tokens is checked for before any work is done."""

from __future__ import annotations

from protocol.errors import BadRequest, ContextTooLong, Unsupported
from protocol.messages import Grammar, SequenceRequest
from protocol.worker_info import ModelInfo


def check_sequence(request: SequenceRequest, info: ModelInfo) -> None:
    """Raises BadRequest, ContextTooLong or Unsupported, naming the field, for what the model cannot be asked."""
    length = request.context.start + len(request.context.token_ids)
    if request.grammar is not None:
        check_grammar_type(request.grammar, info)
        if request.grammar.start > length:
            raise BadRequest(f"lies beyond the context, which has {length} tokens", "grammar.start")
    if length >= info.context_length:
        raise ContextTooLong(f"{length} tokens leave no room in a context of {info.context_length}", "context")
    if info.vocabulary is not None:
        vocabulary = info.vocabulary.logits_size
        check_ids(request.context.token_ids, vocabulary, "context.token_ids")
        check_ids(request.sampling.stop_token_ids, vocabulary, "sampling.stop_token_ids")
        for key in request.sampling.logit_bias:
            if int(key) >= vocabulary:
                raise BadRequest(f"is outside the vocabulary of {vocabulary}", f"sampling.logit_bias.{key}")


def check_grammar_type(grammar: Grammar, info: ModelInfo) -> None:
    """Raises Unsupported."""
    if grammar.type not in info.capabilities.grammar_types:
        raise Unsupported(f"grammar type {grammar.type} is not supported", "grammar.type")


def check_ids(token_ids: list[int], vocabulary: int, field: str) -> None:
    """Raises BadRequest for the first id without a row in the model's embedding."""
    if token_ids and max(token_ids) >= vocabulary:
        index = next(i for i, token_id in enumerate(token_ids) if token_id >= vocabulary)
        raise BadRequest(f"is outside the vocabulary of {vocabulary}", f"{field}.{index}")
