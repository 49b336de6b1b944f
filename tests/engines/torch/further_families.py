"""Further families of transformers' causal language models that people serve; all of them slow."""

from __future__ import annotations

from typing import Any

from tests.engines.torch.families import ALTERNATE, BASE, LINEAR, MOE, NO_HEAD_DIM, SLIDING, Family

LOCAL: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
ROUTED: dict[str, Any] = {
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 1, "n_shared_experts": 1,
}  # fmt: skip
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16,
    "v_head_dim": 16,
}  # fmt: skip
ALPHA: dict[str, Any] = {
    "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 1000.0, "factor": 1.0},
}  # fmt: skip
MINISTRAL_3: dict[str, Any] = {
    "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 32,
        "max_position_embeddings": 256, "llama_4_scaling_beta": 0.5,
        "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
    },
}  # fmt: skip
GPT_2: dict[str, Any] = {
    "vocab_size": 100, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "bos_token_id": 0,
    "eos_token_id": None, "tie_word_embeddings": False,
}  # fmt: skip
DBRX: dict[str, Any] = {
    "vocab_size": 100, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 256, "pad_token_id": None,
    "eos_token_id": None, "tie_word_embeddings": False,
    "ffn_config": {"hidden_size": 32, "ffn_hidden_size": 32, "moe_num_experts": 2, "moe_top_k": 1},
    "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 0.5},
}  # fmt: skip
MODERN: dict[str, Any] = {
    "local_attention": 16, "global_attn_every_n_layers": 2, "num_hidden_layers": 4, "pad_token_id": 0,
    "cls_token_id": 1, "sep_token_id": 2,
}  # fmt: skip
DYNAMIC: dict[str, Any] = {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}}


def _further(name: str, config: str, *options: dict[str, Any], base: dict[str, Any] = BASE, **more: Any) -> Family:
    merged = {key: value for given in options for key, value in given.items()} | more
    return Family(name, config, merged, base, slow=True)


