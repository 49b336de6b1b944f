"""Bitwise mode: the same bits whatever chunks, companions or trees a token came in; and not so without its parts."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoModelForCausalLM, LlamaConfig

from engines.errors import BatchInvarianceError
from engines.torch import attention
from engines.torch import runner as runner_module
from engines.torch.batch_invariant import check_environment, make_batch_invariant, settle_padding
from engines.torch.linear import pack_linear_layers
from engines.torch.padding import Padding, row_paddings
from engines.torch.runner import Row, Runner
from testing.patience import PATIENCE
from testing.tiny_models import Architecture, make_tiny_model
from tests.bitwise import smollm2_shaped

LENGTH = 140
# Widths that leave a tail after full vectors, so that scalar and vector code both take part.
HIDDEN = 56


def prepared_runner(folder: Path, dtype: torch.dtype = torch.float32, *, packed: bool = True) -> Runner:
    """As a worker has it, before padding is settled; without `packed` its products are torch's own."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    make_batch_invariant(model)
    runner = Runner(model, num_slots=4, slot_length=LENGTH + 20, batch_invariant=True)
    if packed:
        pack_linear_layers(model, lambda: runner.forward([Row(0, 0, [3, 4, 5])])[0])
    return runner


def invariant_runner(folder: Path, dtype: torch.dtype = torch.float32, *, packed: bool = True) -> Runner:
    runner = prepared_runner(folder, dtype, packed=packed)
    settle_padding(runner)
    return runner


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


@pytest.mark.usefixtures("bitwise")
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "opt", "gpt_neox"])
def test_bits_are_equal_in_random_rows(architecture: Architecture, tmp_path: Path) -> None:
    runner = invariant_runner(make_tiny_model(tmp_path, architecture, hidden=HIDDEN))
    assert not differs(runner)


@pytest.mark.usefixtures("bitwise")
def test_bits_are_equal_in_the_bundled_models_shapes(tmp_path: Path) -> None:
    runner = invariant_runner(smollm2_shaped(torch.float32, tmp_path))
    assert not differs(runner, tries=2, length=80)


def test_bits_are_equal_in_bfloat16_where_it_is_not_refused(tmp_path: Path) -> None:
    try:
        runner = invariant_runner(smollm2_shaped(torch.bfloat16, tmp_path), torch.bfloat16)
    except BatchInvarianceError as refusal:
        pytest.skip(f"this CPU: {refusal}")
    assert not differs(runner, tries=2, length=70)


def test_without_invariant_activations_bits_differ(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(make_tiny_model(tmp_path, hidden=HIDDEN))
    runner = Runner(model, num_slots=4, slot_length=LENGTH + 20, batch_invariant=True)
    assert differs(runner)
    settle_padding(runner)
    assert runner.padding != Padding(), "vectors have no tails where rows are padded"


def test_without_padded_key_lengths_bits_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "INVARIANT_BUCKET", 1)
    runner = prepared_runner(make_tiny_model(tmp_path, hidden=HIDDEN))
    assert differs(runner)
    with pytest.raises(BatchInvarianceError, match="does not hold here"):
        settle_padding(runner)


class Bent(nn.Module):
    """Gives other bits to all rows of a pass of some sizes, one bit for each."""

    is_bent: Callable[[int], bool]

    def forward(self, rows: Tensor) -> Tensor:
        count = rows.shape[-2]
        product: Tensor = super().forward(rows)  # type: ignore[misc]
        return product * (1 + count / 1000 if type(self).is_bent(count) else 1)


class BentEnd(nn.Module):
    """Gives other bits to the last row of an odd number of rows, as oneDNN does in bfloat16."""

    def forward(self, rows: Tensor) -> Tensor:
        end = torch.ones(rows.shape[-2], 1)
        end[-1] = 1 + rows.shape[-2] % 2 / 1000
        product: Tensor = super().forward(rows)  # type: ignore[misc]
        return product * end


class BentPlace(nn.Module):
    """Gives other bits to every fourth row, whatever is beside it."""

    def forward(self, rows: Tensor) -> Tensor:
        product: Tensor = super().forward(rows)  # type: ignore[misc]
        return product * (1 + (torch.arange(rows.shape[-2])[:, None] % 4 == 0) / 1000)


def bent_runner(folder: Path, kind: type[nn.Module]) -> Runner:
    """`kind` stands before the layer's own class, whichever that is here."""
    runner = prepared_runner(make_tiny_model(folder, hidden=HIDDEN))
    layer = runner.model.model.layers[0].mlp.down_proj
    layer.__class__ = type(kind.__name__, (kind, type(layer)), {})
    return runner


@pytest.mark.usefixtures("bitwise")
@pytest.mark.parametrize(
    ("is_bent", "found"),
    [
        (lambda count: count < 4, Padding(least=4)),
        (lambda count: count < 7, Padding(least=8)),
        (lambda count: count % 2 == 1, Padding(least=2, multiple=2)),
        (lambda count: count % 4 > 0, Padding(least=4, multiple=4)),
        (lambda count: count % 4 > 0 or count < 8, Padding(least=8, multiple=8)),
        (lambda count: count < 12 or 40 < count < 48, Padding(least=16, multiple=16)),
    ],
)
def test_the_least_padding_is_found(is_bent: Callable[[int], bool], found: Padding, tmp_path: Path) -> None:
    """At least so many rows where that is enough, multiples only where it is not."""
    plain = prepared_runner(make_tiny_model(tmp_path / "plain", hidden=HIDDEN))
    settle_padding(plain)
    if plain.padding.least > 1:
        pytest.skip(f"this processor's own products need {plain.padding}")
    runner = bent_runner(tmp_path / "bent", type("Bent", (Bent,), {"is_bent": staticmethod(is_bent)}))
    assert differs(runner)
    settle_padding(runner)
    assert (runner.padding.least, runner.padding.multiple) == (found.least, found.multiple)
    assert not differs(runner)


