"""A real Prometheus (the Debian package) over processes that run here, with our own configuration and alerts."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import yaml

from testing.patience import PATIENCE
from testing.processes import ROOT, free_port

CONFIG = ROOT / "config" / "prometheus"
MISSING = "Prometheus is not installed: apt-get install prometheus"


def installed() -> bool:
    """Whether both programs of the package are installed."""
    return shutil.which("prometheus") is not None and shutil.which("promtool") is not None


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=PATIENCE, check=False)


class Prometheus:
    """Scrapes every second; ends with the `with` block."""

    def __init__(self, folder: Path, jobs: Mapping[str, Sequence[str]]) -> None:
        """`jobs`: by the name of a job in config/prometheus/prometheus.yml, the addresses (host:port) that it has here.

        Raises AssertionError if the file has other jobs.
        """
        config = yaml.safe_load((CONFIG / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(CONFIG / name) for name in config["rule_files"]]
        assert {job["job_name"] for job in config["scrape_configs"]} == set(jobs)
        for job in config["scrape_configs"]:
            job["static_configs"] = [{"targets": list(jobs[job["job_name"]])}]
        file = folder / "prometheus.yml"
        file.write_text(yaml.safe_dump(config))
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        with (folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={file}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                ],
                stdout=log,
                stderr=log,
            )
        self._http = httpx.Client(base_url=self.url, timeout=PATIENCE, trust_env=False)

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """An instant query's series: labels and value. Raises RuntimeError if Prometheus refuses it."""
        answer: dict[str, Any] = self._http.get("/api/v1/query", params={"query": expression}).json()
        if answer["status"] != "success":
            raise RuntimeError(f"{expression}: {answer['error']}")
        return [(series["metric"], float(series["value"][1])) for series in answer["data"]["result"]]

    def value(self, expression: str) -> float:
        """The value of a query that has one series. Raises AssertionError if it has none or several."""
        found = self.query(expression)
        assert len(found) == 1, f"{expression}: {found}"
        return found[0][1]

    def rules(self) -> list[dict[str, Any]]:
        groups = self._http.get("/api/v1/rules").json()["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def __enter__(self) -> Self:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            try:
                if self._http.get("/-/ready").status_code == 200:
                    return self
            except httpx.HTTPError:
                pass
            time.sleep(0.1)
        self._end()
        raise RuntimeError("Prometheus does not start")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        self._http.close()
        self._process.kill()
        self._process.wait(PATIENCE)
