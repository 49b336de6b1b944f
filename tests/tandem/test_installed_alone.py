"""A gateway that is installed without extras has only what pyproject.toml says it needs."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import packages_distributions, requires

import pytest
from packaging.requirements import Requirement

from testing.patience import PATIENCE

BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
from tandem.cli import main

sys.argv = ["tandem", *{arguments!r}]
main()
"""


def needed(distribution: str, extras: set[str], found: set[str]) -> set[str]:
    """It, and all that it needs with these of its extras."""
    found.add(distribution)
    for line in requires(distribution) or []:
        requirement = Requirement(line)
        name = requirement.name.lower().replace("_", "-")
        wanted = requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras)
        if wanted and name not in found:
            needed(name, {"", *requirement.extras}, found)
    return found


@pytest.mark.parametrize(
    "arguments", [["serve", "--help"], ["up", "--help"], ["doctor", "--help"], ["bench", "--help"]]
)
def test_commands_begin(arguments: list[str]) -> None:
    allowed = needed("tandem", {""}, set())
    assert "torch" not in allowed
    others = {
        module
        for module, distributions in packages_distributions().items()
        if not any(name.lower().replace("_", "-") in allowed for name in distributions)
    }
    assert {"torch", "psutil", "transformers"} <= others
    code = BLOCKED.format(names=others, arguments=arguments)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout.lower()
