"""Tiny models of transformers' families, and sequences driven through a runner as the loop drives them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedConfig

from engines.runtime.slots import Slot, SlotCache
from engines.torch.batch_invariant import check_environment, make_batch_invariant, settle_padding
from engines.torch.linear import pack_linear_layers
from engines.torch.runner import Row, Runner
from engines.torch.support import check_supported

WINDOW = 16
BASE: dict[str, Any] = {
    "vocab_size": 100, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256, "pad_token_id": None, "bos_token_id": 0,
    "eos_token_id": None, "tie_word_embeddings": False,
}  # fmt: skip
NO_HEAD_DIM = {name: value for name, value in BASE.items() if name != "head_dim"}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
SLIDING: dict[str, Any] = {"sliding_window": WINDOW}
ALTERNATE: dict[str, Any] = {**SLIDING, "layer_types": ["sliding_attention", "full_attention"]}
GEMMA: dict[str, Any] = {"query_pre_attn_scalar": 8}
CAPPED: dict[str, Any] = {**GEMMA, **SLIDING, "attn_logit_softcapping": 2.0}
GPT_OSS: dict[str, Any] = {
    **ALTERNATE, "num_local_experts": 4, "num_experts_per_tok": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}  # fmt: skip
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 57,
    "short_factor": [1.0, 1.5, 2.0, 4.0], "long_factor": [2.0, 3.0, 4.0, 8.0],
}  # fmt: skip
PHI_LONG: dict[str, Any] = {"rope_parameters": LONGROPE, "original_max_position_embeddings": 57}
LINEAR: dict[str, Any] = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4, "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
MAMBA: dict[str, Any] = {
    "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_d_conv": 4, "mamba_expand": 2,
    "mamba_n_groups": 1, "mamba_chunk_size": 16,
}  # fmt: skip
GRANITE_4: dict[str, Any] = {
    **MAMBA, "layer_types": ["mamba", "attention"], "num_local_experts": 4, "num_experts_per_tok": 2,
    "shared_intermediate_size": 16,
}  # fmt: skip
JAMBA: dict[str, Any] = {
    "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "num_experts": 2, "mamba_d_state": 8,
}  # fmt: skip
MAMBA_2: dict[str, Any] = {"num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 1, "chunk_size": 16}
NEMOTRON_H: dict[str, Any] = {
    "mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 8, "n_groups": 1, "chunk_size": 16,
}  # fmt: skip
SHARED: dict[str, Any] = {
    **SLIDING, "num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 100,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Family:
    """`config` names a class of transformers; `options` go beyond BASE. `slow`: not in CI.

    `cached` False: transformers is to generate without its cache, which keeps keys of the frequencies before.
    """

    name: str
    config: str
    options: dict[str, Any] = field(default_factory=dict)
    base: dict[str, Any] = field(default_factory=lambda: BASE)
    slow: bool = False
    cached: bool = True

    def make_config(self) -> PreTrainedConfig:
        made: PreTrainedConfig = getattr(transformers, self.config)(**{**self.base, **self.options})
        return made

    def make_model(self) -> Any:
        """As transformers runs it."""
        return make_model(self.make_config())

    def make_runner(self, num_slots: int, slot_length: int, *, batch_invariant: bool = False, spare: int = 8) -> Runner:
        """As a worker has it, once it has been loaded; but windowed layers hold few keys beyond their windows."""
        config = self.make_config()
        check_supported(config, slot_length)
        model = self.make_model()
        if batch_invariant:
            check_environment(torch.device("cpu"), torch.float32, config)
            make_batch_invariant(model)
        runner = Runner(model, num_slots, slot_length, batch_invariant=batch_invariant, spare=spare)
        pack_linear_layers(model, lambda: runner.forward([Row(0, 0, list(range(5)))])[0])
        if batch_invariant:
            settle_padding(runner, 64)
        return runner


FAMILIES = [
    Family("Llama 2, 3", "LlamaConfig"),
    Family("Qwen 2, 2.5", "Qwen2Config", base=NO_HEAD_DIM, slow=True),
    Family("Qwen 3", "Qwen3Config", slow=True),
    Family("Mistral", "MistralConfig", SLIDING),
    Family("Ministral", "MinistralConfig", ALTERNATE, slow=True),
    Family("Mixtral", "MixtralConfig", {**SLIDING, "num_local_experts": 4}, slow=True),
    Family("Gemma 2", "Gemma2Config", CAPPED),
    Family("Gemma 3", "Gemma3TextConfig", {**GEMMA, **ALTERNATE}),
    Family("VaultGemma", "VaultGemmaConfig", CAPPED, slow=True),
    Family("Cohere 2", "Cohere2Config", ALTERNATE, base=NO_HEAD_DIM, slow=True),
    Family("OLMo 3", "Olmo3Config", ALTERNATE, base=NO_HEAD_DIM, slow=True),
    Family("gpt-oss", "GptOssConfig", GPT_OSS),
    Family("Gemma 4", "Gemma4TextConfig", {**SHARED, "global_head_dim": 16}),
    Family("Gemma 3n", "Gemma3nTextConfig", {**SHARED, "laurel_rank": 4, "intermediate_size": 48}, slow=True),
    Family("Qwen 3.5", "Qwen3_5TextConfig", LINEAR),
    Family("Qwen 3 Next", "Qwen3NextConfig", {**LINEAR, **MOE, "shared_expert_intermediate_size": 16}, slow=True),
    Family("Granite 4 hybrid", "GraniteMoeHybridConfig", GRANITE_4, base=NO_HEAD_DIM),
    Family("Falcon-H1", "FalconH1Config", {**MAMBA, "mamba_d_ssm": 64}, slow=True),
    Family("LFM 2", "Lfm2Config", {"layer_types": ["conv", "full_attention"]}, base=NO_HEAD_DIM),
    Family("Jamba", "JambaConfig", JAMBA, base=NO_HEAD_DIM),
    Family("Bamba", "BambaConfig", {**MAMBA, "attn_layer_indices": [1]}, base=NO_HEAD_DIM, slow=True),
    Family("Mamba 2", "Mamba2Config", MAMBA_2),
    Family("Mamba", "MambaConfig", {"state_size": 8}, slow=True),
    Family("Falcon-Mamba", "FalconMambaConfig", {"state_size": 8}, slow=True),
    Family("Nemotron-H", "NemotronHConfig", {**NEMOTRON_H, "layer_types": ["mamba", "attention"]}, slow=True),
    Family("Starcoder 2", "Starcoder2Config", SLIDING, base=NO_HEAD_DIM, slow=True),
    Family("Phi-3", "Phi3Config", SLIDING, base=NO_HEAD_DIM, slow=True),
    Family("Phi-3 long", "Phi3Config", PHI_LONG, base=NO_HEAD_DIM, cached=False),
    Family("EXAONE 4", "Exaone4Config", ALTERNATE, base=NO_HEAD_DIM, slow=True),
    Family("SmolLM 3", "SmolLM3Config", base=NO_HEAD_DIM, slow=True),
    Family("Qwen 3 MoE", "Qwen3MoeConfig", MOE, slow=True),
]  # fmt: skip


def make_model(config: PreTrainedConfig, seed: int = 0) -> Any:
    """With weights that make its text neither constant nor a lottery."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "sinks" in name:
                parameter.normal_()
            elif parameter.dim() > 1 and "norm" not in name and "conv" not in name and "A_log" not in name:
                parameter.normal_().mul_(1.0 if "embed" in name else 1.5 / math.sqrt(parameter.shape[-1]))
        head = model.get_output_embeddings().weight
        if head is not model.get_input_embeddings().weight:
            head.mul_(2.0 / model(torch.randint(3, 100, (1, 32))).logits.std())
    return model


