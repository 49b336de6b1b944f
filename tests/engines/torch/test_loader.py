"""Loading: what is served, what is refused by name, and the environment that must come first."""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedConfig

from config.workers import TargetWorkerConfig
from engines.errors import BatchInvarianceError, ModelError
from engines.models import ModelFiles
from engines.torch import environment, memory
from engines.torch.attention import UnsupportedAttention
from engines.torch.batch_invariant import check_environment
from engines.torch.configuration import read_config
from engines.torch.elsewhere import GGUF_ARCHITECTURES
from engines.torch.environment import prepare_environment
from engines.torch.loader import load_runner, pick_device, runner_fingerprint
from engines.torch.recurrent import SNAPSHOTS
from engines.torch.runner import Row, Runner
from engines.torch.start import load_engine
from engines.torch.support import changing_length, check_supported, context_length
from target_worker.engine import capabilities
from target_worker.strategies import STRATEGIES
from testing.tiny_models import make_tiny_model
from tests.engines.torch.families import FAMILIES

SMALL: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "pad_token_id": None,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


MLA: dict[str, Any] = {
    **{name: value for name, value in SMALL.items() if name != "head_dim"},
    "kv_lora_rank": 16, "q_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 4, "v_head_dim": 12,
}  # fmt: skip
LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "original_max_position_embeddings": 64,
    "short_factor": [1.0, 1.5, 2.0, 4.0],
    "long_factor": [2.0, 3.0, 4.0, 8.0],
}


@pytest.fixture
def files(tmp_path: Path) -> ModelFiles:
    return ModelFiles("tiny", make_tiny_model(tmp_path / "tiny", layers=1))


@pytest.mark.usefixtures("bitwise")
def test_load_and_fingerprint(files: ModelFiles) -> None:
    runner = load_runner(files, num_slots=2, device="cpu")
    assert (runner.num_slots, runner.slot_length, runner.vocab_size) == (2, 512, 384)
    assert (runner.device.type, runner.dtype) == ("cpu", torch.float32)
    invariant = load_runner(files, num_slots=2, slot_length=100, device="cpu", batch_invariant=True)
    assert runner_fingerprint(files, invariant) != runner_fingerprint(files, runner)
    half = load_runner(files, num_slots=1, slot_length=64, device="cpu", dtype="bfloat16")
    assert half.forward([Row(0, 0, [5, 6])])[0].dtype == torch.float32
    assert runner_fingerprint(files, half) != runner_fingerprint(files, runner)


def test_what_does_not_fit_is_refused_with_the_sums(files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 2**16)
    with pytest.raises(ModelError, match=r"tiny: does not fit .*8 sessions × 512 tokens × 128 B.* free"):
        load_runner(files, num_slots=8, device="cpu")


def test_models_are_loaded_one_at_a_time(files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads inside would leave the second's `tie_weights` without effect for the rest of the process."""
    load, inside, most = AutoModelForCausalLM.from_pretrained, [0], [0]

    def counted(*args: Any, **keywords: Any) -> Any:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.1)
        try:
            return load(*args, **keywords)
        finally:
            inside[0] -= 1

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", counted)
    with ThreadPoolExecutor(2) as pool:
        for loaded in [pool.submit(load_runner, files) for _ in range(2)]:
            loaded.result(60)
    assert most[0] == 1


def test_slots_follow_from_a_memory_budget(files: ModelFiles) -> None:
    runner = load_runner(files, kv_memory_bytes=3 * 64 * 128 + 100, slot_length=64, device="cpu")
    assert runner.num_slots == 3
    assert runner.cache.keys.nbytes + runner.cache.values.nbytes == 3 * 64 * 128
    with pytest.raises(ModelError, match=r"tiny: .* hold no keys and values of 64 tokens"):
        load_runner(files, kv_memory_bytes=1000, slot_length=64, device="cpu")


