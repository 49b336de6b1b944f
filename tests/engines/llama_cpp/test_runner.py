"""The runner's contract (engines/runtime/runner.py), to the bit: chains, chunks, trees, copies, whatever came first."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engines.errors import BatchInvarianceError
from engines.llama_cpp.context import Context, LoadedGguf, Options
from engines.llama_cpp.exact import self_check
from engines.llama_cpp.library import library
from engines.llama_cpp.loading import TILED_PRODUCTS, exact_options
from engines.llama_cpp.runner import Runner
from engines.runtime.engine import measure_step_seconds
from engines.runtime.rows import Row
from testing.patience import PATIENCE
from testing.tiny_models import make_tiny_model
from tests.engines.llama_cpp.tiny_gguf import K_QUANTS, as_gguf, tiny_gguf

SLOTS, LENGTH = 4, 900


def tokens(count: int, seed: int = 0) -> list[int]:
    return torch.randint(384, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


Load = Callable[..., Runner]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("gguf"), context_length=1024)


@pytest.fixture
def load(file: Path) -> Iterator[Load]:
    held: list[Context | LoadedGguf] = []

    def make(options: Options | None = None, path: Path = file, ordered: bool = True) -> Runner:
        options = options or exact_options(Options(threads=2, cells=SLOTS * LENGTH + 400, pass_tokens=300))
        model = LoadedGguf(library(), path, options)
        held.append(model)
        context = Context(model, options)
        held.append(context)
        return Runner(context, SLOTS, LENGTH, ordered=ordered)

    yield make
    for one in reversed(held):
        one.close()


@pytest.fixture
def runner(load: Load) -> Runner:
    return load()


def one_by_one(runner: Runner, context: list[int], tail: list[int], slot: int = 3) -> Tensor:
    runner.forward([Row(slot, 0, context, logits_from=len(context))])
    at = enumerate(tail, len(context))
    return torch.cat([runner.forward([Row(slot, start, [token])])[0].clone() for start, token in at])


def test_logits_are_those_of_transformers(load: Load, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = make_tiny_model(tmp_path / "model", hidden=64)
    whole = Options(threads=2, cells=4000, pass_tokens=300, type_k="f32", type_v="f32")
    runner = load(whole, path=as_gguf(folder, tmp_path / "f32.gguf", "F32"))
    ids = tokens(40)
    with torch.inference_mode():
        expected = AutoModelForCausalLM.from_pretrained(folder)(torch.tensor([ids])).logits[0]
    (found,) = runner.forward([Row(0, 0, ids)])
    assert found.dtype == torch.float32
    assert (found - expected).abs().max() < 0.01 * expected.std()


@pytest.mark.parametrize("context", [40, 600])  # from 512 on llama.cpp would split keys over threads
def test_the_same_bits_in_any_pass(runner: Runner, context: int) -> None:
    before, tail = tokens(context), tokens(100, seed=1)
    reference = one_by_one(runner, before, tail)
    for count in (2, 3, 4, 5, 6, 8, 12, 16, 31, 64, 65, 100):
        (found,) = runner.forward([Row(3, context, tail[:count])])
        assert torch.equal(found, reference[:count]), count
    for start in range(0, context, 37):
        part = before[start : start + 37]
        runner.forward([Row(1, start, part, logits_from=len(part)), Row(0, 0, tokens(90, seed=start))])
    rows = [Row(0, 90, tokens(70, seed=2)), Row(1, context, tail), Row(2, 0, [5])]
    assert torch.equal(runner.forward(rows)[1], reference)


K_QUANTS_SCRIPT = """
import sys
from pathlib import Path
from engines.errors import BatchInvarianceError
from engines.llama_cpp.context import Context, LoadedGguf, Options
from engines.llama_cpp.exact import self_check
from engines.llama_cpp.loading import exact_options
from engines.llama_cpp.library import library
from engines.llama_cpp.runner import Runner
plain = Options(threads=1, cells=4000, pass_tokens=300)
options = exact_options(plain)
self_check(Runner(Context(LoadedGguf(library(), Path(sys.argv[1]), options), options), 4, 900, ordered=True), 256)
options = exact_options(plain, repacked=True)
model = LoadedGguf(library(), Path(sys.argv[1]), options)
context = Context(model, options)
self_check(Runner(context, 4, 900, ordered=True, reads_apart=model.repacked), 256)
if model.repacked:
    try:
        self_check(Runner(context, 4, 900, ordered=True), 256)
    except BatchInvarianceError:
        print("seen")
else:
    print("not repacked here")
