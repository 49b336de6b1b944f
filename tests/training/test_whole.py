"""Trained drafts as whole models: transformers and llama.cpp compute what the torch engine does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from engines.models import ModelFiles, resolve_model
from engines.torch.draft_weights import load_draft
from tandem.train import run_export_draft
from testing.tiny_models import make_tiny_model
from tests.engines.llama_cpp.tiny_gguf import as_gguf, require_llama_cpp
from training.errors import TrainingError
from training.export import write_draft
from training.run import load_target
from training.student import default_layers, make_student, trained_state
from training.whole import GGUF, export_draft

IDS = [3, 40, 7, 150, 9, 88, 21, 5, 60, 33]


def say_nothing(message: str) -> None:
    pass


def make_draft(target: str, folder: Path) -> Path:
    """An untrained draft of two layers with random weights, its head cut to every other id."""
    model, _, _ = load_target(resolve_model(target), "cpu")
    kept = torch.arange(0, model.config.vocab_size, 2)
    layers = default_layers(2, model.config.num_hidden_layers)
    student = make_student(model, layers, kept)
    write_draft(
        folder,
        weights=trained_state(student),
        kept=kept,
        config=student.config,
        target=target,
        embeddings=model.get_input_embeddings().weight,
        layers=layers,
    )
    return folder


def logits_of(files: ModelFiles) -> Tensor:
    draft = load_draft(files, torch.float32, torch.device("cpu"), exact_rows=True, whole_head=True)
    return logits(draft)


def logits(model: object) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(torch.tensor([IDS])).logits[0].float()  # type: ignore[operator]
    return found


def distance(found: Tensor, wanted: Tensor) -> float:
    """Root mean square of the difference, as a share of the logits' own spread."""
    return float((found - wanted).square().mean().sqrt() / wanted.std())


@pytest.fixture(scope="module")
def gguf_draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a target that is a GGUF file."""
    folder = tmp_path_factory.mktemp("whole")
    tiny = make_tiny_model(folder / "tiny", layers=3, spread=3.0, hidden=64)
    return make_draft(str(as_gguf(tiny, folder / "tiny.gguf", "F32")), folder / "draft")


def test_the_folder_is_a_model_of_its_own(target: Path, tmp_path: Path) -> None:
    draft = make_draft(str(target), tmp_path / "draft")
    out = export_draft(str(draft), tmp_path / "whole", False, say_nothing)
    whole = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    wanted = logits_of(resolve_model(str(draft)))
    assert distance(logits(whole), wanted) < 0.02  # what bfloat16 rounds
    assert AutoTokenizer.from_pretrained(out).get_vocab() == AutoTokenizer.from_pretrained(target).get_vocab()
    assert whole.config.use_cache


def test_the_gguf_is_the_same_model(gguf_draft: Path, tmp_path: Path) -> None:
    file = export_draft(str(gguf_draft), tmp_path / "whole", True, say_nothing)
    assert file == tmp_path / "whole" / GGUF
    read = AutoModelForCausalLM.from_pretrained(resolve_model(str(file)).folder)
    wanted = logits_of(resolve_model(str(gguf_draft)))
    assert distance(logits(read), wanted) < 0.05  # what Q8_0 rounds; heads that are not turned: about 1


def test_llama_cpp_reads_the_gguf_so_too(gguf_draft: Path, tmp_path: Path) -> None:
    require_llama_cpp()
    from testing.plain_llama_cpp import PlainLlamaCpp

    file = export_draft(str(gguf_draft), tmp_path / "whole", True, say_nothing)
    wanted = logits_of(resolve_model(str(gguf_draft))).argmax(dim=-1).tolist()
    plain = PlainLlamaCpp(file, 64, 1)
    try:
        assert [plain.read(IDS[: i + 1])[0] for i in range(len(IDS))] == wanted
    finally:
        plain.close()


def test_what_can_not_be_exported(target: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="whole already"):
        export_draft(str(target), tmp_path / "out", False, say_nothing)
    draft = make_draft(str(target), tmp_path / "draft")
    with pytest.raises(TrainingError, match="no GGUF file to take the tokenizer from"):
        export_draft(str(draft), tmp_path / "out", True, say_nothing)
    assert not (tmp_path / "out").exists()


def test_a_folder_with_something_in_it_is_left_alone_unless_told(gguf_draft: Path, tmp_path: Path) -> None:
    out = tmp_path / "whole"
    out.mkdir()
    export_draft(str(gguf_draft), out, False, say_nothing)  # empty: as good as none
    (out / "config.json").write_text("mine")
    with pytest.raises(TrainingError, match="not empty: name another folder, or say --overwrite"):
        export_draft(str(gguf_draft), out, False, say_nothing)
    assert (out / "config.json").read_text() == "mine"
    assert run_export_draft(str(gguf_draft), out, False, overwrite=False) == 1
    assert run_export_draft(str(gguf_draft), out, False, overwrite=True) == 0
    assert (out / "config.json").read_text() != "mine"
    with pytest.raises(TrainingError, match="is a file"):
        export_draft(str(gguf_draft), out / "config.json", False, say_nothing, overwrite=True)
