"""docs/models.md lists the families that test_families.py runs, and what those that are refused are told at start."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers
from transformers import PreTrainedConfig

from engines.errors import ModelError
from engines.torch.batch_invariant import has_experts
from engines.torch.support import changing_length, check_supported, recurrent_layers
from target_worker.strategies import STRATEGIES
from tests.engines.torch.families import FAMILIES, Family
from tests.engines.torch.further_families import FURTHER
from tests.engines.torch.wrapped import WRAPPERS, Wrapper

PAGE = Path(__file__).parents[3] / "docs" / "models.md"
COLUMNS = ["family", "type in transformers", "with", "strategies", "trees", "bitwise mode", "tested"]
HEAD = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"
REFUSED = {
    "Bloom": "BloomConfig", "MPT": "MptConfig", "Falcon": "FalconConfig", "GPT-J": "GPTJConfig",
    "GPT-Neo": "GPTNeoConfig", "StableLM": "StableLmConfig", "CodeGen": "CodeGenConfig", "RWKV": "RwkvConfig",
    "RoBERTa": "RobertaConfig",
    "OLMo hybrid": "OlmoHybridConfig", "Kimi Linear": "KimiLinearConfig", "Zamba": "ZambaConfig",
    "Zamba 2": "Zamba2Config", "ZAYA": "ZayaConfig", "MiniMax 01": "MiniMaxConfig",
    "DeepSeek V3.2": "DeepseekV32Config", "DeepSeek V4": "DeepseekV4Config", "GLM 5": "GlmMoeDsaConfig",
    "Hunyuan 4": "HYV4Config", "Qwen 4 experimental": "Qwen4ExpTextConfig", "Llama 4": "Llama4Config",
    "DiffLlama": "DiffLlamaConfig", "JetMoE": "JetMoeConfig", "T5": "T5Config", "PaliGemma": "PaliGemmaConfig",
    "Janus": "JanusConfig", "Chameleon": "ChameleonConfig", "Qwen 2 Audio": "Qwen2AudioConfig",
    "Qwen 2.5 Omni": "Qwen2_5OmniConfig", "Qwen 3 Omni": "Qwen3OmniMoeConfig", "Hunyuan VL": "HunYuanVLConfig",
    "DeepSeek OCR 2": "DeepseekOcr2Config", "Voxtral": "VoxtralConfig", "ERNIE 4.5 VL": "Ernie4_5_VLMoeConfig",
    "Granite Speech": "GraniteSpeechConfig", "BLIP 2": "Blip2Config", "Ovis 2": "Ovis2Config",
    "Perception LM": "PerceptionLMConfig", "Nemotron 4": "NemotronConfig", "Moshi": "MoshiConfig", "Doge": "DogeConfig",
    "HRM": "HrmTextConfig", "RecurrentGemma": "RecurrentGemmaConfig",
}  # fmt: skip
"""Families and their configurations in transformers."""


def row(family: Family | Wrapper) -> str:
    whole = family.make_config()
    config = whole.get_text_config()
    recurs = bool(recurrent_layers(config))
    beside = []
    if getattr(config, "sliding_window", None):
        beside.append("windows")
    if getattr(config, "attn_logit_softcapping", None):
        beside.append("capped scores")
    if config.model_type == "gpt_oss":
        beside.append("sinks")
    if changing_length(config) is not None:
        beside.append("longrope")
    if getattr(config, "kv_lora_rank", None):
        beside.append("latent attention")
    if has_experts(config):
        beside.append("experts")
    if recurs:
        beside.append("recurrent layers")
    strategies = "all" if len(STRATEGIES) == 4 else str(len(STRATEGIES))
    bitwise = "float32, unless rows need padding" if has_experts(config) else "✓"
    trees, bitwise = ("refused", "refused") if recurs else ("✓", bitwise)
    kinds = [whole.model_type] if whole is config else [whole.model_type, config.model_type]
    kind = ", ".join(f"`{kind}`" for kind in kinds)
    tested = "`-m slow`" if family.slow else "CI"
    return f"| {family.name} | {kind} | {', '.join(beside)} | {strategies} | {trees} | {bitwise} | {tested} |"


def table(families: list[Family] | list[Wrapper]) -> str:
    rows = [row(family) for family in sorted(families, key=lambda family: family.name.lower())]
    return "\n".join([HEAD, *rows, ""])


def refusals() -> str:
    rows = ["| family | type in transformers | what is said at start |", "|---|---|---|"]
    for family, name in sorted(REFUSED.items(), key=lambda item: item[0].lower()):
        config: PreTrainedConfig = getattr(transformers, name)()
        with pytest.raises(ModelError) as refusal:
            check_supported(config, 128)
        rows.append(f"| {family} | `{config.model_type}` | {refusal.value} |")
    return "\n".join([*rows, ""])


def test_the_page_has_the_families_that_are_tested() -> None:
    page = PAGE.read_text()
    for mark, expected in (
        ("<!-- families: served -->\n", table([*FAMILIES, *FURTHER])),
        ("<!-- families: wrappers -->\n", table(WRAPPERS)),
        ("<!-- families: refused -->\n", refusals()),
    ):
        assert page.partition(mark)[2].startswith(expected), expected
