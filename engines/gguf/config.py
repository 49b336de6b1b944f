"""The metadata of a GGUF file as a transformers configuration.

Each architecture reads the keys that it knows; a key of the architecture that nobody reads is a refusal, since it may
change what the model computes. Defaults are llama.cpp's, which reads the same files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engines.errors import ModelError
from engines.gguf.reader import GgufModel
from engines.gguf.rope import rope_parameters

# Keys of an architecture that say nothing which the tensors' shapes, or the other keys, do not say.
_HARMLESS = frozenset({
    "vocab_size",  # the embedding's rows count
    "tensor_data_layout",  # how the file came to be
    "use_parallel_residual",  # the architecture says it
    "rope.scaling.finetuned",
})  # fmt: skip


class Shape:
    """The fields of nearly all architectures, by transformers' names."""

    def __init__(self, model: GgufModel, arch: str) -> None:
        self.model, self.arch = model, arch
        self.hidden = int(self.need("embedding_length"))
        self.layers = int(self.need("block_count"))
        self.heads = self.number("attention.head_count")
        self.key_value_heads = self.number("attention.head_count_kv", self.heads)
        self.head_dim = int(self.get("attention.key_length") or self.hidden // self.heads)
        if int(self.get("attention.value_length") or self.head_dim) != self.head_dim:
            raise ModelError("keys and values of different lengths are not supported")
        self.context_length = int(self.need("context_length"))
        self.rotated = int(self.get("rope.dimension_count") or self.head_dim)
        self.theta = float(self.get("rope.freq_base") or 10000.0)
        if not self.get("attention.causal", True):
            raise ModelError("its attention is not causal")

    def get(self, key: str, default: Any = None) -> Any:
        return self.model.metadata.get(f"{self.arch}.{key}", default)

    def need(self, key: str) -> Any:
        return self.model.metadata.need(f"{self.arch}.{key}")

    def number(self, key: str, default: int | None = None) -> int:
        """A number that may be written once for every layer. Raises ModelError if layers differ."""
        value = self.need(key) if default is None else self.get(key, default)
        numbers = {int(one) for one in value} if isinstance(value, list) else {int(value)}
        if len(numbers) != 1:
            raise ModelError(f"layers differ in {self.arch}.{key}, which is not supported")
        return numbers.pop()

    def has(self, tensor: str) -> bool:
        return tensor in self.model.tensors

    def rope(self, *, partial: bool = False) -> dict[str, Any]:
        if self.rotated != self.head_dim and not partial:
            raise ModelError(f"{self.arch} heads that are rotated in part are not supported")
        found = rope_parameters(
            self.model, self.arch, theta=self.theta, dimensions=self.rotated, context_length=self.context_length
        )
        if partial:
            found["partial_rotary_factor"] = self.rotated / self.head_dim
        return found

    def common(self, *, rope: dict[str, Any] | None = None, epsilon: str = "layer_norm_rms_epsilon") -> dict[str, Any]:
        """The fields that Llama-like decoders share."""
        name = {"layer_norm_rms_epsilon": "rms_norm_eps", "layer_norm_epsilon": "layer_norm_eps"}[epsilon]
        return {
            "vocab_size": self.model.shape("token_embd.weight")[0],
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.key_value_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": self.context_length,
            "rope_parameters": rope if rope is not None else self.rope(),
            "tie_word_embeddings": not self.has("output.weight"),
            name: float(self.need(f"attention.{epsilon}")),
            # Those of the tokenizer are set later; the classes' defaults are one model's.
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": None,
        }

    def feed_forward(self) -> dict[str, Any]:
        return {"intermediate_size": self.number("feed_forward_length")}

    def experts(self, name: str) -> dict[str, Any]:
        return {name: int(self.need("expert_count")), "num_experts_per_tok": int(self.need("expert_used_count"))}

    def expert_width(self) -> int:
        """The rows of an expert's matrix. Raises ModelError if the key beside it contradicts it."""
        width = self.model.shape("blk.0.ffn_gate_exps.weight")[1]
        if int(self.get("expert_feed_forward_length", width) or width) != width:
            raise ModelError(f"experts are {width} wide, and {self.arch}.expert_feed_forward_length says otherwise")
        return width

    def plain_weights(self) -> None:
        """Raises ModelError if the experts' outputs are weighted in another way than the architecture's own."""
        scale = float(self.get("expert_weights_scale", 0.0) or 0.0)
        if scale not in (0.0, 1.0):
            raise ModelError(f"{self.arch}.expert_weights_scale {scale} is not supported")
        if int(self.get("expert_gating_func", 1) or 1) != 1:  # 1: softmax
            raise ModelError(f"{self.arch}.expert_gating_func other than softmax is not supported")


def _llama(shape: Shape) -> tuple[str, dict[str, Any]]:
    count, used = int(shape.get("expert_count", 0)), int(shape.get("expert_used_count", 0))
    if count:
        shape.plain_weights()
        fields = {"num_local_experts": count, "num_experts_per_tok": used, "sliding_window": None}
        return "mixtral", shape.common() | shape.feed_forward() | fields
    biases = {"attention_bias": shape.has("blk.0.attn_q.bias"), "mlp_bias": shape.has("blk.0.ffn_gate.bias")}
    return "llama", shape.common() | shape.feed_forward() | biases


def _qwen2(shape: Shape) -> tuple[str, dict[str, Any]]:
    return "qwen2", shape.common() | shape.feed_forward() | {"use_sliding_window": False}


def _qwen3(shape: Shape) -> tuple[str, dict[str, Any]]:
    fields = {"use_sliding_window": False, "attention_bias": shape.has("blk.0.attn_q.bias")}
    return "qwen3", shape.common() | shape.feed_forward() | fields


def _qwen2moe(shape: Shape) -> tuple[str, dict[str, Any]]:
    shape.plain_weights()
    shared = shape.model.shape("blk.0.ffn_gate_shexp.weight")[0]
    if int(shape.get("expert_shared_feed_forward_length", shared) or shared) != shared:
        raise ModelError(f"the shared expert is {shared} wide, and expert_shared_feed_forward_length says otherwise")
    shape.get("expert_shared_count")  # always one
    fields = {
        "moe_intermediate_size": shape.expert_width(),
        "shared_expert_intermediate_size": shared,
        "intermediate_size": shape.number("feed_forward_length", shared),
        "norm_topk_prob": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "use_sliding_window": False,
    }
    return "qwen2_moe", shape.common() | shape.experts("num_experts") | fields


def _qwen3moe(shape: Shape) -> tuple[str, dict[str, Any]]:
    shape.plain_weights()
    width = shape.expert_width()
    fields = {
        "moe_intermediate_size": width,
        "intermediate_size": shape.number("feed_forward_length", width),
        "norm_topk_prob": bool(shape.get("expert_weights_norm", True)),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "use_sliding_window": False,
    }
    return "qwen3_moe", shape.common() | shape.experts("num_experts") | fields


def _phi3(shape: Shape) -> tuple[str, dict[str, Any]]:
    rope = shape.rope(partial=True)
    fields = {
        "sliding_window": int(shape.get("attention.sliding_window", 0)) or None,
        "original_max_position_embeddings": rope.get("original_max_position_embeddings", shape.context_length),
    }
    return "phi3", shape.common(rope=rope) | shape.feed_forward() | fields


def _gemma(shape: Shape) -> tuple[str, dict[str, Any]]:
    return "gemma", shape.common() | shape.feed_forward()


def _query_scale(shape: Shape, largest: int) -> float:
    """Gemma 2 and 3 divide queries by the root of a head's dimensions, their largest by its share of the width."""
    return shape.hidden / shape.heads if shape.layers == largest else shape.head_dim


def _gemma2(shape: Shape) -> tuple[str, dict[str, Any]]:
    fields = {
        "sliding_window": int(shape.get("attention.sliding_window", 4096)),
        "attn_logit_softcapping": float(shape.get("attn_logit_softcapping", 50.0)),
        "final_logit_softcapping": float(shape.get("final_logit_softcapping", 30.0)),
        "query_pre_attn_scalar": _query_scale(shape, 46),
    }
    return "gemma2", shape.common() | shape.feed_forward() | fields


def _gemma3(shape: Shape) -> tuple[str, dict[str, Any]]:
    """Only the layers with full attention are scaled; the others always keep their base of 10⁴."""
    pattern = shape.get("attention.sliding_window_pattern", 6)
    if isinstance(pattern, list):
        kinds = ["sliding_attention" if local else "full_attention" for local in pattern]
    else:
        kinds = [
            "sliding_attention" if (index + 1) % int(pattern) else "full_attention" for index in range(shape.layers)
        ]
    local = {"rope_type": "default", "rope_theta": float(shape.get("rope.freq_base_swa") or 10000.0)}
    shape.theta = float(shape.get("rope.freq_base") or 1e6)
    fields = {
        "sliding_window": int(shape.get("attention.sliding_window", 1024)),
        "layer_types": kinds,
        "query_pre_attn_scalar": _query_scale(shape, 62),
        "final_logit_softcapping": float(shape.get("final_logit_softcapping", 0.0)) or None,
        "attn_logit_softcapping": None,
    }
    rope = {"full_attention": shape.rope(), "sliding_attention": local}
    return "gemma3_text", shape.common(rope=rope) | shape.feed_forward() | fields


def _granite(shape: Shape) -> tuple[str, dict[str, Any]]:
    fields = {
        "embedding_multiplier": float(shape.get("embedding_scale", 0.0)) or 1.0,
        "residual_multiplier": float(shape.get("residual_scale", 0.0)) or 1.0,
        "attention_multiplier": float(shape.get("attention.scale", 0.0)) or shape.head_dim**-0.5,
        "logits_scaling": float(shape.get("logit_scale", 0.0)) or 1.0,
        "attention_bias": shape.has("blk.0.attn_q.bias"),
        "mlp_bias": shape.has("blk.0.ffn_gate.bias"),
    }
    return "granite", shape.common() | shape.feed_forward() | fields


def _olmo2(shape: Shape) -> tuple[str, dict[str, Any]]:
    return "olmo2", shape.common() | shape.feed_forward()


def _starcoder2(shape: Shape) -> tuple[str, dict[str, Any]]:
    common = shape.common(epsilon="layer_norm_epsilon")
    common["norm_epsilon"] = common.pop("layer_norm_eps")
    fields = {"use_bias": shape.has("blk.0.attn_q.bias"), "sliding_window": None}
    return "starcoder2", common | shape.feed_forward() | fields


def _command_r(shape: Shape) -> tuple[str, dict[str, Any]]:
    fields = {
        "logit_scale": float(shape.need("logit_scale")),
        "use_qk_norm": shape.has("blk.0.attn_q_norm.weight"),
        "attention_bias": shape.has("blk.0.attn_q.bias"),
    }
    return "cohere", shape.common(epsilon="layer_norm_epsilon") | shape.feed_forward() | fields


ARCHITECTURES: dict[str, Callable[[Shape], tuple[str, dict[str, Any]]]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen2moe": _qwen2moe,
    "qwen3moe": _qwen3moe,
    "phi3": _phi3,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "granite": _granite,
    "olmo2": _olmo2,
    "starcoder2": _starcoder2,
    "command-r": _command_r,
}


def configuration(model: GgufModel) -> tuple[str, Any]:
    """The file's architecture by llama.cpp's name, and a transformers configuration for it, without token ids.

    Raises:
        ModelError: for an architecture that is not converted, and for metadata that says what would be dropped.
    """
    from transformers import AutoConfig

    metadata = model.metadata
    arch = str(metadata.need("general.architecture"))
    kind = metadata.get("general.type", "model")
    if kind != "model":
        raise ModelError(f"it holds no language model but is of type {kind}")
    if arch not in ARCHITECTURES:
        raise ModelError(
            f"GGUF files of architecture {arch} are not converted; these are: {', '.join(sorted(ARCHITECTURES))}. "
            "The model's own folder of safetensors may be served"
        )
    shape = Shape(model, arch)
    if int(shape.get("expert_count", 0) or 0) == 0:
        shape.get("expert_used_count")  # some files say zero of both
    model_type, fields = ARCHITECTURES[arch](shape)
    unread = [key for key in metadata.unread(f"{arch}.") if key.removeprefix(f"{arch}.") not in _HARMLESS]
    if unread:
        raise ModelError(f"its metadata says {unread[0]}, which is not known for {arch}; it would be dropped")
    return arch, AutoConfig.for_model(model_type, **fields)
