"""Where converted models are kept, and how a folder comes to be there in one step."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout

LOCK_TIMEOUT_SECONDS = 1800


def cache_folder() -> Path:
    """TANDEM_CACHE, or tandem/ in the user's cache (XDG_CACHE_HOME, ~/.cache)."""
    chosen = os.environ.get("TANDEM_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tandem"


def build_once(folder: Path, build: Callable[[Path], None]) -> Path:
    """Return `folder`, first letting `build` fill a temporary one that then takes its name.

    Processes that ask at the same time wait for one another; a build that fails leaves nothing behind.

    Raises:
        TimeoutError: if another process has been building for half an hour.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.with_name(folder.name + ".lock"), timeout=LOCK_TIMEOUT_SECONDS)
    try:
        with lock:
            if not folder.is_dir():
                for left in folder.parent.glob(f".{folder.name}-*"):  # of a process that was killed while it built
                    shutil.rmtree(left, ignore_errors=True)
                temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
                try:
                    temporary.chmod(0o755)
                    build(temporary)
                    temporary.rename(folder)
                finally:
                    shutil.rmtree(temporary, ignore_errors=True)
    except Timeout as error:
        raise TimeoutError(f"another process still holds {lock.lock_file}") from error
    return folder


def remove_superseded(folder: Path, is_older: Callable[[str], bool]) -> None:
    """Remove what earlier versions of Tandem built beside `folder`, which has taken its place; `is_older` judges names.

    Files that another process still has open stay readable to it.
    """
    for other in folder.parent.iterdir():
        if other.is_dir() and other != folder and is_older(other.name):
            shutil.rmtree(other, ignore_errors=True)
            other.with_name(other.name + ".lock").unlink(missing_ok=True)
