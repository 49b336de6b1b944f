"""A real Prometheus over live processes: panels and alerts have data, and it is what the answers themselves say."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import yaml

from testing.client import Answer, Client
from testing.processes import ROOT, Process, Stack
from testing.prometheus import CONFIG, MISSING, Prometheus, installed, promtool
from testing.stacks import BITWISE
from testing.tiny_models import make_tiny_model, truncate_model
from tests.real.rig import eventually

pytestmark = pytest.mark.skipif(not installed(), reason=MISSING)

GAMMA = 4
WINDOW = "10m"
DASHBOARDS = [json.loads(path.read_text()) for path in sorted((ROOT / "config/grafana/dashboards").glob("*.json"))]
PANELS = {
    f"{dashboard['uid']}: {panel['title']}": [target["expr"] for target in panel["targets"]]
    for dashboard in DASHBOARDS
    for panel in dashboard["panels"]
}
ALERTS = {
    rule["alert"]: rule["expr"]
    for group in yaml.safe_load((CONFIG / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
}


@dataclass
class Rig:
    prometheus: Prometheus
    client: Client
    target: Process
    draft: Process
    gateway: Process
    answers: list[Answer] = field(default_factory=list)

    def shown(self, panel: str, index: int = 0) -> list[tuple[dict[str, str], float]]:
        """What a panel's expression shows, over a window that holds all of the traffic."""
        return self.prometheus.query(PANELS[panel][index].replace("$__rate_interval", WINDOW))

    def one(self, panel: str, index: int = 0) -> float:
        [(_, value)] = self.shown(panel, index)
        return value

    def told(self, key: str) -> int:
        """A number of the answers' own metrics, all of them together."""
        return sum(answer.speculation[key] for answer in self.answers if answer.speculation)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("prometheus")
    model = make_tiny_model(folder / "tiny", layers=4, hidden=64)
    smaller = truncate_model(model, folder / "smaller", 3)
    with Stack(folder / "logs") as stack:
        settings = {**BITWISE, "slots": 4, "threads": 1}
        target, draft = stack.target(model, **settings), stack.draft(smaller, **settings)
        gateway = stack.gateway([target.url], [draft.url])
        stack.wait_ready()
        jobs = {"target": target, "draft": draft, "gateway": gateway}
        addresses = {job: [process.url.removeprefix("http://")] for job, process in jobs.items()}
        with Prometheus(folder, addresses) as prometheus, Client(gateway.url) as client:
            rig = Rig(prometheus, client, target, draft, gateway)
            # All is there at 0 before the first request, which `rate` would miss otherwise.
            eventually(lambda: len(prometheus.query("up == 1")) == 3, "every target is up")
            pair = "sum(tandem_spec_decode_num_drafts_total) == 0"
            eventually(lambda: len(prometheus.query(pair)) == 1, "the pair is known")
            _traffic(rig)
            eventually(lambda: _seen(rig), "Prometheus has seen all of it")
            yield rig


def _traffic(rig: Rig) -> None:
    def ask(seed: int, **options: Any) -> None:
        messages = [{"role": "user", "content": f"Tell me story {seed}."}]
        rig.answers.append(rig.client.chat(messages, max_tokens=40, seed=seed, temperature=0.2, **options))

    for seed in range(6):
        ask(seed, stream=seed % 2 == 0, speculative={"draft_tokens": GAMMA, "adaptive_speculation": False})
    ask(100, speculative={"enabled": False})
    # A client's error and one of a name that nobody has.
    body = {"model": rig.client.model, "messages": [{"role": "user", "content": "x"}], "temperature": 9}
    assert httpx.post(f"{rig.gateway.url}/v1/chat/completions", json=body, trust_env=False).status_code == 400
    # One that leaves in mid-stream.
    body |= {"temperature": 0.2, "max_tokens": 400, "stream": True, "speculative": {"enabled": False}, "seed": 3}
    with httpx.stream("POST", f"{rig.gateway.url}/v1/chat/completions", json=body, trust_env=False) as stream:
        next(stream.iter_lines())
    eventually(lambda: rig.client.metrics()["tandem_num_requests_running"] == 0, "the abandoned one has ended")


def _seen(rig: Rig) -> bool:
    counters = ("tandem_generation_tokens_total", 'tandem_request_success_total{finished_reason="abort"}')
    page = rig.client.metrics()
    return all(rig.prometheus.value(counter) == page[counter] for counter in counters)


