"""Which models the torch engine can serve, judged from the configuration before any weights are read."""

from __future__ import annotations

from typing import Any

from engines.errors import ModelError

_PLAIN_LAYERS = {"full_attention", "sliding_attention", "attention"}
# Their rotary frequencies depend on the longest sequence in the pass, so sessions in one pass would change each other.
_LENGTH_DEPENDENT_ROPE = {"dynamic", "longrope"}
_ALIBI = {"bloom", "mpt"}
_SINKS = {"gpt_oss"}


def check_supported(config: Any, slot_length: int) -> None:
    """Refuse what attention over slots of key-value memory would get wrong.

    Raises:
        ModelError: naming the feature.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    text = config.get_text_config()
    kind = text.model_type
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"{kind} is an encoder-decoder model; Tandem serves decoder-only ones")
    if kind in _ALIBI or getattr(text, "alibi", False):
        raise ModelError(f"{kind} uses alibi position biases, which are not supported")
    other = sorted(set(getattr(text, "layer_types", None) or []) - _PLAIN_LAYERS)
    if other:
        raise ModelError(f"{kind} has layers other than full attention ({', '.join(other)}), which are not supported")
    if getattr(text, "attn_logit_softcapping", None) is not None:
        raise ModelError(f"{kind} caps its attention scores (softcapping), which is not supported")
    if kind in _SINKS:
        raise ModelError(f"{kind} uses attention sinks, which are not supported")
    for rope in sorted(_rope_types(text) & _LENGTH_DEPENDENT_ROPE):
        raise ModelError(f"{kind} uses {rope} rotary scaling, which depends on other sequences in the pass")
    window = sliding_window(text)
    if window is not None and slot_length > window:
        raise ModelError(
            f"{kind} attends over a sliding window of {window} tokens; "
            f"that is not supported, so set a context length of at most {window} (now {slot_length})"
        )
    longest = getattr(text, "max_position_embeddings", None)
    if longest is not None and slot_length > longest:
        raise ModelError(f"a context length of {slot_length} exceeds the model's {longest}")
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelError(f"{config.model_type} is not a causal language model that transformers knows")
    if not getattr(MODEL_FOR_CAUSAL_LM_MAPPING[type(config)], "_supports_attention_backend", False):
        raise ModelError(f"transformers' {kind} does not let its attention be replaced, which Tandem needs")


def context_length(config: Any) -> int:
    """The most tokens that a sequence of this model may have and be served right."""
    text = config.get_text_config()
    lengths = (getattr(text, "max_position_embeddings", None), sliding_window(text))
    return min((length for length in lengths if length is not None), default=2048)


def sliding_window(text: Any) -> int | None:
    """The window that some layer attends over, None where all attend over everything."""
    window: int | None = getattr(text, "sliding_window", None)
    layer_types = getattr(text, "layer_types", None)
    if layer_types is not None and "sliding_attention" not in layer_types:
        return None
    return window


def _rope_types(text: Any) -> set[str]:
    parameters = getattr(text, "rope_parameters", None) or {}
    kinds = [parameters, *(part for part in parameters.values() if isinstance(part, dict))]
    return {str(kind["rope_type"]) for kind in kinds if "rope_type" in kind}
