"""Every architecture of GGUF: a file of a random model is converted to what that model computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from engines.errors import ModelError
from engines.gguf.config import ARCHITECTURES
from engines.gguf.convert import convert_gguf
from engines.gguf.rope import llama3_factors
from tests.engines.gguf.gguf_files import (
    VOCABULARY,
    Keys,
    Tensors,
    byte_level_keys,
    keys_of,
    random_model,
    tensors_of,
    write,
)

SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": None,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "tie_word_embeddings": False,
}
WIDE = {**SMALL, "head_dim": 16}
TIED = {**SMALL, "tie_word_embeddings": True}
THETA = 5e5
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}


def rope(**parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": THETA, **parameters}}


def case(name: str, arch: str, config: Any, **keys: Any) -> Any:
    return pytest.param(arch, config, {"rope__freq_base": THETA, **keys}, id=name)


GEMMA3_ROPE = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": THETA},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
CASES = [
    case("llama", "llama", transformers.LlamaConfig(**SMALL, **rope())),
    case("llama-tied-biased", "llama", transformers.LlamaConfig(**TIED, **rope(), attention_bias=True, mlp_bias=True)),
    case("llama-head-dim", "llama", transformers.LlamaConfig(**WIDE, **rope()), attention__key_length=16),
    case("mixtral", "llama", transformers.MixtralConfig(**SMALL, **rope(), num_local_experts=4, num_experts_per_tok=2),
         expert_count=4, expert_used_count=2),
    case("qwen2", "qwen2", transformers.Qwen2Config(**SMALL, **rope())),
    case("qwen3", "qwen3", transformers.Qwen3Config(**WIDE, **rope()), attention__key_length=16),
    case("qwen2moe", "qwen2moe",
         transformers.Qwen2MoeConfig(**SMALL, **rope(), **MOE, shared_expert_intermediate_size=40),
         expert_count=4, expert_used_count=2),
    case("qwen3moe", "qwen3moe", transformers.Qwen3MoeConfig(**WIDE, **rope(), **MOE, norm_topk_prob=True),
         attention__key_length=16, expert_count=4, expert_used_count=2, expert_feed_forward_length=24),
    case("phi3", "phi3", transformers.Phi3Config(**SMALL, **rope()), attention__sliding_window=0),
    case("phi3-partial", "phi3", transformers.Phi3Config(**SMALL, **rope(partial_rotary_factor=0.5)),
         rope__dimension_count=4),
    case("gemma", "gemma", transformers.GemmaConfig(**{**WIDE, "tie_word_embeddings": True}, **rope()),
         attention__key_length=16),
    case("gemma2", "gemma2",
         transformers.Gemma2Config(**{**WIDE, "tie_word_embeddings": True}, **rope(), query_pre_attn_scalar=16,
                                   sliding_window=8),
         attention__key_length=16, attention__sliding_window=8, attn_logit_softcapping=50.0,
         final_logit_softcapping=30.0),
    case("gemma3", "gemma3",
         transformers.Gemma3TextConfig(**{**WIDE, "tie_word_embeddings": True, "num_hidden_layers": 6},
                                       rope_parameters=GEMMA3_ROPE, query_pre_attn_scalar=16, sliding_window=8),
         attention__key_length=16, attention__sliding_window=8, rope__scaling__type="linear",
         rope__scaling__factor=8.0),
    case("granite", "granite",
         transformers.GraniteConfig(**SMALL, **rope(), embedding_multiplier=3.0, residual_multiplier=0.5,
                                    attention_multiplier=0.2, logits_scaling=4.0),
         embedding_scale=3.0, residual_scale=0.5, attention__scale=0.2, logit_scale=4.0),
    case("olmo2", "olmo2", transformers.Olmo2Config(**SMALL, **rope())),
    case("starcoder2", "starcoder2",
         transformers.Starcoder2Config(**TIED, **rope(), use_bias=True, sliding_window=None),
         attention__layer_norm_epsilon=1e-5),
    case("command-r", "command-r", transformers.CohereConfig(**TIED, **rope(), logit_scale=0.25, use_qk_norm=False),
         attention__layer_norm_epsilon=1e-5, logit_scale=0.25, rope__scaling__type="none"),
    case("linear", "llama", transformers.LlamaConfig(**SMALL, **rope(rope_type="linear", factor=4.0)),
         rope__scaling__type="linear", rope__scaling__factor=4.0),
    case("linear-early", "llama", transformers.LlamaConfig(**SMALL, **rope(rope_type="linear", factor=4.0)),
         rope__scale_linear=4.0),
    case("yarn", "qwen2",
         transformers.Qwen2Config(**SMALL, **rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)),
         rope__scaling__type="yarn", rope__scaling__factor=4.0, rope__scaling__original_context_length=64),
]  # fmt: skip


def logits(model: Any, length: int = 40, vocabulary: int = VOCABULARY) -> torch.Tensor:
    ids = torch.randint(3, vocabulary, (1, length), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        found: torch.Tensor = model(ids).logits[0]
    return found


def convert(folder: Path, keys: Keys, tensors: Tensors) -> Any:
    folder.mkdir(exist_ok=True)
    (folder / "out").mkdir()
    convert_gguf(write(folder / "tiny.gguf", keys, tensors), folder / "out")
    model, report = AutoModelForCausalLM.from_pretrained(folder / "out", dtype=torch.float32, output_loading_info=True)
    assert not any(report.values()), report
    return model.eval()


@pytest.mark.parametrize(("arch", "config", "keys"), CASES)
def test_converted_files_compute_what_the_model_computes(
    arch: str, config: Any, keys: dict[str, Any], tmp_path: Path
) -> None:
    model = random_model(config)
    found = convert(tmp_path, keys_of(config, arch, **keys) | byte_level_keys(), tensors_of(model, arch))
    torch.testing.assert_close(logits(found, 200), logits(model, 200), rtol=1e-4, atol=1e-4)


def test_every_architecture_is_tested() -> None:
    assert {parameters.values[0] for parameters in CASES} == set(ARCHITECTURES)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_factors_become_its_own_scaling(factor: float, tmp_path: Path) -> None:
    """The factors of Llama 3.1 and 3.2, taken from transformers' own frequencies."""
    scaling = {"factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    config = transformers.LlamaConfig(
        **{**SMALL, "hidden_size": 256, "max_position_embeddings": 16384},
        **rope(rope_type="llama3", original_max_position_embeddings=8192, **scaling),
    )
    model = random_model(config)
    plain = 1 / THETA ** (torch.arange(0, 64, 2).double() / 64)
    factors = (plain / model.model.rotary_emb.inv_freq.double()).float().numpy()
    assert len(set(factors.round(3))) > 4
    keys = keys_of(config, "llama", rope__freq_base=THETA) | byte_level_keys()
    found = convert(tmp_path, keys, tensors_of(model, "llama") | {"rope_freqs.weight": factors})
    assert found.config.rope_parameters["rope_type"] == "llama3"
    torch.testing.assert_close(logits(found, 1000), logits(model, 1000), rtol=1e-3, atol=1e-3)
    assert llama3_factors(THETA, 32, factor, 1.0, 4.0, 8192) == pytest.approx(factors, rel=1e-5)