"""


@pytest.mark.parametrize("kind", K_QUANTS)
def test_the_same_bits_in_k_quants(kind: str, tmp_path: Path) -> None:
    """As they are and repacked, in a process of its own, since llama.cpp reads once whether products are made in tiles.
    With "1" the trial fails where a processor has tiles (seen with AVX-512)."""
    file = tiny_gguf(tmp_path, kind, hidden=256, layers=4, spread=1.0, context_length=1024)
    run = subprocess.run(
        [sys.executable, "-c", K_QUANTS_SCRIPT, str(file)],
        env={**os.environ, TILED_PRODUCTS: "0"},
        timeout=PATIENCE,
        check=False,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() in ("seen", "not repacked here"), "prompts that are not read apart must fail the trial"


def test_tree_equals_its_branches_and_commit_keeps_one(runner: Runner) -> None:
    a, b, c, d, e, f, g = tokens(7, seed=4)
    context, after = tokens(61), tokens(5, seed=8)
    parents = [-1, 0, 1, 0, 3, -1, 5]
    for nodes, ids in {(0, 1, 2): [a, b, c], (0, 3, 4): [a, d, e], (5, 6): [f, g]}.items():
        reference = one_by_one(runner, context, [*ids, *after])
        beside = one_by_one(runner, tokens(20), after)
        runner.forward([Row(0, 0, context, logits_from=61), Row(1, 0, tokens(20), logits_from=20)])
        tree, chain = runner.forward([Row(0, 61, [a, b, c, d, e, f, g], parents), Row(1, 20, after)])
        assert torch.equal(tree[list(nodes)], reference[: len(ids)])
        assert torch.equal(chain, beside)
        runner.commit(0, 61, nodes)
        assert torch.equal(runner.forward([Row(0, 61 + len(nodes), after)])[0], reference[len(ids) :])


def test_a_tree_that_is_not_committed_leaves_nothing(runner: Runner) -> None:
    context, after = tokens(30), tokens(9, seed=3)
    reference = one_by_one(runner, context, after)
    runner.forward([Row(0, 0, context, logits_from=30)])
    for _ in range(3):
        runner.forward([Row(0, 30, [1, 2, 3, 4], parents=[-1, 0, -1, 2])])
    assert torch.equal(runner.forward([Row(0, 30, after)])[0], reference)
    with pytest.raises(ValueError, match="no tree"):
        runner.commit(0, 30, [0])


def test_copies_share_and_part(runner: Runner) -> None:
    ids, other = tokens(40), tokens(12, seed=5)
    reference, another = one_by_one(runner, ids[:25], ids[25:]), one_by_one(runner, ids[:25], other)
    runner.forward([Row(0, 0, ids, logits_from=40), Row(2, 0, tokens(50, seed=6))])
    runner.copy(0, 2, 25)
    assert torch.equal(runner.forward([Row(2, 25, other)])[0], another)
    runner.forward([Row(0, 0, tokens(3, seed=7))])  # the source is gone, the copy is not
    runner.copy(2, 2, 25)
    assert torch.equal(runner.forward([Row(2, 25, ids[25:])])[0], reference)
    with pytest.raises(ValueError, match="holds 3 tokens"):
        runner.copy(0, 1, 4)


def test_bits_do_not_depend_on_what_was_rejected_evicted_and_moved(runner: Runner) -> None:
    """Long enough that cells run out again and again: the order of cells must hold through all of it."""
    draw = random.Random(9)
    texts = [tokens(220, seed=100 + slot) for slot in range(3)]
    references = [one_by_one(runner, text[:1], text[1:]) for text in texts]
    at = [0, 0, 0]
    for _ in range(260):
        rows, expected = [], []
        for slot in draw.sample(range(3), draw.randint(1, 3)):
            if at[slot] >= 180:
                at[slot] = draw.choice([0, 1, 60])
            right = draw.randint(1, 9)
            good = texts[slot][at[slot] : at[slot] + right]
            rows.append(Row(slot, at[slot], [*good, *tokens(draw.randint(0, 12), seed=draw.randint(0, 99))]))
            at[slot] += right
            expected.append((slot, at[slot] - right, right))
        for (slot, start, right), logits in zip(expected, runner.forward(rows), strict=True):
            first = max(start, 1)
            assert torch.equal(logits[first - start : right], references[slot][first - 1 : start + right - 1])
        runner.forward([Row(3, 0, tokens(draw.randint(1, 40)))])
    assert runner.cells.compactions > 3


def rest(runner: Runner, *beside: Row) -> None:
    """All slots but 3 and those of `beside` are left alone for longer than they may be."""
    runner.forward([Row(3, 0, tokens(150), logits_from=150)])
    later = runner.cells._clock() + 2.0
    runner.cells._clock = lambda: later
    runner.forward([*beside, Row(3, 0, [5])])


@pytest.mark.parametrize("ordered", [True, False])
def test_slots_that_rest_are_parked_and_brought_back(load: Load, ordered: bool) -> None:
    runner = load(ordered=ordered)
    texts = [tokens(330, seed=20 + slot) for slot in range(3)]
    after = tokens(6, seed=30)
    references = [one_by_one(runner, text, after) for text in texts]
    runner.cells.forget_all()
    for slot, text in enumerate(texts):
        runner.forward([Row(slot, 0, text, logits_from=330)])
    rest(runner, Row(2, 330, after))
    assert set(runner.cells.parked) == {0, 1}
    runner.copy(0, 3, 330)
    rows = [Row(slot, 330, after) for slot in (1, 2, 3)]
    assert not runner.cells.parked & {0, 1, 2, 3} - {1}
    for slot, logits in zip((1, 2, 0), runner.forward(rows), strict=True):
        assert torch.equal(logits, references[slot]) or not ordered
        assert (logits - references[slot]).abs().max() < 1.0
    assert not runner.cells.parked
    assert torch.equal(runner.forward([Row(0, 330, after)])[0], references[0]) or not ordered


def test_parked_slots_can_be_cut_and_given_away(load: Load) -> None:
    runner = load()
    text, after = tokens(600, seed=21), tokens(6, seed=30)
    reference = one_by_one(runner, text[:100], after)
    runner.cells.forget_all()
    for slot in (0, 1):
        runner.forward([Row(slot, 0, text, logits_from=600)])
    rest(runner)
    assert set(runner.cells.parked) == {0}  # a quarter of all cells at most
    runner.forward([Row(0, 100, after[:1])])
    assert torch.equal(runner.forward([Row(0, 100, after)])[0], reference)
    rest(runner)
    assert len(runner.cells.parked) == 1
    (parked,) = runner.cells.parked
    assert runner.forward([Row(parked, 0, [7])])[0].shape == (1, 384)
    assert not runner.cells.parked


def test_cells_out_of_order_would_be_seen(load: Load) -> None:
    """The test above can fail: with cells freed at once it does."""
    with pytest.raises(AssertionError):
        test_bits_do_not_depend_on_what_was_rejected_evicted_and_moved(load(ordered=False))


def test_a_pass_larger_than_a_batch_is_cut(runner: Runner) -> None:
    ids = tokens(800)
    whole = runner.forward([Row(0, 0, ids, logits_from=700)])[0].clone()
    assert runner.context.pass_tokens < 800
    runner.forward([Row(1, 0, ids[:700], logits_from=700)])
    assert torch.equal(runner.forward([Row(1, 700, ids[700:])])[0], whole)


def test_what_can_not_be_exact_is_found(load: Load) -> None:
    split = Options(threads=2, cells=4096, pass_tokens=300, extra_buffers=False, flash_attention="on", type_v="f16")
    with pytest.raises(BatchInvarianceError, match="other bits"):
        self_check(load(split), 256)
    with pytest.raises(BatchInvarianceError, match="flash_attn"):
        exact_options(Options(threads=1, cells=9, pass_tokens=9, flash_attention="off"))


def test_what_is_exact_passes(runner: Runner) -> None:
    self_check(runner, 256)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (Row(4, 0, [1]), "slot 4"),
        (Row(0, -1, [1]), "negative"),
        (Row(0, 899, [1, 2]), "exceed"),
        (Row(0, 0, [384]), "outside"),
        (Row(0, 0, [1, 2], logits_from=3), "logits_from"),
        (Row(0, 0, [1, 2], parents=[1, -1]), "parent"),
        (Row(0, 5, [1]), "holds 0 tokens"),
    ],
)
def test_wrong_rows_are_refused(runner: Runner, row: Row, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        runner.forward([row])


def test_rows_without_tokens(runner: Runner) -> None:
    empty, one = runner.forward([Row(0, 0, []), Row(1, 0, [5])])
    assert empty.shape == (0, 384)
    assert one.shape == (1, 384)
    assert [logits.shape[0] for logits in runner.forward([Row(0, 0, [])])] == [0]


def test_a_failed_pass_leaves_slots_as_they_were(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    context, after = tokens(30), tokens(9, seed=3)
    reference = one_by_one(runner, context, after)
    runner.forward([Row(0, 0, context, logits_from=30)])
    real = runner._api.llama_decode

    class Failing:
        def __getattr__(self, name: str) -> object:
            return getattr(library().api, name)

        def llama_decode(self, *arguments: object) -> int:
            real(*arguments)
            return 2

    monkeypatch.setattr(runner, "_api", Failing())
    for parents in (None, [-1, 0, -1]):
        with pytest.raises(RuntimeError, match="llama_decode returned 2"):
            runner.forward([Row(0, 30, [1, 2, 3], parents=parents)])
    monkeypatch.undo()
    assert torch.equal(runner.forward([Row(0, 30, after)])[0], reference)


def test_step_seconds_are_measured(runner: Runner) -> None:
    assert list(measure_step_seconds(runner, repeats=1)) == [1, 2, 4, 8, 16, 32]
