"""docs/metrics.md lists every metric of the gateway and of both workers, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from server.fleet.metrics import FleetMetrics
from server.metrics import GatewayMetrics
from testing.wire import async_test
from testing.worker_apps import Worker, drafter, target

PAGE = (Path(__file__).parents[1] / "docs" / "metrics.md").read_text()


def listed(heading: str) -> set[str]:
    """The metrics in the tables under a heading that begins like this, and under its like."""
    sections = [section for section in PAGE.split("\n## ") if section.startswith(heading)]
    assert sections
    return set(re.findall(r"^\| `(tandem_\w+)`", "\n".join(sections), re.MULTILINE))


def shown(page: str) -> set[str]:
    """The names of a /metrics page's families."""
    families = re.findall(r"^# TYPE (tandem_\w+) \w+$", page, re.MULTILINE)
    return {family for family in families if not family.endswith("_created")}


def test_the_gateways() -> None:
    page = GatewayMetrics(FleetMetrics().collectors()).text().decode()
    assert shown(page) == listed("The gateway")


@async_test
async def test_the_workers() -> None:
    async def page(worker: Worker) -> str:
        return (await worker.client.get("/metrics")).text

    async with target() as one, drafter() as other:
        assert shown(await page(one)) | shown(await page(other)) == listed("The workers")
