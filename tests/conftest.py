"""Before any test imports torch: numerics that let tests compare bits, threads for a small machine. And an order."""

import gc
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from engines.torch.environment import prepare_environment

# As in workers: imports make no garbage, and looking for it takes a quarter of their time.
gc.set_threshold(20_000, 10, 10)
prepare_environment(threads=2, batch_invariant=True)
# How long an example takes says how busy the machine is, and nothing of the code.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# A shell's background jobs ignore Ctrl-C, and so would the processes that tests send it to.
if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_REAL = Path(__file__).parent / "real"
_FIRST = ["test_faults.py", "test_equality.py", "test_in_flight.py", "test_soak.py", "test_secrets.py"]
"""Of tests/real, the longest first: what is shorter fills up the other side."""
_TOGETHER = (
    ("real/test_equality.py", "real/test_sdk.py", "real/test_schemas.py"),
    ("real/test_in_flight.py", "real/test_in_flight_deeper.py", "real/test_lookahead.py"),
    ("clients/test_agent_libraries.py", "clients/test_openai_clients.py", "clients/test_openai_sent_back.py"),
)
"""Files on one set of processes or servers, which two sides would start twice. For `--dist loadfile`."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files are handed out in this order, where they run side by side."""

    def place(item: pytest.Item) -> int:
        is_first = item.path.parent == _REAL and item.path.name in _FIRST
        return _FIRST.index(item.path.name) if is_first else len(_FIRST)

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Files(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return next((str(files) for files in _TOGETHER if file.removeprefix("tests/") in files), file)

    return Files(config, log)


@pytest.fixture(scope="session")
def bitwise() -> None:
    """For tests and fixtures that need the torch engine's bitwise mode: skips where this processor cannot have it."""
    from tests.bitwise import refusal  # imports torch, whose environment must be prepared first

    if (reason := refusal()) is not None:
        pytest.skip(f"bitwise mode cannot be had on this processor: {reason}")
