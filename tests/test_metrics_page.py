"""docs/metrics.md lists every metric of the gateway and of both workers, and no other; no two services share a name."""

from __future__ import annotations

import re
from pathlib import Path

from config.gateway import GatewayConfig
from server.app import create_app
from server.fleet_backend import Fleet
from testing.wire import async_test
from testing.worker_apps import Worker, drafter, target

PAGE = (Path(__file__).parents[1] / "docs" / "metrics.md").read_text()
ONLY_WITH_A_MODEL = {f"vllm:spec_decode_num_{what}_total" for what in ("drafts", "draft_tokens", "accepted_tokens")} | {
    "vllm:spec_decode_num_accepted_tokens_per_pos_total"
}
ON_CUDA = {"gpu_utilization_ratio", "gpu_memory_used_bytes", "gpu_memory_total_bytes"}


def listed(heading: str) -> set[str]:
    """The metrics in the tables under a heading that begins like this, and under its like."""
    sections = [section for section in PAGE.split("\n## ") if section.startswith(heading)]
    assert sections
    return set(re.findall(r"^\| `((?:tandem_|vllm:|…)\w+)`", "\n".join(sections), re.MULTILINE))


def shown(page: str) -> set[str]:
    """The names of a /metrics page's families, but for the process' own."""
    return {name for name in re.findall(r"^# TYPE (\S+) \w+$", page, re.MULTILINE) if not name.startswith("process_")}


def gateways() -> set[str]:
    config = GatewayConfig()
    return shown(create_app(config, Fleet(config)).state.gateway.metrics.text().decode())


async def page_of(worker: Worker) -> set[str]:
    return shown((await worker.client.get("/metrics")).text)


def test_the_gateways() -> None:
    assert gateways() == listed("The gateway") - ONLY_WITH_A_MODEL


@async_test
async def test_the_workers() -> None:
    rows = listed("The workers")
    shared = {row.removeprefix("…") for row in rows if row.startswith("…")}
    assert shared >= ON_CUDA
    async with target() as one, drafter() as other:
        for role, worker in (("target", one), ("draft", other)):
            prefix = f"tandem_{role}_"
            own = {row for row in rows if row.startswith(prefix)}
            assert await page_of(worker) == own | {f"{prefix}{name}" for name in shared - ON_CUDA}


@async_test
async def test_no_two_services_share_a_name() -> None:
    async with target() as one, drafter() as other:
        pages = [gateways(), await page_of(one), await page_of(other)]
    assert all(pages)
    assert sum(map(len, pages)) == len(set().union(*pages))
