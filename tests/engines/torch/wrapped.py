"""Tiny models whose language model is wrapped in towers for images, as transformers writes them to a folder."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import torch
import transformers
from transformers import PreTrainedConfig

from engines.models import ModelFiles
from engines.torch.loader import load_runner
from engines.torch.runner import Runner
from tests.engines.torch.families import ALTERNATE, BASE, GEMMA, LINEAR, NO_HEAD_DIM, SHARED

MROPE: dict[str, Any] = {
    **BASE, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]},
}  # fmt: skip
MINISTRAL_3: dict[str, Any] = {
    **BASE,
    "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 32,
        "llama_4_scaling_beta": 0.5, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
    },
}  # fmt: skip
MOE: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
MLA: dict[str, Any] = {
    **NO_HEAD_DIM, "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 4, "v_head_dim": 12, "n_routed_experts": 4, "n_group": 1, "topk_group": 1,
    "num_experts_per_tok": 2, "moe_intermediate_size": 16, "first_k_dense_replace": 1,
}  # fmt: skip
CLIP: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14,
}  # fmt: skip
QWEN: dict[str, Any] = {
    "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32,
}  # fmt: skip
QWEN_3: dict[str, Any] = {**QWEN, "deepstack_visual_indexes": [0], "num_position_embeddings": 16}
GLM: dict[str, Any] = {**QWEN, "attention_heads": 2, "image_size": 28, "patch_size": 14}
GLM_TEXT: dict[str, Any] = {
    **NO_HEAD_DIM,
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 0],
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Wrapper:
    """`config` and `model` name classes of transformers; `text` and `vision` are the parts' options. `slow`: not in CI.

    `text_type`, `vision_type`: the parts' types, where the wrapper does not fix them.
    """

    name: str
    config: str
    model: str
    text: dict[str, Any] = field(default_factory=lambda: BASE)
    vision: dict[str, Any] = field(default_factory=lambda: CLIP)
    text_type: str | None = None
    vision_type: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    slow: bool = True
    cached: ClassVar[bool] = True

    def make_config(self) -> PreTrainedConfig:
        text, vision = dict(self.text), dict(self.vision)
        if self.text_type is not None:
            text["model_type"] = self.text_type
        if self.vision_type is not None:
            vision["model_type"] = self.vision_type
        made: PreTrainedConfig = getattr(transformers, self.config)(
            text_config=text, vision_config=vision, **{"tie_word_embeddings": False, **self.options}
        )
        return made

    def make_model(self) -> Any:
        """The whole wrapper as transformers runs it, with random weights of a size that makes its text vary."""
        torch.manual_seed(0)
        made = getattr(transformers, self.model)._from_config(
            self.make_config(), dtype=torch.float32, attn_implementation="eager"
        )
        with torch.no_grad():
            for name, parameter in made.named_parameters():
                if parameter.dim() > 1 and "norm" not in name and "conv" not in name and "A_log" not in name:
                    parameter.normal_().mul_(1.0 if "embed" in name else 1.5 / math.sqrt(parameter.shape[-1]))
        made.generation_config.eos_token_id = None
        return made.eval()

    def make_runner(self, num_slots: int, slot_length: int, *, batch_invariant: bool = False) -> Runner:
        """As a worker loads it: from a folder, without its towers."""
        with TemporaryDirectory() as folder:
            self.make_model().save_pretrained(folder)
            return load_runner(
                ModelFiles(self.name, Path(folder)), num_slots=num_slots, slot_length=slot_length, device="cpu",
                batch_invariant=batch_invariant,
            )  # fmt: skip


def _vl(name: str, prefix: str, slow: bool = True, **more: Any) -> Wrapper:
    return Wrapper(name, f"{prefix}Config", f"{prefix}ForConditionalGeneration", slow=slow, **more)


WRAPPERS = [
    _vl("Qwen 2.5 VL", "Qwen2_5_VL", text=MROPE, vision={**QWEN, "fullatt_block_indexes": [0]}, slow=False),
    _vl("Qwen 2 VL", "Qwen2VL", text=MROPE, vision={"depth": 1, "embed_dim": 16, "num_heads": 2, "hidden_size": 32}),
    _vl("Qwen 3 VL", "Qwen3VL", text=MROPE, vision=QWEN_3),
    _vl("Qwen 3 VL MoE", "Qwen3VLMoe", text={**MROPE, **MOE}, vision=QWEN_3),
    _vl("Qwen 3.5 with vision", "Qwen3_5", text={**BASE, **LINEAR}, vision=QWEN_3),
    _vl("Qwen 3.5 MoE with vision", "Qwen3_5Moe", text={**BASE, **LINEAR, **MOE, "shared_expert_intermediate_size": 16},
        vision=QWEN_3),
    _vl("Mistral Small 3.1, 3.2", "Mistral3", text_type="mistral", vision_type="pixtral", slow=False),
    _vl("Ministral 3", "Mistral3", text=MINISTRAL_3, text_type="ministral3", vision_type="pixtral"),
    _vl("LLaVA", "Llava", text_type="llama", vision_type="clip_vision_model", slow=False),
    _vl("LLaVA-NeXT", "LlavaNext", text_type="mistral", vision_type="clip_vision_model"),
    _vl("LLaVA-OneVision", "LlavaOnevision", text=NO_HEAD_DIM, text_type="qwen2", vision_type="siglip_vision_model"),
    _vl("VipLLaVA", "VipLlava", text_type="llama", vision_type="clip_vision_model",
        options={"vision_feature_layers": [-1, -1]}),
    _vl("Gemma 3 with vision", "Gemma3", text={**BASE, **GEMMA, **ALTERNATE}, vision_type="siglip_vision_model",
        options={"mm_tokens_per_image": 4}),
    _vl("Gemma 4 with vision", "Gemma4", text={**BASE, **SHARED, "global_head_dim": 16, "pad_token_id": 0},
        vision={**CLIP, "num_key_value_heads": 2, "head_dim": 8}, options={"audio_config": None}),
    _vl("InternVL 3", "InternVL", text=NO_HEAD_DIM, text_type="qwen2", vision={**CLIP, "image_size": [28, 28],
        "patch_size": [14, 14]}),
    _vl("Aya Vision", "AyaVision", text={**NO_HEAD_DIM, **ALTERNATE}, text_type="cohere2",
        vision_type="siglip_vision_model"),
    _vl("Command A Vision", "Cohere2Vision", text={**NO_HEAD_DIM, **ALTERNATE}, text_type="cohere2",
        vision_type="siglip_vision_model"),
    _vl("GLM-4.1V", "Glm4v", text=GLM_TEXT, vision=GLM),
    _vl("GLM-4.6V", "Glm46V", text={**GLM_TEXT, "model_type": "glm4v_text"},
        vision={**GLM, "model_type": "glm4v_vision"}),
    _vl("GLM-4.5V", "Glm4vMoe", text={**GLM_TEXT, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 16, "n_group": 1, "topk_group": 1}, vision=GLM),
    _vl("Idefics 2", "Idefics2", text_type="mistral", vision=CLIP),
    _vl("Idefics 3", "Idefics3", text_type="llama"),
    _vl("SmolVLM", "SmolVLM", text_type="llama"),
    _vl("LFM 2 VL", "Lfm2Vl", text={**NO_HEAD_DIM, "layer_types": ["conv", "full_attention"]}, text_type="lfm2",
        vision={**CLIP, "num_patches": 4}, vision_type="siglip2_vision_model"),
    _vl("Kimi K2.5", "Kimi_K25", text=MLA, text_type="deepseek_v3", vision=CLIP),
    _vl("EXAONE 4.5", "Exaone4_5_", text={**NO_HEAD_DIM, **ALTERNATE}, text_type="exaone4",
        vision={**QWEN, "fullatt_block_indexes": [0]}),
]  # fmt: skip
