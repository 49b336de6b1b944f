"""Workers on vLLM that stop, die and come back while a stream runs: the text stays the target's own."""

from __future__ import annotations

from typing import Any

import psutil

from testing.client import Answer
from testing.patience import PATIENCE, eventually
from testing.processes import Process
from testing.prompts import SHORT
from testing.stacks import speculative
from tests.real.rig import at, num_drafted, used_again
from tests.vllm.real.conftest import Workers

OPTIONS: dict[str, Any] = {"max_tokens": 240, "temperature": 0.8, "seed": 5, "ignore_eos": True}


def ask(workers: Workers, drafter: str = "vllm", **more: Any) -> Answer:
    return workers.client.chat(SHORT[3], stream=True, speculative=speculative(drafter, 3), **{**OPTIONS, **more})


def test_faults(workers: Workers) -> None:
    """One test, since each start of vLLM takes long. It leaves the drafter dead, so this file is the last."""
    undisturbed = ask(workers, "none")
    drafter, target = workers.drafters["vllm"], workers.target

    def stopped_in_the_middle() -> bool:
        failed = failures(workers, drafter)
        try:
            assert ask(workers, during=at(4, drafter.suspend)).identity == undisturbed.identity
            return failures(workers, drafter) > failed
        finally:
            drafter.resume()

    # Again where the text was whole before the fault took effect, as with the next.
    eventually(stopped_in_the_middle, "the drafter was stopped while it was asked")
    eventually(lambda: num_drafted(ask(workers)) > 0, "the drafter is asked again")

    # vLLM's own process dies: the worker says so and ends, and whoever watches over it starts another.
    def engine_died_in_the_middle() -> bool:
        used_again(workers.client, target, seconds=1200)
        children = psutil.Process(target.pid).children(recursive=True)
        engine = max(children, key=lambda child: child.memory_info().rss)

        def kill_and_restart() -> None:
            engine.kill()
            assert target.wait(PATIENCE) == 1
            target.kill()  # of its process group whatever is left
            target.restart()

        failed = failures(workers, target)
        assert ask(workers, "none", during=at(4, kill_and_restart)).identity == undisturbed.identity
        eventually(lambda: not any(child.is_running() for child in children), "nothing of the first vLLM is left")
        return failures(workers, target) > failed

    eventually(engine_died_in_the_middle, "vLLM died while it was asked")

    helpers = psutil.Process(drafter.pid).children(recursive=True)
    assert ask(workers, during=at(4, lambda: psutil.Process(drafter.pid).kill())).identity == undisturbed.identity
    eventually(lambda: not any(_runs(helper) for helper in helpers), "vLLM's processes end with their worker")


def failures(workers: Workers, process: Process) -> float:
    """How often the gateway's calls to the worker have failed."""
    page = workers.client.metrics()
    return sum(
        value
        for name, value in page.items()
        if name.startswith("tandem_worker_failures_total") and f'worker="{process.url}"' in name
    )


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
