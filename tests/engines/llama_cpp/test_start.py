"""Files that llama.cpp can't serve: one sentence that names the file."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from config.workers import TargetWorkerConfig
from engines.errors import BatchInvarianceError, ModelError
from engines.gguf import tokenizer as of_gguf
from engines.grammar import service
from engines.llama_cpp import files, library, loading, start
from engines.llama_cpp.start import load_engine
from engines.runtime.engine import LoopModel
from protocol.messages import Grammar
from target_worker.engine import capabilities
from target_worker.strategies import STRATEGIES
from testing.patience import PATIENCE
from testing.tiny_models import make_tiny_model
from tests.engines.llama_cpp.tiny_gguf import as_gguf, tiny_gguf


def load(model: Path | str, **settings: Any) -> LoopModel:
    config = TargetWorkerConfig(**{"engine": "llama_cpp", "model": str(model), "context_length": 64, **settings})
    able = capabilities(config, list(STRATEGIES))
    return load_engine(config, "target", able, lambda report: None, lambda reason: None, lambda message: None)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("gguf"))


def test_truncated_anywhere(file: Path, tmp_path: Path) -> None:
    data = file.read_bytes()
    for part in (3, 20, 500, len(data) // 2, len(data) - 1):
        short = tmp_path / "short.gguf"
        short.write_bytes(data[:part])
        with pytest.raises(ModelError, match=r"short\.gguf is (cut short|damaged|not a GGUF)"):
            load(short)


def test_threads_of_a_large_model_wait_awake_for_longer(file: Path, tmp_path: Path) -> None:
    large = tmp_path / "large.gguf"
    with large.open("wb") as stream:
        stream.truncate(2**30)
    small, bundled, big = (
        loading.spins(TargetWorkerConfig(model=str(model))) for model in (file, "SmolLM2-135M-Instruct", large)
    )
    assert small == bundled < big == loading.spins(TargetWorkerConfig(model=str(tmp_path)))


def test_threads_wait_awake_where_cores_are_to_spare(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "available_cores", lambda: 8)
    few, fitting, most = (loading.spins(TargetWorkerConfig(model=str(file), threads=count)) for count in (None, 7, 6))
    assert few == fitting < most


def test_not_a_gguf(tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(b"PK" * 500)
    with pytest.raises(ModelError, match=r"other\.gguf is not a GGUF file"):
        load(other)
    with pytest.raises(ModelError, match="no such file"):
        load(tmp_path / "missing.gguf")
    with pytest.raises(ModelError, match=r"engine torch alone.* tandem export-draft --gguf"):
        load("bundled-draft")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"general.type": "adapter"}, "LoRA"),
        ({"general.type": "mmproj"}, "projector"),
        ({"general.architecture": "clip"}, "projector"),
        ({"general.architecture": "quux"}, "quux"),
        ({"tokenizer.ggml.pre": "unheard-of"}, "unheard-of"),
    ],
)
def test_what_is_not_served(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    folder = make_tiny_model(tmp_path / "model", hidden=64)
    wrong = as_gguf(folder, tmp_path / "wrong.gguf", **keys)
    with pytest.raises(ModelError, match=message) as caught:
        load(wrong)
    assert "wrong.gguf" in str(caught.value)


def test_a_model_is_opened_beside_the_imports(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, by the thread; what goes wrong there is said where the model is asked for."""
    opened: list[str] = []
    real = loading.LoadedGguf

    def counted(lib: Any, path: Path, options: Any) -> Any:
        opened.append(threading.current_thread().name)
        return real(lib, path, options)

    monkeypatch.setattr(loading, "LoadedGguf", counted)
    config = TargetWorkerConfig(engine="llama_cpp", model=str(file), context_length=64)
    loading.open_soon(config)
    load(file).close(5)
    assert opened == ["tandem-open"]
    loading.open_soon(config.model_copy(update={"context_length": 600}))
    with pytest.raises(ModelError, match="exceeds the model's 512"):
        load(file, context_length=600)
    load(file).close(5)
    assert opened[2] == threading.current_thread().name, "other settings, or asked for a second time"


def test_nothing_is_imported_that_a_model_would_wait_for() -> None:
    code = "import sys, engines.llama_cpp.loading; sys.exit(bool({'torch', 'transformers'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], timeout=PATIENCE, check=False).returncode == 0


def test_too_little_memory(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "free_host_bytes", lambda: 2**12)
    with pytest.raises(ModelError, match=r"tiny-Q4_1\.gguf does not fit: .* GiB free"):
        load(file)


def test_a_context_longer_than_the_models(file: Path) -> None:
    with pytest.raises(ModelError, match="exceeds the model's 512"):
        load(file, context_length=600)