@pytest.mark.parametrize("names", [["rope_freqs"], ["rope_factors_short", "rope_factors_long"]])
def test_other_factors_divide_frequencies_as_they_are(names: list[str], tmp_path: Path) -> None:
    arch = "llama" if names == ["rope_freqs"] else "phi3"
    rows = {name: torch.linspace(1, 3 + 2 * index, 4) for index, name in enumerate(names)}
    first, last = rows[names[0]].tolist(), rows[names[-1]].tolist()
    scaling = {
        "rope_type": "longrope", "short_factor": first, "long_factor": last,
        "original_max_position_embeddings": 64, "attention_factor": 1.0 if arch == "llama" else 1.2,
    }  # fmt: skip
    kind = transformers.LlamaConfig if arch == "llama" else transformers.Phi3Config
    config = kind(**SMALL, **rope(**scaling), original_max_position_embeddings=64)
    model = random_model(config)
    more = {} if arch == "llama" else {
        "rope__scaling__original_context_length": 64, "rope__scaling__attn_factor": 1.2,
    }  # fmt: skip
    keys = keys_of(config, arch, rope__freq_base=THETA, **more) | byte_level_keys()
    tensors = tensors_of(model, arch) | {f"{name}.weight": row.numpy() for name, row in rows.items()}
    found = convert(tmp_path, keys, tensors)
    for length in (40, 200):  # within the original length, and beyond it
        torch.testing.assert_close(logits(found, length), logits(model, length), rtol=1e-4, atol=1e-4)


def test_experts_of_early_files_lie_one_by_one(tmp_path: Path) -> None:
    config = transformers.MixtralConfig(**SMALL, **rope(), num_local_experts=4, num_experts_per_tok=2)
    model = random_model(config)
    tensors: Tensors = {}
    for name, values in tensors_of(model, "llama").items():
        if "_exps." not in name:
            tensors[name] = values
            continue
        for expert, own in enumerate(values):
            tensors[name.replace("_exps.", f".{expert}.")] = own
    keys = keys_of(config, "llama", rope__freq_base=THETA, expert_count=4, expert_used_count=2) | byte_level_keys()
    torch.testing.assert_close(logits(convert(tmp_path, keys, tensors)), logits(model), rtol=1e-4, atol=1e-4)
    tensors.pop("blk.1.ffn_up.3.weight")
    with pytest.raises(ModelError, match=r"tensor blk.1.ffn_up.3.weight is missing"):
        convert(tmp_path / "less", keys, tensors)