def test_configuration_and_alerts_are_valid() -> None:
    for arguments in (
        ("check", "config", str(CONFIG / "prometheus.yml")),
        ("check", "rules", str(CONFIG / "alerts.yml")),
        ("test", "rules", str(CONFIG / "alerts_test.yml")),
    ):
        done = promtool(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("panel", PANELS)
def test_every_panel_has_data(rig: Rig, panel: str) -> None:
    for index, expression in enumerate(PANELS[panel]):
        if "gpu" not in expression:
            found = rig.shown(panel, index)
            assert found, expression
            assert all(value == value for _, value in found), f"{expression} is not a number: {found}"


@pytest.mark.parametrize("alert", ALERTS)
def test_what_an_alert_looks_at_is_there_and_all_is_well(rig: Rig, alert: str) -> None:
    watched = re.sub(r"\s(==|<|>)\s[\d.]+\s*$", "", ALERTS[alert])
    assert watched != ALERTS[alert]
    assert rig.prometheus.query(watched), watched
    [rule] = [rule for rule in rig.prometheus.rules() if rule["name"] == alert]
    assert rule["health"] == "ok", rule


def test_acceptance_is_what_the_answers_say(rig: Rig) -> None:
    accepted, drafted = rig.told("num_accepted_draft_tokens"), rig.told("num_draft_tokens")
    steps = rig.told("num_spec_steps")
    assert 0 < accepted < drafted
    rate, length = pytest.approx(accepted / drafted), pytest.approx(1 + accepted / steps)
    assert rig.one("tandem-overview: Acceptance rate") == rate
    assert rig.one("tandem-overview: Acceptance length") == length
    [(labels, by_pair)] = rig.shown("tandem-overview: Acceptance rate by pair")
    assert by_pair == rate
    assert labels == {"pair": "tiny+smaller"}
    assert [value for _, value in rig.shown("tandem-overview: Acceptance length by pair")] == [length]


def test_acceptance_by_position_is_what_the_answers_say(rig: Rig) -> None:
    histograms = [answer.speculation["acceptance_histogram"] for answer in rig.answers if answer.speculation]
    steps = rig.told("num_spec_steps")
    shown = {int(labels["position"]): value for labels, value in rig.shown("tandem-overview: Acceptance by position")}
    for position in range(GAMMA):
        reached = sum(sum(histogram[position + 1 :]) for histogram in histograms)
        assert shown[position] == pytest.approx(reached / steps)


def test_tokens_are_those_of_usage(rig: Rig) -> None:
    """The client that left has no usage. Targets are scraped at other instants than the gateway, one was killed."""
    accepted = rig.told("num_accepted_draft_tokens")
    own = sum(answer.completion_tokens for answer in rig.answers)
    counted = rig.prometheus.value("sum(tandem_generation_tokens_total)")
    assert own < counted
    assert rig.prometheus.value("sum(tandem_spec_decode_num_accepted_tokens_total)") == accepted
    for name, total in (
        ("num_accepted_tokens", accepted),
        ("num_draft_tokens", rig.told("num_draft_tokens")),
        ("num_drafts", rig.told("num_spec_steps")),
    ):
        assert rig.prometheus.value(f"vllm:spec_decode_{name}_total") == total
    # One query, so that both rates are of one instant.
    generated, of_drafts, _ = PANELS["tandem-overview: Tokens by second"]
    ratio = f"{of_drafts} / {generated}".replace("$__rate_interval", WINDOW)
    assert rig.prometheus.value(ratio) == pytest.approx(accepted / counted)


def test_how_texts_ended(rig: Rig) -> None:
    ended = {labels["finished_reason"]: value for labels, value in rig.prometheus.query("tandem_request_success_total")}
    reasons = [answer.finish_reason for answer in rig.answers]
    assert ended == {"stop": reasons.count("stop"), "length": reasons.count("length"), "abort": 1, "error": 0}
    left = 'sum(tandem_http_requests_total{path="/v1/chat/completions",status="499"})'
    assert rig.prometheus.value(left) == 1
    errors = rig.prometheus.query('tandem_request_errors_total{status=~"4.."} > 0')
    assert [(labels["code"], value) for labels, value in errors] == [("invalid_value", 1.0)]


def test_a_dead_worker_is_seen(rig: Rig) -> None:
    """The last: kill -9, as the kernel does when memory runs out."""
    before = len(rig.answers)
    rig.draft.kill()
    scraped, workers = "tandem-operations: Scraped", "tandem-operations: Workers"
    eventually(
        lambda: ("draft", 0.0) in [(labels["job"], value) for labels, value in rig.shown(scraped)], "not scraped"
    )
    eventually(lambda: ("draft", 0.0) in [(labels["role"], value) for labels, value in rig.shown(workers)], "down")
    assert ("target", 1.0) in [(labels["role"], value) for labels, value in rig.shown(workers)]
    for alert in ("TandemProcessDown", "TandemWorkerDown"):
        assert rig.prometheus.query(ALERTS[alert]), alert
    rig.answers.append(rig.client.chat([{"role": "user", "content": "Still there?"}], max_tokens=8))
    assert len(rig.answers) == before + 1
    eventually(lambda: _seen(rig), "Prometheus has seen it")
    test_acceptance_is_what_the_answers_say(rig)