def test_wrong_devices_and_modes(files: ModelFiles) -> None:
    for name in ("quantum", "meta", "cuda:99"):
        with pytest.raises(ModelError, match=name):
            pick_device(name)
    with pytest.raises(BatchInvarianceError, match="float16"):
        load_runner(files, num_slots=1, device="cpu", dtype="float16", batch_invariant=True)


def test_broken_folders(files: ModelFiles) -> None:
    weights = files.folder / "model.safetensors"
    tensors = load_file(weights)
    del tensors["lm_head.weight"]
    save_file(tensors, weights, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"tiny: 1 tensors are missing .* lm_head.weight"):
        load_runner(files, num_slots=1, device="cpu")
    weights.write_bytes(weights.read_bytes()[:5000])
    with pytest.raises(ModelError, match="tiny"):
        load_runner(files, num_slots=1, device="cpu")
    (files.folder / "config.json").write_text('{"model_type": "no-such-thing"}')
    with pytest.raises(ModelError, match=r"config.json"):
        load_runner(files, num_slots=1, device="cpu")


VLLM = "choose engine vllm$"
GGUF = "choose engine vllm, or engine llama_cpp with a GGUF file of it$"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (transformers.BloomConfig(), f"bloom uses alibi .*{GGUF}"),
        (transformers.FalconConfig(alibi=True), f"falcon uses alibi .*{GGUF}"),
        (transformers.FalconConfig(), f"falcon does not let its attention be replaced.*{GGUF}"),
        (transformers.T5Config(), "t5 is an encoder-decoder model; .* on any engine: choose one of those$"),
        (transformers.WhisperConfig(), "whisper is an encoder-decoder model"),
        (transformers.OlmoHybridConfig(), f"linear_attention.*{VLLM}"),
        (transformers.KimiLinearConfig(), f"linear_attention.*{GGUF}"),
        (transformers.DeepseekV32Config(), rf"other than full attention \(indexed_attention\).*{VLLM}"),
        (transformers.DeepseekV4Config(), f"compressed_sparse_attention.*{VLLM}"),
        (transformers.GlmMoeDsaConfig(), f"indexed_attention.*{GGUF}"),
        (transformers.HYV4Config(), f"indexed_attention.*{VLLM}"),
        (transformers.Qwen4ExpTextConfig(), f"indexed_attention.*{VLLM}"),
        (transformers.Llama4TextConfig(), f"chunked_attention.*{GGUF}"),
        (transformers.Zamba2Config(), f"hybrid.*{VLLM}"),
        (transformers.ZayaConfig(), f"hybrid.*{VLLM}"),
        (transformers.MiniMaxConfig(), f"linear_attention.*{VLLM}"),
        (
            transformers.MiniMaxM3VLTextConfig(num_hidden_layers=1, layer_types=["minimax_m3_sparse"]),
            f"minimax_m3_sparse.*{VLLM}",
        ),
        (transformers.DiffLlamaConfig(), f"two attentions in every layer.*{VLLM}"),
        (transformers.JetMoeConfig(), f"jetmoe routes.*{VLLM}"),
        (transformers.RobertaConfig(is_decoder=True), f"roberta counts positions from beyond.*{VLLM}"),
        (transformers.XmodConfig(is_decoder=True), f"xmod counts positions from beyond.*{VLLM}"),
        (
            transformers.LlamaConfig(rope_parameters={"rope_type": "default", "rope_theta": 1e4, "curl": 3.0}),
            f"'curl' in its rotary parameters.*{VLLM}",
        ),
        (transformers.GPTJConfig(), f"does not let its attention be replaced.*{GGUF}"),
        (transformers.StableLmConfig(), f"does not let its attention be replaced.*{GGUF}"),
        (transformers.RwkvConfig(), f"does not let its attention be replaced.*{VLLM}"),
        (transformers.ViTConfig(), "not a causal language model.*engine vllm"),
        (transformers.LlamaConfig(max_position_embeddings=64), "exceeds the model's 64"),
    ],
    ids=lambda value: getattr(value, "model_type", ""),
)
def test_unsupported_models_are_refused_by_name(config: PreTrainedConfig, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        check_supported(config, 128)


def test_every_type_for_llama_cpp_is_one_of_both_libraries() -> None:
    assert {*GGUF_ARCHITECTURES.values()} <= {*gguf.MODEL_ARCH_NAMES.values()}
    of_parts = {
        part.model_type
        for config in transformers.CONFIG_MAPPING.values()
        for part in (config.sub_configs or {}).values()
        if hasattr(part, "model_type")
    }
    assert {*GGUF_ARCHITECTURES} <= {*transformers.CONFIG_MAPPING.keys(), *of_parts}


def test_configurations_that_transformers_does_not_know_or_cannot_read(files: ModelFiles) -> None:
    path = files.folder / "config.json"
    described = json.loads(path.read_text())
    for change, message in (
        ({"model_type": "llama9"}, "the model type 'llama9', which transformers .* choose engine vllm"),
        ({"num_hidden_layers": "two"}, "config.json could not be read: .*num_hidden_layers"),
        ({"num_hidden_layers": -1}, "config.json says num_hidden_layers -1, which is not a positive number"),
        ({"model_type": 7}, "config.json could not be read"),
    ):
        path.write_text(json.dumps({**described, **change}))
        with pytest.raises(ModelError, match=f"tiny: .*{message}"):
            read_config(files)
    for text in ("", "[]", "no JSON", "null"):
        path.write_text(text)
        with pytest.raises(ModelError, match=r"tiny: its config.json could not be read"):
            read_config(files)


def test_a_file_of_weights_that_is_cut_short_is_named(files: ModelFiles) -> None:
    path = files.folder / "model.safetensors"
    whole = path.read_bytes()
    for size in (0, 6, 100, len(whole) - 40):
        path.write_bytes(whole[:size])
        with pytest.raises(ModelError, match=r"^tiny: model\.safetensors is cut short or damaged"):
            load_runner(files, num_slots=1, device="cpu")


def test_a_damaged_generation_config_is_refused_at_start(files: ModelFiles) -> None:
    """transformers takes it for none, and the ends that stand in it alone would be lost."""
    (files.folder / "generation_config.json").write_text('{"eos_token_id": ')
    config = TargetWorkerConfig(model=str(files.folder), device="cpu")
    with pytest.raises(ModelError, match=r"its generation_config\.json could not be read"):
        load_engine(
            config, "target", capabilities(config, list(STRATEGIES)), lambda *_: None, lambda _: None, lambda _: None
        )


@pytest.mark.parametrize("verbosity", ["warning", "error"])
def test_experts_that_do_not_fit_are_named(tmp_path: Path, verbosity: str, request: pytest.FixtureRequest) -> None:
    """Even where transformers is to log errors alone."""
    request.addfinalizer(partial(transformers.logging.set_verbosity, transformers.logging.get_verbosity()))
    transformers.logging.set_verbosity(transformers.logging.log_levels[verbosity])
    options = {**SMALL, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    AutoModelForCausalLM.from_config(transformers.Qwen3MoeConfig(**options)).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    name = "model.layers.1.mlp.experts.2.up_proj.weight"
    save_file({**tensors, name: tensors[name][:8].contiguous()}, path, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"tiny: tensor model.layers.1.mlp.experts.gate_up_proj can't be made of"):
        load_runner(ModelFiles("tiny", tmp_path), num_slots=1, device="cpu")
    assert transformers.logging.get_verbosity() == transformers.logging.log_levels[verbosity]


def test_context_length_goes_beyond_a_sliding_window() -> None:
    assert context_length(transformers.MistralConfig(sliding_window=None, max_position_embeddings=99)) == 99
    assert context_length(transformers.MistralConfig(sliding_window=64, max_position_embeddings=99)) == 99
    assert context_length(transformers.Qwen2Config(sliding_window=64, use_sliding_window=False)) == 32768


@pytest.mark.parametrize(
    "config",
    [
        transformers.MistralConfig(**SMALL, sliding_window=64),
        transformers.LlamaConfig(**SMALL, rope_parameters=LONGROPE),
        transformers.GemmaConfig(**SMALL),
        transformers.Qwen3MoeConfig(**SMALL, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16),
        transformers.Olmo2Config(**{key: value for key, value in SMALL.items() if key != "head_dim"}),
        transformers.GPT2Config(vocab_size=100, n_embd=32, n_layer=2, n_head=4, n_positions=128),
    ],
    ids=lambda config: config.model_type,
)
def test_further_architectures_equal_transformers(config: PreTrainedConfig) -> None:
    check_supported(config, 64)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    ids = torch.randint(2, 100, (1, 40), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        reference = model(ids).logits[0]
    runner = Runner(model, 2, 64)
    first = runner.forward([Row(1, 0, ids[0, :25].tolist())])[0]
    rest = runner.forward([Row(0, 0, [3, 4, 5]), Row(1, 25, ids[0, 25:].tolist())])[1]
    torch.testing.assert_close(torch.cat([first, rest]), reference, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (transformers.PhimoeConfig(**{**SMALL, "sliding_window": 32, "num_local_experts": 2}), "has a window of None"),
        (transformers.BertConfig(**{key: value for key, value in SMALL.items() if key != "head_dim"}), "not causal"),
    ],
    ids=lambda value: getattr(value, "model_type", ""),
)
def test_the_runner_itself_notices_what_attention_is_asked_for(config: PreTrainedConfig, message: str) -> None:
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with pytest.raises(UnsupportedAttention, match=message):
        Runner(model, 1, 64)


def test_unknown_rotary_types_are_refused() -> None:
    config = transformers.LlamaConfig()
    config.rope_parameters = {"rope_type": "spiral", "rope_theta": 1e4}
    with pytest.raises(ModelError, match="llama uses spiral rotary scaling"):
        check_supported(config, 128)


def test_code_of_a_models_own_is_not_taken_for_another(files: ModelFiles) -> None:
    check_supported(transformers.LlamaConfig(architectures=["LLaMAForCausalLM"]), 128)
    with pytest.raises(ModelError, match="names CurlyLlamaForCausalLM, which transformers does not have"):
        check_supported(transformers.LlamaConfig(architectures=["CurlyLlamaForCausalLM"]), 128)


def test_longrope_changes_its_frequencies_at_a_length() -> None:
    config = transformers.LlamaConfig(**SMALL, rope_parameters=LONGROPE)
    assert (context_length(config), changing_length(config)) == (128, 64)
    same = {**LONGROPE, "long_factor": LONGROPE["short_factor"]}
    assert changing_length(transformers.LlamaConfig(**SMALL, rope_parameters=same)) is None


@pytest.mark.parametrize(
    "config",
    [
        transformers.LlamaConfig(**SMALL),
        transformers.GPT2Config(vocab_size=100, n_embd=32, n_layer=2, n_head=4, n_positions=128),
        transformers.MiniCPM3Config(**MLA),
        transformers.DeepseekV3Config(**MLA, n_routed_experts=4, n_group=1, topk_group=1),
        transformers.Glm4MoeLiteConfig(**MLA, n_routed_experts=4, n_group=1, topk_group=1),
    ],
    ids=lambda config: config.model_type,
)
def test_memory_is_counted_as_it_is_taken(config: PreTrainedConfig) -> None:
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    assert memory.cache_shape(config, 64) == Runner(model, 1, 64).cache.shape
    assert memory.state_bytes(config, torch.float32) == 0


@pytest.mark.parametrize("name", ["Gemma 4", "Qwen 3.5", "Granite 4 hybrid", "LFM 2", "Mamba 2"])
def test_memory_of_states_is_counted_as_it_is_taken(name: str) -> None:
    config = next(family for family in FAMILIES if family.name == name).make_config()
    runner = Runner(AutoModelForCausalLM.from_config(config, dtype=torch.float32), 1, 200)
    assert memory.cache_shape(config, 200) == runner.cache.shape
    for start in range(0, 200, 20):
        runner.forward([Row(0, start, [5] * 20)])
    taken = memory.state_bytes(config, torch.float32)
    kept = 0 if runner.takes_trees else SNAPSHOTS + 1
    assert runner.state_bytes() == taken * kept // (SNAPSHOTS + 2)


@pytest.mark.usefixtures("bitwise")
def test_bitwise_mode_is_refused_where_states_recur() -> None:
    with pytest.raises(BatchInvarianceError, match="recurrent layers"):
        check_environment(torch.device("cpu"), torch.float32, transformers.Mamba2Config())


def test_code_that_does_not_expect_slots_ends_in_a_sentence(files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Runner) -> None:
        raise RuntimeError("The size of tensor a (2) must match …")

    monkeypatch.setattr(Runner, "_probe", fail)
    with pytest.raises(ModelError, match="tiny: llama can't be run with Tandem's attention: RuntimeError: The size"):
        load_runner(files, num_slots=1, device="cpu")


def test_configurations_that_code_of_transformers_stumbles_over_end_in_a_sentence(files: ModelFiles) -> None:
    """Not in a traceback: here a drafter of Gemma 4's, whose configuration says nothing of layers."""
    transformers.Gemma4AssistantConfig().save_pretrained(files.folder)
    with pytest.raises(ModelError, match=r"tiny: gemma4_assistant can't be examined: AttributeError: .*engine vllm"):
        load_runner(files, num_slots=1, device="cpu")


def test_a_window_that_hides_a_token_from_itself_is_refused() -> None:
    with pytest.raises(ModelError, match="a window of 0 tokens"):
        check_supported(transformers.MistralConfig(**SMALL, sliding_window=0), 64)


def test_a_second_attention_in_a_layer_is_noticed() -> None:
    model = AutoModelForCausalLM.from_config(transformers.DiffLlamaConfig(**SMALL), dtype=torch.float32)
    with pytest.raises(UnsupportedAttention, match="layer 0 attends more than once"):
        Runner(model, 1, 64)


def test_tensors_without_a_place_are_refused_but_for_what_is_computed_anyway(files: ModelFiles) -> None:
    path = files.folder / "model.safetensors"
    tensors = load_file(path)
    known = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    save_file({**tensors, **known}, path, metadata={"format": "pt"})
    load_runner(files, num_slots=1, device="cpu")
    for name in ("model.layers.0.self_attn.q_norm.weight", "model.layers.1.mlp.up_proj.weight", "score.bias"):
        save_file({**tensors, name: torch.ones(4)}, path, metadata={"format": "pt"})
        with pytest.raises(ModelError, match=rf"tiny: 1 tensors of its weights have no place in the model, {name}"):
            load_runner(files, num_slots=1, device="cpu")
    save_file({**tensors, "lm_head.weight": torch.ones(384, 16)}, path, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"tiny: tensor lm_head.weight has shape \[384, 16\], where .* \[384, 32\]"):
        load_runner(files, num_slots=1, device="cpu")


def test_adapters_are_not_left_out(files: ModelFiles) -> None:
    (files.folder / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match="holds an adapter"):
        load_runner(files, num_slots=1, device="cpu")


def test_environment_is_set_before_torch_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="before torch"):
        prepare_environment()
    monkeypatch.delitem(sys.modules, "torch")
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS", "MKL_CBWR"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    prepare_environment(threads=3)
    assert os.environ["OMP_NUM_THREADS"] == "3"
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
    assert os.environ["GOMP_SPINCOUNT"] == "300"
    prepare_environment(spins=700)
    assert os.environ["GOMP_SPINCOUNT"] == "300", "what is set stays"
    assert "MKL_CBWR" not in os.environ
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    monkeypatch.setattr(environment, "has_avx512", lambda: False)
    prepare_environment(batch_invariant=True)
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"
    assert os.environ["MKL_CBWR"] == "AVX2,STRICT"
    with pytest.raises(ValueError, match="threads"):
        prepare_environment(threads=0)
