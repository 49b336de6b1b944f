"""The Grafana dashboard shows metrics that the services really export."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from server.fleet.metrics import FleetMetrics
from server.metrics import GatewayMetrics
from worker.metrics import WorkerMetrics

CONFIG = Path(__file__).parents[2] / "config"
DASHBOARD = json.loads((CONFIG / "grafana/dashboards/tandem.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
NAME = re.compile(r"\btandem[_:]\w+")


def exported() -> set[str]:
    pages = GatewayMetrics(FleetMetrics().collectors()).text() + WorkerMetrics().page()
    names: set[str] = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\w+)$", pages.decode(), re.MULTILINE):
        suffixes = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        names |= {f"{name}{suffix}" for suffix in suffixes}
    return names


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: f"{panel['id']} {panel['title']}")
def test_every_metric_of_a_panel_is_exported(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        names = NAME.findall(target["expr"])
        assert names, f"a panel that shows nothing of Tandem: {target['expr']}"
        assert set(names) <= exported()


@pytest.mark.parametrize(
    "wanted",
    [
        "Acceptance rate",
        "Acceptance length",
        "Tokens a second",
        "Time to first token",
        "Inter-token latency",
        "Round time by phase",
        "γ and N in use",
        "Breakers",
        "Errors",
    ],
)
def test_what_operators_look_for_is_shown(wanted: str) -> None:
    assert wanted in [panel["title"] for panel in PANELS]


def test_panels_do_not_overlap() -> None:
    cells = [
        (x, y)
        for panel in PANELS
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) == 23


def test_panels_ask_the_provisioned_source() -> None:
    sources = yaml.safe_load((CONFIG / "grafana/provisioning/datasources/prometheus.yml").read_text())["datasources"]
    assert {panel["datasource"]["uid"] for panel in PANELS} == {source["uid"] for source in sources}


def test_dashboards_are_provisioned_from_where_compose_mounts_them() -> None:
    [provider] = yaml.safe_load((CONFIG / "grafana/provisioning/dashboards/tandem.yml").read_text())["providers"]
    compose = yaml.safe_load((CONFIG.parent / "docker-compose.yml").read_text())
    mounts = [volume.split(":") for volume in compose["services"]["grafana"]["volumes"]]
    assert ["./config/grafana/dashboards", provider["options"]["path"], "ro"] in mounts
