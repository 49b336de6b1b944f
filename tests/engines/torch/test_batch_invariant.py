"""Bitwise mode: the same bits whatever chunks, companions or trees a token came in; and not so without its parts."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig

from engines.errors import BatchInvarianceError
from engines.torch import runner as runner_module
from engines.torch.batch_invariant import check_environment, make_batch_invariant, self_check
from engines.torch.runner import Row, Runner
from testing.tiny_models import Architecture, make_tiny_model

LENGTH = 140
# Widths that leave a tail after full vectors, so that scalar and vector code both take part.
HIDDEN = 40


def invariant_runner(folder: Path, dtype: torch.dtype = torch.float32) -> Runner:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    make_batch_invariant(model)
    return Runner(model, num_slots=4, slot_length=LENGTH + 20, batch_invariant=True)


def random_ids(count: int, generator: random.Random) -> list[int]:
    return [generator.randrange(3, 380) for _ in range(count)]


def one_at_a_time(runner: Runner, ids: list[int]) -> Tensor:
    return torch.cat([runner.forward([Row(0, at, [token])])[0] for at, token in enumerate(ids)])


def random_tree(path: list[int], generator: random.Random) -> tuple[list[int], list[int], list[int]]:
    """Ids and parents of a tree that holds `path`, and where in it the path's nodes are."""
    ids: list[int] = []
    parents: list[int] = []
    nodes: list[int] = []
    for token in path:
        for _ in range(generator.randrange(3)):
            ids.append(generator.randrange(3, 380))
            parents.append(generator.randrange(-1, len(ids) - 1))
        ids.append(token)
        parents.append(nodes[-1] if nodes else -1)
        nodes.append(len(ids) - 1)
    return ids, parents, nodes


def in_random_rows(runner: Runner, ids: list[int], generator: random.Random) -> Tensor:
    """Logits of all of `ids`, computed in chunks and trees of random sizes among random companions."""
    logits = []
    lengths = [0, 0, 0, 0]
    slot = generator.randrange(4)
    at = 0
    while at < len(ids):
        count = min(generator.choice([1, 1, 2, 5, 9, 17, 70]), len(ids) - at)
        part = ids[at : at + count]
        as_tree = count <= 9 and generator.random() < 0.5
        nodes = list(range(count))
        if as_tree:
            tree_ids, parents, nodes = random_tree(part, generator)
            rows = [Row(slot, at, tree_ids, parents)]
        else:
            rows = [Row(slot, at, part)]
        for other in range(4):
            if other != slot and generator.random() < 0.6:
                extra = random_ids(generator.randrange(1, 12), generator)
                start = generator.randrange(lengths[other] + 1) if lengths[other] < LENGTH else 0
                rows.append(Row(other, start, extra))
                lengths[other] = start + len(extra)
        generator.shuffle(rows)
        index = next(i for i, row in enumerate(rows) if row.slot == slot)
        logits.append(runner.forward(rows)[index][nodes])
        if as_tree:
            runner.commit(slot, at, nodes)
        at += count
    return torch.cat(logits)


def differs(runner: Runner, tries: int = 6, length: int = LENGTH) -> bool:
    generator = random.Random(1)
    ids = random_ids(length, generator)
    reference = one_at_a_time(runner, ids)
    return any(not torch.equal(in_random_rows(runner, ids, generator), reference) for _ in range(tries))


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "opt", "gpt_neox"])
def test_bits_are_equal_in_random_rows(architecture: Architecture, tmp_path: Path) -> None:
    runner = invariant_runner(make_tiny_model(tmp_path, architecture, hidden=HIDDEN))
    assert not differs(runner)
    self_check(runner)


def smollm2_shaped(dtype: torch.dtype, folder: Path) -> Path:
    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=2,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=dtype).save_pretrained(folder)
    return folder


def test_bits_are_equal_in_the_bundled_models_shapes(tmp_path: Path) -> None:
    runner = invariant_runner(smollm2_shaped(torch.float32, tmp_path))
    assert not differs(runner, tries=2, length=80)


