"""Loading a model from its folder onto a device, ready for a runner."""

from __future__ import annotations

import logging
from typing import Any, Literal

import torch
import transformers
from safetensors import SafetensorError

from engines.errors import ModelError
from engines.fingerprint import fingerprint
from engines.lent import lent
from engines.model_building import build_model
from engines.models import ModelFiles, weight_files
from engines.runtime.rows import Row
from engines.torch.batch_invariant import check_environment, make_batch_invariant, settle_padding
from engines.torch.configuration import read_config
from engines.torch.draft_weights import load_draft
from engines.torch.elsewhere import instead
from engines.torch.lent_model import shares_with
from engines.torch.linear import library_of, pack_linear_layers, packed_head_bytes
from engines.torch.load_report import UnfitTensors, check_report
from engines.torch.memory import cache_shape, check_fits, slots_within, state_bytes, stored_tensors, weight_bytes
from engines.torch.quantization import check_quantization, dequantised
from engines.torch.runner import INVARIANT_BUCKET, Runner
from engines.torch.short_passes import ShortPasses, runs_short
from engines.torch.support import check_supported, context_length
from engines.torch.wrappers import LeftOut, left_out, loading_class

logger = logging.getLogger(__name__)

Dtype = Literal["auto", "float32", "bfloat16", "float16"]


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
    apart: int = 0,
) -> Runner:
    """Load a model and allocate its key-value memory.

    The number of slots is given, or (None) follows from `kv_memory_bytes`, the memory for keys and values.
    `slot_length` None: the model's context length. `device` auto: CUDA where there is one. `dtype` auto: bfloat16 on
    CUDA, float32 on CPU. With `batch_invariant` the runner's bits are checked before it is returned, for passes that
    read up to `prefill_chunk_tokens` of prompts too. `apart`: places beside those of the slots (kv_cache.py).

    Raises:
        ModelError: for what the engine can't serve (BatchInvarianceError where only the mode does not hold), what
            does not fit into memory (with the sums), and what transformers can't load.
    """
    place = pick_device(device)
    kind = pick_dtype(dtype, place)
    config = read_config(files)
    length = slot_length or context_length(config)
    given = lent(files.folder)
    if batch_invariant:
        check_environment(place, kind, config)
    try:
        check_supported(config, length)
        if files.parts is None:  # a trained draft has its scales beside its weights
            check_quantization(files.folder, config)
        shape = cache_shape(config, length, INVARIANT_BUCKET if batch_invariant else 1)
        states = state_bytes(config, kind)
        slots = slots_within(kv_memory_bytes, shape, length, kind, states) if num_slots is None else num_slots
        beside = left_out(config)
        weights = 0  # what is in memory already takes no more of it
        if given is None:
            weights = weight_bytes(files.folder, kind, beside) + packed_head_bytes(config, kind, place)
        check_fits(weights, shape, slots, length, kind, place, states, apart)
    except (ModelError, SafetensorError) as error:
        raise ModelError(f"{files.id}: {error}") from error
    except Exception as error:  # whatever transformers' code of this model does not expect of its configuration
        raise _unexpected(files, config, "can't be examined", error) from error
    if given is not None:
        try:
            model = shares_with(given, kind, place)
        except ModelError as error:
            raise ModelError(f"{files.id}: {error}") from error
    elif files.parts is not None:
        model = load_draft(files, kind, place, exact_rows=batch_invariant)
    else:
        model = _load(files, config, kind, place, allow_pickle_weights)
        _say_what_is_left_out(files, beside)
    if batch_invariant:
        make_batch_invariant(model)
    try:
        runner = Runner(model, slots, length, batch_invariant=batch_invariant, apart=apart)
    except ModelError as error:
        raise type(error)(f"{files.id}: {error}; {instead(config.get_text_config().model_type)}") from error
    except Exception as error:  # whatever code of this model does not expect attention over slots
        raise _unexpected(files, config, "can't be run with Tandem's attention", error) from error
    if given is None or batch_invariant:  # packing copies what is shared; the mode's bits are those of packed weights
        pack_linear_layers(model, lambda: runner.forward([Row(0, 0, list(range(min(5, length))))])[0])
    if files.parts is not None and runner.takes_chains and runs_short(model):
        runner.short_passes = ShortPasses(model, runner.cache)
    if batch_invariant:
        settle_padding(runner, prefill_chunk_tokens)
    return runner


def _unexpected(files: ModelFiles, config: Any, what: str, error: Exception) -> ModelError:
    kind = config.get_text_config().model_type
    return ModelError(f"{files.id}: {kind} {what}: {type(error).__name__}: {error}; {instead(kind)}")


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
    products = library_of(runner.model) or "torch's own"
    return fingerprint(
        files.folder,
        engine=f"torch-{torch.__version__} transformers-{transformers.__version__}",
        dtype=str(runner.dtype),
        device="cpu" if device.type == "cpu" else torch.cuda.get_device_name(device),
        numerics=f"{numerics} products={products} batch_invariant={runner.batch_invariant} padding={runner.padding}",
    )


def _load(files: ModelFiles, config: Any, dtype: torch.dtype, device: torch.device, allow_pickle_weights: bool) -> Any:
    if (files.folder / "adapter_config.json").exists():
        raise ModelError(f"{files.id}: {files.folder} holds an adapter (adapter_config.json); merge it into the model")
    if not weight_files(files.folder, allow_pickle_weights):
        raise ModelError(f"{files.id}: {files.folder} has no weights that may be loaded")
    transformers.utils.logging.disable_progress_bar()
    options = dequantised(config)
    try:

        def load() -> Any:
            with UnfitTensors():  # under the lock, since it reads what the whole process logs
                return build_model(
                    loading_class(config).from_pretrained,
                    files.folder,
                    dtype=dtype,
                    device_map={"": device},
                    trust_remote_code=False,
                    use_safetensors=None if allow_pickle_weights else True,
                    output_loading_info=True,
                    ignore_mismatched_sizes=True,  # check_report names the tensor; the library would not
                    **options,
                )

        model, report = build_model(load)
    except ModelError as error:
        raise ModelError(f"{files.id}: {error}") from error
    except (OSError, ValueError, ImportError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"{files.id}: could not be loaded: {error}") from error
    if options:  # transformers dequantises to bfloat16 whatever it is asked for
        for parameter in model.parameters():
            if parameter.dtype == torch.bfloat16:
                parameter.data = parameter.data.to(dtype)
    try:
        check_report(report)
    except ModelError as error:
        raise ModelError(f"{files.id}: {error}") from error
    return model


def _say_what_is_left_out(files: ModelFiles, beside: LeftOut) -> None:
    if beside.parts:
        count = sum(beside(name) for name, _, _ in stored_tensors(files.folder))
        logger.info(
            "%s: %d tensors of %s are left out: it is served for text alone", files.id, count, ", ".join(beside.parts)
        )
