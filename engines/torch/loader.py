"""Loading a model from its folder onto a device, ready for a runner."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import torch
import transformers
from safetensors import SafetensorError

from engines.errors import ModelError
from engines.fingerprint import fingerprint
from engines.lent import lent
from engines.model_building import MODEL_BUILDING
from engines.models import ModelFiles, weight_files
from engines.runtime.rows import Row
from engines.torch.batch_invariant import check_environment, make_batch_invariant, settle_padding
from engines.torch.draft_weights import load_draft
from engines.torch.lent_model import shares_with
from engines.torch.linear import pack_linear_layers, packed_head_bytes
from engines.torch.memory import cache_shape, check_fits, slots_within, state_bytes, weight_bytes
from engines.torch.quantization import check_quantization
from engines.torch.runner import Runner
from engines.torch.support import check_supported, context_length

Dtype = Literal["auto", "float32", "bfloat16", "float16"]

# Tensors of a file that the model has no place for, and that say nothing which its configuration does not say:
_RECOMPUTED = re.compile(
    r"rotary_emb\.inv_freq$"  # rotary frequencies, computed from the configuration (early Llama and GPT-NeoX files)
    r"|rotary_emb\.(cos|sin)_cached$"  # their cosines and sines
    r"|(^|\.)(attn|attention)\.(bias|masked_bias)$"  # the causal mask and its −10⁴ (early GPT-2 and GPT-NeoX files)
    r"|(^|\.)embeddings?\.position_ids$"  # 0, 1, 2, …
)


def load_runner(
    files: ModelFiles,
    *,
    num_slots: int | None = None,
    kv_memory_bytes: int = 2**30,
    slot_length: int | None = None,
    device: str = "auto",
    dtype: Dtype = "auto",
    batch_invariant: bool = False,
    prefill_chunk_tokens: int = 256,
    allow_pickle_weights: bool = False,
) -> Runner:
    """Load a model and allocate its key-value memory.

    The number of slots is given, or (None) follows from `kv_memory_bytes`, the memory for keys and values.
    `slot_length` None: the model's context length. `device` auto: CUDA where there is one. `dtype` auto: bfloat16 on
    CUDA, float32 on CPU. With `batch_invariant` the runner's bits are checked before it is returned, for passes that
    read up to `prefill_chunk_tokens` of prompts too.

    Raises:
        ModelError: for what the engine can't serve (BatchInvarianceError where only the mode does not hold), what
            does not fit into memory (with the sums), and what transformers can't load.
    """
    place = pick_device(device)
    kind = pick_dtype(dtype, place)
    try:
        config = transformers.AutoConfig.from_pretrained(files.folder, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ModelError(f"{files.id}: its config.json could not be read: {error}") from error
    length = slot_length or context_length(config)
    given = lent(files.folder)
    if batch_invariant:
        check_environment(place, kind, config)
    try:
        check_supported(config, length)
        if files.parts is None:  # a trained draft has its scales beside its weights
            check_quantization(files.folder, config)
        shape = cache_shape(config)
        states = state_bytes(config, kind)
        slots = slots_within(kv_memory_bytes, shape, length, kind, states) if num_slots is None else num_slots
        # What is in memory already takes no more of it.
        weights = 0 if given is not None else weight_bytes(files.folder, kind) + packed_head_bytes(config, kind, place)
        check_fits(weights, shape, slots, length, kind, place, states)
    except (ModelError, SafetensorError) as error:
        raise ModelError(f"{files.id}: {error}") from error
    if given is not None:
        try:
            model = shares_with(given, kind, place)
        except ModelError as error:
            raise ModelError(f"{files.id}: {error}") from error
    elif files.parts is not None:
        model = load_draft(files, kind, place, exact_rows=batch_invariant)
    else:
        model = _load(files, kind, place, allow_pickle_weights)
    if batch_invariant:
        make_batch_invariant(model)
    try:
        runner = Runner(model, slots, length, batch_invariant=batch_invariant)
    except ModelError as error:
        raise type(error)(f"{files.id}: {error}") from error
    except Exception as error:  # whatever code of this model does not expect attention over slots
        kind = config.get_text_config().model_type
        raise ModelError(f"{files.id}: {kind} can't be run with Tandem's attention: {error}") from error
    if given is None or batch_invariant:  # packing copies what is shared; the mode's bits are those of packed weights
        pack_linear_layers(model, lambda: runner.forward([Row(0, 0, list(range(min(5, length))))])[0])
    if batch_invariant:
        settle_padding(runner, prefill_chunk_tokens)
    return runner


def pick_device(name: str) -> torch.device:
    """Raises ModelError for a device that this machine does not have."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ModelError(f"device {name!r}: not a device that torch knows") from error
    if device.type not in ("cpu", "cuda"):
        raise ModelError(f"device {name!r}: the torch engine runs on cpu and cuda")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ModelError(f"device {name!r}: this machine has {torch.cuda.device_count()} CUDA devices")
    return device