def test_bits_are_equal_in_bfloat16_where_it_is_not_refused(tmp_path: Path) -> None:
    runner = invariant_runner(smollm2_shaped(torch.bfloat16, tmp_path), torch.bfloat16)
    try:
        self_check(runner)
    except BatchInvarianceError as refusal:
        pytest.skip(f"this CPU: {refusal}")
    assert not differs(runner, tries=2, length=70)


def test_without_invariant_activations_bits_differ(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(make_tiny_model(tmp_path, hidden=HIDDEN))
    runner = Runner(model, num_slots=4, slot_length=LENGTH + 20, batch_invariant=True)
    assert differs(runner)
    with pytest.raises(BatchInvarianceError, match="does not hold here"):
        self_check(runner)


def test_without_padded_key_lengths_bits_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "INVARIANT_BUCKET", 1)
    runner = invariant_runner(make_tiny_model(tmp_path, hidden=HIDDEN))
    assert differs(runner)
    with pytest.raises(BatchInvarianceError, match="does not hold here"):
        self_check(runner)


class Bent(nn.Linear):
    """Gives other bits for one number of rows."""

    at = 0

    def forward(self, rows: Tensor) -> Tensor:
        return super().forward(rows) + (1e-3 if rows.shape[-2] == self.at else 0.0)


@pytest.mark.parametrize(
    ("at", "chunk", "refused"), [(256, 16, True), (256, 400, True), (300, 300, True), (300, 256, False)]
)
def test_layers_are_tried_with_as_many_rows_as_a_prefill_has(
    at: int, chunk: int, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = AutoModelForCausalLM.from_pretrained(make_tiny_model(tmp_path, hidden=HIDDEN))
    make_batch_invariant(model)
    runner = Runner(model, num_slots=1, slot_length=80, batch_invariant=True)
    monkeypatch.setattr(Bent, "at", at)
    model.model.layers[0].mlp.down_proj.__class__ = Bent
    with pytest.raises(BatchInvarianceError, match="down_proj") if refused else nullcontext():
        self_check(runner, prefill_chunk_tokens=chunk)


@pytest.mark.skipif(
    torch.cpu._is_avx512_bf16_supported() or not torch.cpu._is_avx512_supported(),
    reason="seen on AVX-512 CPUs without bfloat16 instructions",
)
def test_without_padded_rows_bfloat16_bits_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "_row_multiple", lambda dtype: 1)
    runner = invariant_runner(smollm2_shaped(torch.bfloat16, tmp_path), torch.bfloat16)
    with pytest.raises(BatchInvarianceError, match="gives other bits"):
        self_check(runner)


def test_without_mkl_reproducibility_bits_differ(tmp_path: Path) -> None:
    """In a process of its own: MKL reads the variable once."""
    script = (
        "import sys, torch\n"
        "from pathlib import Path\n"
        "from engines.errors import BatchInvarianceError\n"
        "from tests.engines.torch.test_batch_invariant import invariant_runner, self_check\n"
        "try:\n"
        "    self_check(invariant_runner(Path(sys.argv[1])))\n"
        "except BatchInvarianceError as refusal:\n"
        "    sys.exit(0 if 'gives other bits' in str(refusal) else 2)\n"
        "sys.exit(1)\n"
    )
    folder = smollm2_shaped(torch.float32, tmp_path)
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "MKL_CBWR": ""}
    run = subprocess.run([sys.executable, "-c", script, str(folder)], env=environment, timeout=120, check=False)
    assert run.returncode == 0


def test_refused_by_name_where_it_cannot_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    config = LlamaConfig()
    with pytest.raises(BatchInvarianceError, match="cuda"):
        check_environment(torch.device("cuda"), torch.bfloat16, config)
    with pytest.raises(BatchInvarianceError, match="float16"):
        check_environment(torch.device("cpu"), torch.float16, config)
    config.num_local_experts = 8
    with pytest.raises(BatchInvarianceError, match="experts"):
        check_environment(torch.device("cpu"), torch.bfloat16, config)
    monkeypatch.delenv("MKL_CBWR")
    with pytest.raises(BatchInvarianceError, match="MKL_CBWR"):
        check_environment(torch.device("cpu"), torch.float32, config)
