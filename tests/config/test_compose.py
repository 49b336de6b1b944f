"""docker-compose.yml and Dockerfile, compared with each other and with the command line. No Docker is needed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from config.settings import unknown_variables
from tandem.cli import app

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
TANDEM = ("gateway", "draft", "target")
REFERENCE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")


def substituted(text: str, given: dict[str, str]) -> str:
    """As compose does: ${NAME}, ${NAME:-default}, ${NAME:?message}."""

    def replace(match: re.Match[str]) -> str:
        name, kind, rest = match.groups()
        assert kind != "?" or name in given, f"{name} must be set"
        return given.get(name) or (rest if kind == "-" else "")

    return REFERENCE.sub(replace, text)


def environment(name: str) -> dict[str, str]:
    values = SERVICES[name].get("environment", {})
    return {key: substituted(value, {"TANDEM_WORKER_TOKEN": "secret"}) for key, value in values.items()}


def test_all_five_services_are_there() -> None:
    assert SERVICES.keys() == {"gateway", "draft", "target", "prometheus", "grafana"}


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_has_an_image_and_a_health_check(name: str) -> None:
    service = SERVICES[name]
    assert service["image"]
    assert ("build" in service) == (name in TANDEM)
    assert service["healthcheck"]["test"][0] == "CMD"
    assert service["cap_drop"] == ["ALL"]
    assert service["read_only"] is True


def test_only_gateway_and_grafana_are_published_and_on_loopback_alone() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published == {"gateway": ["127.0.0.1:8000:8000"], "grafana": ["127.0.0.1:3000:3000"]}


def test_services_wait_for_healthy_ones() -> None:
    waits = {name: service.get("depends_on", {}) for name, service in SERVICES.items()}
    assert waits["gateway"].keys() == {"target", "draft"}
    for needed in waits.values():
        for name, condition in needed.items():
            assert name in SERVICES
            assert condition == {"condition": "service_healthy"}


def test_volumes_exist() -> None:
    for name, service in SERVICES.items():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("./"):
                assert (ROOT / source).exists(), f"{name}: {source}"
            else:
                assert source in COMPOSE["volumes"], f"{name}: {source}"


def test_images_are_built_from_stages_of_the_dockerfile() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    stages = set(re.findall(r"^FROM \S+ AS (\w+)$", dockerfile, re.MULTILINE))
    assert {SERVICES[name]["build"]["target"] for name in TANDEM} == {"gateway", "worker"} <= stages
    for stage in ("gateway", "worker"):
        body = dockerfile.split(f" AS {stage}\n")[1].split("\nFROM ")[0]
        assert "USER tandem" in body
        assert "HEALTHCHECK" in body
        assert ("[worker" in body) == (stage == "worker"), "the gateway image has no torch"


def test_the_images_get_every_package() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    packages = {pattern.removesuffix("*") for pattern in setuptools["packages"]["find"]["include"]}
    assert kept == packages | {"pyproject.toml", "README.md", "LICENSE"}


@pytest.mark.parametrize("name", TANDEM)
def test_variables_are_known(name: str) -> None:
    assert list(unknown_variables(SERVICES[name]["environment"])) == []


def test_a_worker_token_must_be_given() -> None:
    for name in TANDEM:
        assert ":?" in SERVICES[name]["environment"]["TANDEM_WORKER_TOKEN"]


@pytest.mark.parametrize(("name", "port"), [("gateway", 8000), ("draft", 8001), ("target", 8002)])
def test_commands_start_the_services_that_the_others_expect(
    name: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    for runner in ("run_gateway", "run_draft_worker", "run_target_worker"):
        monkeypatch.setattr(f"tandem.services.{runner}", started.append)
    variables = {key: value for key, value in environment(name).items() if key.startswith("TANDEM_")}
    result = CliRunner().invoke(app, SERVICES[name]["command"], env=variables)
    assert result.exit_code == 0, result.output
    [settings] = started
    assert (settings.host, settings.port) == ("0.0.0.0", port)
    assert settings.worker_token.get_secret_value() == "secret"
    assert f":{port}/" in SERVICES[name]["healthcheck"]["test"][-1]
    if name == "gateway":
        assert settings.target_urls == ["http://target:8002"]
        assert settings.draft_urls == ["http://draft:8001"]
    else:
        assert settings.model == {"draft": "lookup", "target": "SmolLM2-135M-Instruct"}[name]


def test_prometheus_scrapes_the_three_where_they_listen_and_loads_the_alerts() -> None:
    config = yaml.safe_load((ROOT / "config/prometheus/prometheus.yml").read_text())
    targets = {job["job_name"]: job["static_configs"][0]["targets"] for job in config["scrape_configs"]}
    assert targets == {"gateway": ["gateway:8000"], "draft": ["draft:8001"], "target": ["target:8002"]}
    prometheus = SERVICES["prometheus"]
    folder, mounted = "./config/prometheus", "/etc/prometheus"
    assert f"{folder}:{mounted}:ro" in prometheus["volumes"]
    assert f"--config.file={mounted}/prometheus.yml" in prometheus["command"]
    assert config["rule_files"] == ["alerts.yml"]  # beside the file that names them
    assert (ROOT / folder / "alerts.yml").is_file()
