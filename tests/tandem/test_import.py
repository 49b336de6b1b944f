"""The installed package is found from any folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from testing.patience import PATIENCE
from testing.processes import ROOT


def test_in_the_folder_that_holds_the_clone(tmp_path: Path) -> None:
    """There the clone itself, a folder named tandem without an `__init__.py`, is a package to Python, an empty one."""
    (tmp_path / "tandem").symlink_to(ROOT)
    found = subprocess.run(
        [sys.executable, "-c", "import tandem; print(tandem.Tandem.__name__)"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert found.stdout.strip() == "Tandem", found.stderr
