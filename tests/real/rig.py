"""What the fault tests break: two targets, a draft model and a scripted drafter, behind gateways that use them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

from testing.client import Answer, Client
from testing.patience import PATIENCE, eventually, tries
from testing.processes import READY_SECONDS, Process, Stack
from testing.stacks import speculative

PROMPT = "Tell me a long story about the sea."
OPTIONS: dict[str, Any] = {"max_tokens": 160, "temperature": 0.8, "seed": 5, "ignore_eos": True}


@dataclass
class Rig:
    """`single` is a gateway over one target, `double` one over both; `undisturbed` is plain decoding's answer."""

    stack: Stack
    targets: tuple[Process, Process]
    drafter: Process
    scripted: Process
    single: Client
    double: Client
    undisturbed: Answer

    def behave(self, **script: Any) -> None:
        """Change what the scripted drafter does."""
        httpx.post(f"{self.scripted.url}/behave", json=script, trust_env=False, timeout=PATIENCE).raise_for_status()


def ask(client: Client, drafter: str = "model", during: Callable[[int], None] = lambda n: None, **more: Any) -> Answer:
    """The request that all of these tests make, streamed."""
    options = {**OPTIONS, "speculative": speculative(drafter, 4), **more}
    return client.chat(PROMPT, stream=True, during=during, **options)


def at(chunk: int, action: Callable[[], None]) -> Callable[[int], None]:
    """For `ask`'s `during`: run the action once, at this chunk."""
    return lambda chunks: action() if chunks == chunk else None


def until_drafted(ask: Callable[[], Answer]) -> list[Answer]:
    """Ask until an answer's rounds carried drafts: all the answers. Fails after PATIENCE seconds.

    On a starved machine a drafter may take longer to read the prompt than the target to answer.
    """
    return tries(ask, lambda answer: num_drafted(answer) > 0, "an answer with drafts")


def num_drafted(answer: Answer) -> int:
    """Tokens that were drafted for it and verified."""
    return int((answer.speculation or {}).get("num_draft_tokens", 0))


def sessions(client: Client, *workers: Process) -> float:
    """How many sessions these workers hold."""
    pages = [client.metrics(worker.url) for worker in workers]
    return sum(page.get(f"tandem_{role}_sessions", 0.0) for page in pages for role in ("target", "draft"))


def drafts_again(client: Client, drafter: str = "model") -> bool:
    """Whether a request's rounds carry drafts (now that whatever was broken is whole again)."""
    return num_drafted(ask(client, drafter, max_tokens=24)) > 0


def serving(rig: Rig) -> Process:
    """The target that the gateway over both uses for the stream that is running."""
    metrics = rig.double.metrics()
    return max(rig.targets, key=lambda t: metrics.get(f'tandem_worker_streams{{role="target",worker="{t.url}"}}', 0.0))


def up(client: Client, process: Process) -> bool:
    """Whether the gateway gives work to it."""
    role = "draft" if "draft" in process.name else "target"
    return client.metrics().get(f'tandem_worker_up{{role="{role}",worker="{process.url}"}}') == 1.0


def revive(client: Client, *processes: Process) -> None:
    """Start killed processes again and wait until the gateway works with them."""
    for process in processes:
        process.restart()
    used_again(client, *processes)


def used_again(client: Client, *processes: Process, seconds: float = READY_SECONDS) -> None:
    """Wait until restarted processes are ready, `seconds` at most each, and the gateway works with them."""
    for process in processes:
        process.wait_ready(seconds)
        eventually(lambda process=process: up(client, process), f"{process.name} is used again")  # type: ignore[misc]