def tokens(count: int, seed: int) -> list[int]:
    return torch.randint(3, 100, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def greedy(model: Any, prompt: list[int], count: int, *, cached: bool = True) -> list[int]:
    """transformers' own text: the prompt and `count` tokens."""
    context = torch.tensor([prompt])
    # Without a mask it would take tokens that equal its padding for padding.
    mask = torch.ones_like(context)
    options = {"max_new_tokens": count, "do_sample": False, "use_cache": cached}
    ids: list[int] = model.generate(context, attention_mask=mask, **options)[0].tolist()
    assert len(ids) == len(prompt) + count
    return ids


@dataclass
class Stream:
    """One sequence, decoded greedily in rounds: `hint` is what its drafts are taken from."""

    ids: list[int]
    hint: list[int]
    owner: int
    slot: Slot | None = None


class Rounds:
    """Verifies drafts for several streams in common passes, with slots handed out as for a worker."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.slots = SlotCache(runner.num_slots, runner.copy, hold_seconds=0.0)

    def read(self, stream: Stream, chunk: int) -> None:
        """All but the last token of its context, in chunks."""
        slot = self._slot(stream)
        while len(slot.ids) < len(stream.ids) - 1:
            part = stream.ids[len(slot.ids) : min(len(slot.ids) + chunk, len(stream.ids) - 1)]
            self.runner.forward([Row(slot.index, len(slot.ids), part, logits_from=len(part))])
            slot.ids.extend(part)
        self.slots.release(slot)

    def round(self, streams: Sequence[Stream], draft_tokens: int) -> None:
        """Feed each stream's tail and a draft of its hint, keep what is right and one token more."""
        rows, drafts, held = [], [], []
        for stream in streams:
            slot = self._slot(stream)
            draft = stream.hint[len(stream.ids) : len(stream.ids) + draft_tokens]
            tail = stream.ids[len(slot.ids) :]
            rows.append(Row(slot.index, len(slot.ids), [*tail, *draft], logits_from=len(tail) - 1))
            drafts.append(draft)
            held.append(slot)
        for stream, row, draft, slot, logits in zip(
            streams, rows, drafts, held, self.runner.forward(rows), strict=True
        ):
            slot.ids.extend(row.token_ids)
            drawn = logits.argmax(-1).tolist()
            right = next((i for i, token in enumerate(draft) if token != drawn[i]), len(draft))
            stream.ids.extend(drawn[: right + 1])
            self.slots.release(slot)

    def _slot(self, stream: Stream) -> Slot:
        slot = self.slots.acquire(stream.ids, None, stream.owner, len(stream.ids) - 1)
        assert slot is not None
        return slot