def pick_dtype(name: Dtype, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    kind: torch.dtype = getattr(torch, name)
    return kind


def runner_fingerprint(files: ModelFiles, runner: Runner) -> str:
    """`GET /v1/model`'s fingerprint for this runner: of weights, dtype, engine, and all that its bits depend on."""
    device = runner.device
    numerics = f"{torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}"
    if device.type == "cuda":
        numerics = ""
    return fingerprint(
        files.folder,
        engine=f"torch-{torch.__version__} transformers-{transformers.__version__}",
        dtype=str(runner.dtype),
        device="cpu" if device.type == "cpu" else torch.cuda.get_device_name(device),
        numerics=f"{numerics} batch_invariant={runner.batch_invariant} padding={runner.padding}",
    )


def _load(files: ModelFiles, dtype: torch.dtype, device: torch.device, allow_pickle_weights: bool) -> Any:
    if (files.folder / "adapter_config.json").exists():
        raise ModelError(f"{files.id}: {files.folder} holds an adapter (adapter_config.json); merge it into the model")
    if not weight_files(files.folder, allow_pickle_weights):
        raise ModelError(f"{files.id}: {files.folder} has no weights that may be loaded")
    transformers.utils.logging.disable_progress_bar()
    try:
        with MODEL_BUILDING:
            model, report = transformers.AutoModelForCausalLM.from_pretrained(
                files.folder,
                dtype=dtype,
                device_map={"": device},
                trust_remote_code=False,
                use_safetensors=None if allow_pickle_weights else True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # check_report names the tensor; the library would not
            )
    except (OSError, ValueError, ImportError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"{files.id}: could not be loaded: {error}") from error
    try:
        check_report(report)
    except ModelError as error:
        raise ModelError(f"{files.id}: {error}") from error
    return model


def check_report(report: Mapping[str, Any]) -> None:
    """Check transformers' report on loading (`output_loading_info`): every weight filled, every tensor used.

    Raises:
        ModelError: naming a tensor. transformers itself makes do with a warning: it would leave a missing one random,
            and drop what it has no place for.
    """
    missing = sorted(report["missing_keys"])
    if missing:
        raise ModelError(f"{len(missing)} tensors are missing from its weights, {missing[0]} among them")
    if report["mismatched_keys"]:
        name, stored, expected = sorted(report["mismatched_keys"])[0]
        raise ModelError(f"tensor {name} has shape {list(stored)}, where its configuration says {list(expected)}")
    unused = sorted(name for name in report["unexpected_keys"] if not _RECOMPUTED.search(name))
    if unused:
        raise ModelError(
            f"{len(unused)} tensors of its weights have no place in the model, {unused[0]} among them; "
            "without them its answers would be wrong"
        )
    if report.get("error_msgs"):
        raise ModelError(f"its weights could not be loaded: {report['error_msgs'][0]}")
