"""Which models the torch engine can serve, judged from the configuration before any weights are read."""

from __future__ import annotations

from typing import Any

from transformers.cache_utils import CacheLayerMixin, LinearAttentionCacheLayerMixin

from engines.errors import ModelError

_PLAIN_LAYERS = {"full_attention", "sliding_attention", "attention"}
# Its rotary frequencies depend on the longest sequence in the pass, so sessions in one pass would change each other.
_LENGTH_DEPENDENT_ROPE = {"dynamic"}
_ROPE_TYPES = {"default", "linear", "llama3", "yarn", "longrope", "proportional"}
_ROPE_KEYS = {
    "rope_theta", "rope_type", "type", "factor", "original_max_position_embeddings", "attention_factor", "beta_fast",
    "beta_slow", "low_freq_factor", "high_freq_factor", "short_factor", "long_factor", "partial_rotary_factor",
    "mscale", "mscale_all_dim", "truncate",
    "finetuned",  # says how the model came to be
}  # fmt: skip
_UNSERVED = {
    "diffllama": "has two attentions in every layer",
    "jetmoe": "routes every token to attention heads of its own",
}
# Models with recurrent layers whose code was tried: the rest of them is refused.
_RECURRENT = {
    "bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba", "lfm2", "lfm2_moe", "mamba", "mamba2",
    "nemotron_h", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next",
}  # fmt: skip
_ELSEWHERE = "which the torch engine does not compute; choose vllm as the engine"
_ALIBI = {"bloom", "mpt"}


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
        raise ModelError(f"{kind} uses alibi position biases, {_ELSEWHERE}")
    other = sorted(set(getattr(text, "layer_types", None) or []) - _PLAIN_LAYERS)
    if other and kind not in _RECURRENT:
        raise ModelError(f"{kind} has layers other than full attention ({', '.join(other)}), {_ELSEWHERE}")
    if kind in _UNSERVED:
        raise ModelError(f"{kind} {_UNSERVED[kind]}, {_ELSEWHERE}")
    _check_rope(text)
    longest = getattr(text, "max_position_embeddings", None)
    if longest is not None and slot_length > longest:
        raise ModelError(f"a context length of {slot_length} exceeds the model's {longest}")
    _check_architectures(config)
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelError(f"{config.model_type} is not a causal language model that transformers knows")
    replaceable = getattr(MODEL_FOR_CAUSAL_LM_MAPPING[type(config)], "_supports_attention_backend", False)
    if not replaceable and kind not in _RECURRENT:
        raise ModelError(
            f"transformers' {kind} does not let its attention be replaced, which the torch engine needs; "
            "choose vllm as the engine"
        )


def _check_architectures(config: Any) -> None:
    """A model of code of its own may borrow the type of another, which would then compute something else."""
    import transformers

    known = {name.casefold() for name in dir(transformers)}  # PhiMoEForCausalLM is PhimoeForCausalLM there
    for name in getattr(config, "architectures", None) or []:
        if str(name).casefold() not in known:
            raise ModelError(
                f"its config.json names {name}, which transformers does not have; code of models is not run"
            )


def context_length(config: Any) -> int:
    """The most tokens that a sequence of this model may have and be served right."""
    text = config.get_text_config()
    longest: int | None = getattr(text, "max_position_embeddings", None)
    return 2048 if longest is None else longest


def attention_layers(config: Any) -> list[int]:
    """The layers that attend to keys and values, by number."""
    layers = _cache_layers(config)
    if not any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in layers):
        return list(range(config.get_text_config().num_hidden_layers))  # shared keys and values included
    return [number for number, layer in enumerate(layers) if isinstance(layer, CacheLayerMixin)]


def recurrent_layers(config: Any) -> list[int]:
    """The layers that remember a sequence in a state of fixed size, by number; some of them attend as well."""
    layers = _cache_layers(config)
    return [number for number, layer in enumerate(layers) if isinstance(layer, LinearAttentionCacheLayerMixin)]


def _cache_layers(config: Any) -> list[Any]:
    """What transformers itself would keep of each layer."""
    from transformers import DynamicCache

    return list(DynamicCache(config=config).layers)


def layer_window(text: Any, layer: int) -> int | None:
    """How many tokens, itself included, a token sees in this layer; None if all before it."""
    window: int | None = getattr(text, "sliding_window", None)
    layer_types = getattr(text, "layer_types", None)
    if layer_types is not None and layer_types[layer] != "sliding_attention":
        return None
    return window


def _check_rope(text: Any) -> None:
    for rope in _ropes(text):
        kind = rope.get("rope_type", "default")
        if kind in _LENGTH_DEPENDENT_ROPE:
            raise ModelError(
                f"{text.model_type} uses {kind} rotary scaling, which depends on other sequences in the pass"
            )
        if kind not in _ROPE_TYPES:
            raise ModelError(f"{text.model_type} uses {kind} rotary scaling, which is not supported")
        unknown = sorted(set(rope) - _ROPE_KEYS)
        if unknown:
            raise ModelError(f"{text.model_type} has {unknown[0]!r} in its rotary parameters, which is not known here")
    ropes = _ropes(text)
    if len(ropes) > 1 and any(rope.get("rope_type") == "longrope" for rope in ropes):
        raise ModelError(f"{text.model_type} uses longrope rotary scaling in some of its layers, {_ELSEWHERE}")


def changing_length(config: Any) -> int | None:
    """The length beyond which longrope has other frequencies, None if they always stay the same."""
    lengths: list[int] = [
        rope["original_max_position_embeddings"]
        for rope in _ropes(config.get_text_config())
        if rope.get("rope_type") == "longrope" and rope.get("short_factor") != rope.get("long_factor")
    ]
    return min(lengths, default=None)


def _ropes(text: Any) -> list[dict[str, Any]]:
    """Rotary parameters, one set for all layers or one for each type of layer."""
    parameters = getattr(text, "rope_parameters", None) or {}
    inner = [part for part in parameters.values() if isinstance(part, dict)]
    return inner or ([parameters] if parameters else [])
