"""The manifests of deploy/ and Tandem agree: arguments and variables are settings, ports and names fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from config.roles import ROLES, Role, shared_fields, shared_variable, variable

DEPLOY = Path(__file__).parents[2] / "deploy"
ROLE_OF: dict[str, Role] = {"target": "target", "draft": "draft", "gateway": "serve"}
OBJECTS: list[dict[str, Any]] = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "tandem.yaml").read_text()))


def of_kind(kind: str) -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one for one in OBJECTS if one["kind"] == kind}


def variables(role: Role) -> set[str]:
    fields = ROLES[role].model_fields
    return {variable(role, name) for name in fields} | {
        shared_variable(name) for name in shared_fields() & fields.keys()
    }


@pytest.mark.parametrize("name", ROLE_OF)
def test_a_deployment_starts_its_service(name: str) -> None:
    role = ROLE_OF[name]
    template = of_kind("Deployment")[f"tandem-{name}"]["spec"]["template"]
    spec = template["spec"]
    assert spec["enableServiceLinks"] is False, "a Service named tandem-target would set TANDEM_TARGET_PORT"
    [container] = spec["containers"]
    command, *flags = container["args"]
    assert command == role
    fields = {flag.removeprefix("--").replace("-", "_") for flag in flags if flag.startswith("--")}
    assert fields <= ROLES[role].model_fields.keys()
    assert {one["name"] for one in container["env"]} <= variables(role)
    port = ROLES[role].model_fields["port"].default
    assert container["ports"] == [{"name": "http", "containerPort": port}]
    assert container["readinessProbe"]["httpGet"] == {"path": "/ready", "port": "http"}
    assert container["livenessProbe"]["httpGet"] == {"path": "/health", "port": "http"}
    mounted = {one["name"] for one in container["volumeMounts"]}
    assert mounted == {one["name"] for one in spec["volumes"]}
    service = of_kind("Service")[f"tandem-{name}"]["spec"]
    assert service["selector"].items() <= template["metadata"]["labels"].items()
    assert service["ports"][0]["targetPort"] == "http"


def test_the_gateway_finds_its_workers() -> None:
    [container] = of_kind("Deployment")["tandem-gateway"]["spec"]["template"]["spec"]["containers"]
    services = of_kind("Service")
    for name in ("target", "draft"):
        url = container["args"][container["args"].index(f"--{name}-urls") + 1]
        service = services[f"tandem-{name}"]
        assert url == f"http://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"


def test_the_monitor_sees_every_service() -> None:
    monitor = yaml.safe_load((DEPLOY / "kubernetes" / "service_monitor.yaml").read_text())
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    for service in of_kind("Service").values():
        assert wanted <= service["metadata"]["labels"].items()
        assert service["metadata"]["namespace"] == monitor["metadata"]["namespace"]
        assert {one["port"] for one in monitor["spec"]["endpoints"]} == {
            one["name"] for one in service["spec"]["ports"]
        }


@pytest.mark.parametrize("role", ROLES)
def test_a_unit_starts_its_service(role: str) -> None:
    unit = (DEPLOY / "systemd" / f"tandem-{role}.service").read_text()
    assert f"\nExecStart=/opt/tandem/bin/tandem {role}\n" in unit