FURTHER = [
    _further("Llama, dynamic NTK", "LlamaConfig", DYNAMIC),
    _further("A.X K1", "AXK1Config", LATENT, ROUTED, base=NO_HEAD_DIM),
    _further("AFM (Trinity)", "AfmoeConfig", MOE, SLIDING, global_attn_every_n_layers=2, num_dense_layers=1),
    _further("Apertus", "ApertusConfig", base=NO_HEAD_DIM),
    _further("Arcee", "ArceeConfig"),
    _further("Aria", "AriaTextConfig", moe_num_experts=4, moe_topk=2, moe_num_shared_experts=1),
    _further("BitNet", "BitNetConfig", base=NO_HEAD_DIM),
    _further("Cohere", "CohereConfig", base=NO_HEAD_DIM),
    _further("Cohere 2 MoE", "Cohere2MoeConfig", MOE, ALTERNATE),
    _further("CTRL", "CTRLConfig", dff=48, base=GPT_2),
    _further("CWM", "CwmConfig", ALTERNATE),
    _further("DBRX", "DbrxConfig", base=DBRX),
    _further("DeepSeek V2", "DeepseekV2Config", LATENT, ROUTED, base=NO_HEAD_DIM),
    _further("DeepSeek V3, R1, Kimi K2", "DeepseekV3Config", LATENT, ROUTED, base=NO_HEAD_DIM),
    _further("dots.llm1", "Dots1Config", ROUTED),
    _further("ERNIE 4.5", "Ernie4_5Config"),
    _further("ERNIE 4.5 MoE", "Ernie4_5_MoeConfig", moe_num_experts=4, moe_k=2, moe_intermediate_size=16,
             base=NO_HEAD_DIM),
    _further("EXAONE MoE", "ExaoneMoeConfig", MOE, ALTERNATE, base=NO_HEAD_DIM),
    _further("FlexOlmo", "FlexOlmoConfig", MOE, base=NO_HEAD_DIM),
    _further("Gemma", "GemmaConfig"),
    _further("Gemma 4 unified", "Gemma4UnifiedTextConfig", ALTERNATE, global_head_dim=16),
    _further("Fuyu", "FuyuConfig"),
    _further("GLM 4 (9B)", "GlmConfig"),
    _further("GLM 4-0414, Z1", "Glm4Config"),
    _further("GLM 4.5, 4.6, 4.7", "Glm4MoeConfig", ROUTED),
    _further("GLM 4.7 Flash", "Glm4MoeLiteConfig", LATENT, ROUTED, base=NO_HEAD_DIM),
    _further("GPT-2", "GPT2Config", base=GPT_2),
    _further("GPT-BigCode, StarCoder", "GPTBigCodeConfig", base=GPT_2),
    _further("GPT-NeoX, Pythia", "GPTNeoXConfig", base=NO_HEAD_DIM),
    _further("Granite", "GraniteConfig", base=NO_HEAD_DIM),
    _further("Granite with windows", "GraniteSWAConfig", SLIDING, base=NO_HEAD_DIM),
    _further("Granite MoE", "GraniteMoeConfig", LOCAL, base=NO_HEAD_DIM),
    _further("Granite MoE shared", "GraniteMoeSharedConfig", LOCAL, shared_intermediate_size=16, base=NO_HEAD_DIM),
    _further("Granite MoE with windows", "GraniteMoeSWAConfig", LOCAL, SLIDING, base=NO_HEAD_DIM),
    _further("Helium", "HeliumConfig"),
    _further("Hunyuan dense", "HunYuanDenseV1Config", ALPHA),
    _further("Hunyuan MoE", "HunYuanMoEV1Config", ALPHA, num_experts=4, moe_topk=2),
    _further("Hunyuan 3", "HYV3Config", MOE),
    _further("HyperCLOVA X", "HyperCLOVAXConfig", base=NO_HEAD_DIM),
    _further("Jais 2", "Jais2Config"),
    _further("Laguna", "LagunaConfig", MOE, ALTERNATE),
    _further("LFM 2 MoE", "Lfm2MoeConfig", MOE, layer_types=["conv", "full_attention"], num_dense_layers=1,
             base=NO_HEAD_DIM),
    _further("LongCat Flash", "LongcatFlashConfig", LATENT, num_layers=2, ffn_hidden_size=48, expert_ffn_hidden_size=16,
             n_routed_experts=4, zero_expert_num=1, moe_topk=2, head_dim=16,
             base={k: v for k, v in NO_HEAD_DIM.items() if k not in ("num_hidden_layers", "intermediate_size")}),
    _further("Mellum 2", "MellumConfig", MOE, ALTERNATE),
    _further("MiMo V2 Flash", "MiMoV2FlashConfig", ROUTED, ALTERNATE),
    _further("MiniCPM 3", "MiniCPM3Config", LATENT, base=NO_HEAD_DIM),
    _further("MiniMax M2", "MiniMaxM2Config", LOCAL),
    _further("Ministral 3", "Ministral3Config", MINISTRAL_3),
    _further("ModernBERT decoder", "ModernBertDecoderConfig", MODERN, base=NO_HEAD_DIM),
    _further("NanoChat", "NanoChatConfig", base=NO_HEAD_DIM),
    _further("OLMo", "OlmoConfig", base=NO_HEAD_DIM),
    _further("OLMo 2", "Olmo2Config", base=NO_HEAD_DIM),
    _further("OLMoE", "OlmoeConfig", MOE, base=NO_HEAD_DIM),
    _further("OPT", "OPTConfig", word_embed_proj_dim=32, ffn_dim=48, base=NO_HEAD_DIM),
    _further("Persimmon", "PersimmonConfig"),
    _further("Phi 1, 2", "PhiConfig", base=NO_HEAD_DIM),
    _further("Phi-3.5 MoE", "PhimoeConfig", LOCAL, sliding_window=None),
    _further("Qwen 2 MoE", "Qwen2MoeConfig", MOE, shared_expert_intermediate_size=16, base=NO_HEAD_DIM),
    _further("Qwen 3.5 MoE", "Qwen3_5MoeTextConfig", LINEAR, MOE, shared_expert_intermediate_size=16),
    _further("Seed-OSS", "SeedOssConfig"),
    _further("Solar Open", "SolarOpenConfig", ROUTED),
    _further("Youtu", "YoutuConfig", LATENT, base=NO_HEAD_DIM),
]  # fmt: skip
