"""The Grafana dashboards show what operators look for, from metrics that the services export."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

CONFIG = Path(__file__).parents[2] / "config"
DASHBOARDS = {
    path.stem: json.loads(path.read_text()) for path in sorted((CONFIG / "grafana/dashboards").glob("*.json"))
}
PANELS: list[tuple[str, dict[str, Any]]] = [
    (name, panel) for name, dashboard in DASHBOARDS.items() for panel in dashboard["panels"]
]
DOCUMENTED = set(re.findall(r"^\| `([\w:…]+)`", (CONFIG.parent / "docs" / "metrics.md").read_text(), re.MULTILINE))


def documented(name: str) -> bool:
    """Whether docs/metrics.md has the metric; another test compares that page with what the services export."""
    if name == "up" or name.startswith("process_"):
        return True
    name = re.sub(r"_(bucket|sum|count)$", "", name)
    return name in DOCUMENTED or re.sub(r"^tandem_(target|draft)_", "…", name) in DOCUMENTED


@pytest.mark.parametrize(("name", "panel"), PANELS, ids=[f"{name}: {panel['title']}" for name, panel in PANELS])
def test_every_metric_of_a_panel_is_exported(name: str, panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        names = re.findall(r"\b(?:tandem|process)_\w+|\bup\b", target["expr"])
        assert names, f"a panel that shows nothing of Tandem: {target['expr']}"
        assert [one for one in names if not documented(one)] == []


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("overview", "Acceptance rate by pair"),
        ("overview", "Acceptance length by pair"),
        ("overview", "Acceptance by position"),
        ("overview", "Tokens a second"),
        ("overview", "Time to first token"),
        ("overview", "Inter-token latency"),
        ("overview", "Round time by phase"),
        ("overview", "γ and N in use"),
        ("overview", "Speed-up by pair"),
        ("operations", "Scraped"),
        ("operations", "Workers"),
        ("operations", "Breakers"),
        ("operations", "Vocabulary mismatch"),
        ("operations", "Retries and resends"),
        ("operations", "Server errors"),
        ("operations", "Client errors"),
        ("operations", "Queue time"),
        ("operations", "Sessions"),
        ("operations", "Cache hits"),
        ("operations", "Evictions"),
        ("operations", "Memory"),
    ],
)
def test_what_operators_look_for_is_shown(name: str, wanted: str) -> None:
    assert wanted in [panel["title"] for panel in DASHBOARDS[name]["panels"]]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_do_not_overlap(name: str) -> None:
    places = [panel["gridPos"] for panel in DASHBOARDS[name]["panels"]]
    cells = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) == 23


def test_panels_ask_the_provisioned_source() -> None:
    sources = yaml.safe_load((CONFIG / "grafana/provisioning/datasources/prometheus.yml").read_text())["datasources"]
    assert {panel["datasource"]["uid"] for _, panel in PANELS} == {source["uid"] for source in sources}


def test_dashboards_link_to_each_other() -> None:
    uids = {dashboard["uid"] for dashboard in DASHBOARDS.values()}
    links = {link["url"].removeprefix("/d/") for dashboard in DASHBOARDS.values() for link in dashboard["links"]}
    assert links == uids


def test_dashboards_are_provisioned_from_where_compose_mounts_them() -> None:
    [provider] = yaml.safe_load((CONFIG / "grafana/provisioning/dashboards/tandem.yml").read_text())["providers"]
    compose = yaml.safe_load((CONFIG.parent / "docker-compose.yml").read_text())
    grafana = compose["services"]["grafana"]
    mounts = [volume.split(":") for volume in grafana["volumes"]]
    folder = provider["options"]["path"]
    assert ["./config/grafana/dashboards", folder, "ro"] in mounts
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert str(home.parent) == folder
    assert home.stem in DASHBOARDS
