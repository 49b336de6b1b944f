"""Which models the torch engine can serve, judged from the configuration before any weights are read."""

from __future__ import annotations

from typing import Any

from transformers.cache_utils import CacheLayerMixin, LinearAttentionCacheLayerMixin

from engines.errors import ModelError
from engines.torch.elsewhere import instead, refused
from engines.torch.wrappers import is_wrapper, model_class

_PLAIN_LAYERS = {"full_attention", "sliding_attention", "attention"}
_ROPE_TYPES = {
    "default", "linear", "llama3", "yarn", "longrope", "proportional",
    "dynamic",  # changes its frequencies beyond max_position_embeddings only, and no sequence gets that long here
}  # fmt: skip
_ROPE_KEYS = {
    "rope_theta", "rope_type", "type", "factor", "original_max_position_embeddings", "attention_factor", "beta_fast",
    "beta_slow", "low_freq_factor", "high_freq_factor", "short_factor", "long_factor", "partial_rotary_factor",
    "mscale", "mscale_all_dim", "truncate", "alpha",
    "llama_4_scaling_beta",  # Ministral 3 and Mistral 4: queries grow with their position
    "mrope_section", "mrope_interleaved",  # Qwen VL: positions in three axes, which are alike for text
    "finetuned",  # says how the model came to be
    "max_position_embeddings",  # Ministral 3 and Mistral 4: the configuration's own once more, which alone is read
}  # fmt: skip
_UNSERVED = {
    "diffllama": "has two attentions in every layer",
    "doge": "masks its scores by what it computes from the values",
    "hrm_text": "runs its layers several times over, each time with other keys and values",
    "jetmoe": "routes every token to attention heads of its own",
    "recurrent_gemma": "remembers in recurrent layers (RG-LRU) of code that keeps the state for itself",
    **dict.fromkeys(
        ["camembert", "data2vec-text", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"],
        "counts positions from beyond the id of its padding token",
    ),
}
# Models with recurrent layers whose code was tried: the rest of them is refused.
_RECURRENT = {
    "bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba", "lfm2", "lfm2_moe", "mamba", "mamba2",
    "nemotron_h", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next",
}  # fmt: skip
_ALIBI = {"bloom", "mpt"}
# Whose classes say that their attention can be replaced, and whose attention then does not get the pass.
_CLOSED = {"moshi", "nemotron"}


def check_supported(config: Any, slot_length: int) -> None:
    """Refuse what attention over slots of key-value memory would get wrong.

    Raises:
        ModelError: naming the feature, and what to use instead.
    """
    text = config.get_text_config()
    kind = text.model_type
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            f"{config.model_type} is an encoder-decoder model; Tandem serves decoder-only ones, on any engine: "
            "choose one of those"
        )
    if kind in _ALIBI or getattr(text, "alibi", False):
        raise refused(kind, f"{kind} uses alibi position biases")
    other = sorted(set(getattr(text, "layer_types", None) or []) - _PLAIN_LAYERS)
    if other and kind not in _RECURRENT:
        raise refused(kind, f"{kind} has layers other than full attention ({', '.join(other)})")
    if kind in _UNSERVED:
        raise refused(kind, f"{kind} {_UNSERVED[kind]}")
    windows = [window for layer in attention_layers(config) if (window := layer_window(text, layer)) is not None]
    if min(windows, default=1) < 1:
        raise ModelError(f"its config.json gives tokens a window of {min(windows)} tokens, not even themselves")
    _check_rope(text)
    longest = getattr(text, "max_position_embeddings", None)
    if longest is not None and slot_length > longest > 0:
        raise ModelError(f"a context length of {slot_length} exceeds the model's {longest}")
    _check_architectures(config)
    _check_class(config, kind)


def _check_class(config: Any, kind: str) -> None:
    """Whether transformers has code for the model's text, and lets its attention be replaced."""
    found = model_class(config)
    if found is None and is_wrapper(config):
        raise ModelError(
            f"{config.model_type} is a wrapper around a language model ({kind}) that the torch engine does not know "
            f"how to take out; {instead(kind)}"
        )
    if found is None:
        raise ModelError(
            f"{config.model_type} is not a causal language model that transformers knows; "
            f"if vLLM knows it, {instead(kind)}"
        )
    replaceable = getattr(found, "_supports_attention_backend", False) and kind not in _CLOSED
    if not replaceable and kind not in _RECURRENT:
        raise ModelError(
            f"transformers' {config.model_type} does not let its attention be replaced, which the torch engine needs; "
            f"{instead(kind)}"
        )


def _check_architectures(config: Any) -> None:
    """A model of code of its own may borrow the type of another, which would then compute something else."""
    import transformers

    known = {name.casefold() for name in dir(transformers)}  # PhiMoEForCausalLM is PhimoeForCausalLM there
    for name in getattr(config, "architectures", None) or []:
        if str(name).casefold() not in known:
            raise ModelError(
                f"its config.json names {name}, which transformers does not have, and code of models is not run; "
                f"{instead()}"
            )


def context_length(config: Any) -> int:
    """The most tokens that a sequence of this model may have and be served right."""
    text = config.get_text_config()
    longest: int | None = getattr(text, "max_position_embeddings", None)
    return longest if longest is not None and longest > 0 else 2048


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
    kind = text.model_type
    for rope in _ropes(text):
        scaling = rope.get("rope_type", "default")
        if scaling not in _ROPE_TYPES:
            raise refused(kind, f"{kind} uses {scaling} rotary scaling")
        unknown = sorted(set(rope) - _ROPE_KEYS)
        if unknown:
            raise refused(kind, f"{kind} has {unknown[0]!r} in its rotary parameters")
    ropes = _ropes(text)
    if len(ropes) > 1 and any(rope.get("rope_type") == "longrope" for rope in ropes):
        raise refused(kind, f"{kind} uses longrope rotary scaling in some of its layers")


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