@pytest.mark.usefixtures("bitwise")
def test_an_odd_last_row_is_covered_by_pairs(tmp_path: Path) -> None:
    runner = bent_runner(tmp_path, BentEnd)
    settle_padding(runner)
    assert runner.padding.multiple % 2 == 0
    assert not differs(runner)


def test_bits_that_depend_on_a_rows_place_are_refused(tmp_path: Path) -> None:
    """Though passes of multiples of four begin alike."""
    runner = bent_runner(tmp_path, BentPlace)
    with pytest.raises(BatchInvarianceError, match=r"down_proj .* gives other bits for .* whatever is padded"):
        settle_padding(runner)


@pytest.mark.parametrize(("at", "chunk"), [(256, 16), (256, 400), (448, 448)])
def test_layers_are_tried_with_as_many_rows_as_a_prefill_has(at: int, chunk: int, tmp_path: Path) -> None:
    bent = type("Bent", (Bent,), {"is_bent": staticmethod(lambda count: count == at)})
    with pytest.raises(BatchInvarianceError, match="down_proj"):
        settle_padding(bent_runner(tmp_path, bent), prefill_chunk_tokens=chunk)


def test_no_more_rows_are_tried_than_a_prefill_has(tmp_path: Path) -> None:
    bent = type("Bent", (Bent,), {"is_bent": staticmethod(lambda count: count > 256)})
    runner = bent_runner(tmp_path, bent)
    settle_padding(runner, prefill_chunk_tokens=256)


@pytest.mark.usefixtures("bitwise")
def test_attention_is_padded_where_its_own_products_need_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def bent(queries: Tensor, *rest: Tensor, **options: object) -> Tensor:
        attended = scaled_dot_product_attention(queries, *rest, **options)  # type: ignore[arg-type]
        return attended * (1 + queries.shape[2] % 8 / 1000)

    runner = invariant_runner(make_tiny_model(tmp_path, hidden=HIDDEN))
    assert runner.padding.attention < 8
    monkeypatch.setattr(attention, "scaled_dot_product_attention", bent)
    assert differs(runner)
    settle_padding(runner)
    assert runner.padding.attention == 8
    assert not differs(runner)


def test_experts_are_refused_where_rows_are_padded(tmp_path: Path) -> None:
    bent = type("Bent", (Bent,), {"is_bent": staticmethod(lambda count: count < 4)})
    runner = bent_runner(tmp_path, bent)
    runner.model.config.num_local_experts = 8
    with pytest.raises(BatchInvarianceError, match="padding does not help experts"):
        settle_padding(runner)


def test_paddings_are_tried_from_the_least_and_hold_the_sizes_of_a_threads_share() -> None:
    tried = list(row_paddings(threads=3))
    assert tried[:4] == [Padding(), Padding(least=2), Padding(least=2, multiple=2), Padding(least=3)]
    assert Padding(least=12, multiple=12) in tried
    assert [padding.least for padding in tried] == sorted(padding.least for padding in tried)
    assert [Padding(least=8, multiple=4).rows(count) for count in (0, 1, 8, 9, 12)] == [8, 8, 8, 12, 12]


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="MKL's kernels")  # type: ignore[no-untyped-call]
@pytest.mark.parametrize("kernels", ["SSE4_2", "COMPATIBLE"])
def test_bits_are_equal_with_the_kernels_of_other_processors(kernels: str, tmp_path: Path) -> None:
    """In a process of its own: MKL reads the variable once. Measured on an Intel Xeon: SSE4_2 needs passes of at least
    8 rows, COMPATIBLE multiples of 4 or more."""
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from tests.engines.torch.test_batch_invariant import differs, invariant_runner\n"
        "runner = invariant_runner(Path(sys.argv[1]), packed=False)\n"
        "print(runner.padding)\n"
        "sys.exit(differs(runner, tries=2, length=70))\n"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "MKL_CBWR": f"{kernels},STRICT"}
    command = [sys.executable, "-c", script, str(smollm2_shaped(torch.float32, tmp_path))]
    run = subprocess.run(command, env=environment, timeout=PATIENCE, check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="MKL's kernels")  # type: ignore[no-untyped-call]
def test_without_mkl_reproducibility_bits_differ(tmp_path: Path) -> None:
    """In a process of its own: MKL reads the variable once."""
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from engines.errors import BatchInvarianceError\n"
        "from tests.engines.torch.test_batch_invariant import invariant_runner\n"
        "try:\n"
        "    print(invariant_runner(Path(sys.argv[1]), packed=False).padding)\n"
        "except BatchInvarianceError as refusal:\n"
        "    print(refusal)\n"
    )
    folder = smollm2_shaped(torch.float32, tmp_path)
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "MKL_CBWR": ""}
    command = [sys.executable, "-c", script, str(folder)]
    run = subprocess.run(command, env=environment, timeout=PATIENCE, check=True, capture_output=True, text=True)
    assert run.stdout.strip() != str(Padding())


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