def test_a_tokenizer_that_differs_from_llama_cpps(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its merges are lost in the conversion."""
    real = of_gguf.build_tokenizer

    def other(metadata: Any, arch: str) -> Any:
        metadata._values["tokenizer.ggml.merges"] = metadata._values["tokenizer.ggml.merges"][:20]
        return real(metadata, arch)

    monkeypatch.setenv("TANDEM_CACHE", str(tmp_path))
    monkeypatch.setattr(of_gguf, "build_tokenizer", other)
    with pytest.raises(ModelError, match=r"tiny-Q4_1\.gguf: its tokenizer .* differ on"):
        load(file)


def test_a_tokenizer_is_built_once_for_a_file(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_CACHE", str(tmp_path))
    built: list[str] = []
    real = of_gguf.build_tokenizer
    monkeypatch.setattr(of_gguf, "build_tokenizer", lambda *given: (built.append("once"), real(*given))[1])
    renamed = file.with_name("renamed.gguf")
    renamed.write_bytes(file.read_bytes())
    found = []
    for path, length in ((file, 64), (file, 64), (renamed, 80)):
        model = load(path, context_length=length)
        found.append((model.tokenizer, model.info.special_token_ids))
        model.close(5)
    assert len(built) == 1
    assert found[0] == found[1]
    assert found[2][0].model_id == "renamed"
    assert found[2][0].context_length == 80
    assert found[2][0].tokenizer_json == found[0][0].tokenizer_json
    (kept,) = (tmp_path / "tokenizers").iterdir()
    for damage in (b"", kept.read_bytes()[:-9], kept.read_bytes().replace(b"<|endoftext|>", b"<|endoftexx|>")):
        kept.write_bytes(damage)
        again = load(file)
        assert again.tokenizer == found[0][0]
        again.close(5)
    assert len(built) == 4
    other = file.with_name("others_tokens.gguf")
    other.write_bytes(file.read_bytes().replace(b"tokenizer.ggml.pre", b"tokenizer.ggml.pr3", 1))
    with pytest.raises(ModelError, match="tokenizer"):
        load(other)


def test_a_later_start_does_not_wait_for_grammars_and_tells_the_same_of_them(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANDEM_CACHE", str(tmp_path))
    first = load(file)
    assert first.info.capabilities.grammar_types
    first.close(5)
    gate = threading.Event()
    real = service._compiler_of
    monkeypatch.setattr(service, "_compiler_of", lambda *given: (gate.wait(PATIENCE), real(*given))[1])
    later = load(file)
    assert later.info.capabilities.grammar_types == first.info.capabilities.grammar_types
    choice = Grammar(type="choice", value='["yes", "no"]', start=0)
    assert later.grammars.at_once(choice, 1) is None
    gate.set()
    assert asyncio.run(later.grammars.state(choice, 1)) is not None
    later.close(5)


def test_without_a_stop_token_no_grammar_is_promised(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANDEM_CACHE", str(tmp_path))
    monkeypatch.setattr(of_gguf, "stop_ids", lambda *_: [])
    for _ in range(2):
        model = load(file)
        assert model.info.capabilities.grammar_types == []
        model.close(5)


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "llama_cpp", None)
    with pytest.raises(ModelError, match=r"pip install -e '\.\[llama-cpp\]'"):
        library.check_installed()


def test_vocabulary_is_the_same_as_that_of_safetensors(tmp_path: Path) -> None:
    """Rows of logits beyond the tokenizer's ids are [PAD…] in GGUF; they are no tokens."""
    from engines.models import ModelFiles
    from engines.tokenizer import load_tokenizer, vocabulary_of

    folder = make_tiny_model(tmp_path / "model", hidden=64, vocabulary=416)
    engine = load(as_gguf(folder, tmp_path / "padded.gguf"))
    try:
        files_of = ModelFiles("tiny", folder)
        assert engine.info.vocabulary == vocabulary_of(load_tokenizer(files_of), 416)
        assert engine.info.vocabulary.size < 416
        assert engine.info.capabilities.batch_invariant
    finally:
        engine.close(0)


def test_the_test_of_bitwise_mode_is_made_once_for_a_file_and_its_options(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANDEM_CACHE", str(tmp_path))
    tested: list[int] = []
    real = start.self_check
    monkeypatch.setattr(start, "self_check", lambda runner, chunk: (tested.append(chunk), real(runner, chunk)))
    changes: list[dict[str, Any]] = [{}, {}, {"threads": 1}, {"context_length": 80}, {"prefill_chunk_tokens": 64}]
    for settings in changes:
        model = load(file, **settings)
        assert model.info.capabilities.batch_invariant
        model.close(5)
    assert len(tested) == 4  # not again for what was tested before
    monkeypatch.setenv("GGML_CPU_TILED_MM", "1")
    load(file).close(5)
    other = file.with_name("other.gguf")
    other.write_bytes(file.read_bytes()[:-1] + b"x")
    load(other).close(5)
    assert len(tested) == 6
    monkeypatch.delenv("GGML_CPU_TILED_MM")
    monkeypatch.setattr(library.library(), "tiled_products", "1")  # as the first model of this process had it
    load(file).close(5)
    assert len(tested) == 7


def test_a_failed_test_of_bitwise_mode_is_not_remembered(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANDEM_CACHE", str(tmp_path))

    def fail(runner: Any, chunk: int) -> None:
        raise BatchInvarianceError("other bits")

    monkeypatch.setattr(start, "self_check", fail)
    for _ in range(2):
        model = load(file)
        assert not model.info.capabilities.batch_invariant
        model.close(5)
