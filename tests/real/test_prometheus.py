"""A real Prometheus over live processes: panels and alerts have data, and it is what the answers themselves say."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

import httpx
import pytest
import yaml

from testing.client import Client
from testing.patience import PATIENCE, eventually
from testing.processes import ROOT, Process, Stack
from testing.prometheus import CONFIG, MISSING, Prometheus, installed, promtool
from testing.proxy import Proxy
from testing.stacks import BITWISE
from testing.tiny_models import make_tiny_model, truncate_model
from tests.real.kinds_of_requests import CHAT, GAMMA, KINDS, Told, ask

pytestmark = pytest.mark.skipif(not installed(), reason=MISSING)

WINDOW = "10m"
HELD_AFTER = 8
"""Pieces of answers: the beginning of a stream of 400 tokens, and no more, though a probe takes some of them."""
RATE = re.compile(r"rate\(([^()]*)\[\$__rate_interval\]\)")
COUNTERS = {
    "tokens": "tandem_generation_tokens_total",
    "prompt_tokens": "tandem_prompt_tokens_total",
    "accepted": "tandem_spec_decode_num_accepted_tokens_total",
    "drafted": "tandem_spec_decode_num_draft_tokens_total",
    "choices": "tandem_request_success_total",
    "first_tokens": "tandem_time_to_first_token_seconds_count",
    "whole": "tandem_e2e_request_latency_seconds_count",
    "tokens_of_choices": "tandem_request_generation_tokens_sum",
    "prompts_of_choices": "tandem_request_prompt_tokens_sum",
    "by_target": "tandem_target_generation_tokens_total",
}
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
    way: Proxy
    """Between the gateway and the target."""
    answers: list[Told] = field(default_factory=list)
    by_kind: dict[str, tuple[Told, dict[str, float]]] = field(default_factory=dict)
    """Of each kind of request what it told, and by how much Prometheus' counters went up."""
    abandoned_tokens: float = 0.0
    abandoned_prompt: float = 0.0

    def shown(self, panel: str, index: int = 0) -> list[tuple[dict[str, str], float]]:
        """What a panel's expression shows, over a window that holds all of the traffic."""
        return self.prometheus.query(PANELS[panel][index].replace("$__rate_interval", WINDOW))

    def one(self, panel: str, index: int = 0) -> float:
        [(_, value)] = self.shown(panel, index)
        return value

    def total(self, panel: str, index: int = 0) -> list[tuple[dict[str, str], float]]:
        """The same of the whole traffic: each rate is replaced by its counter, all of which began at 0."""
        return self.prometheus.query(RATE.sub(r"(\1)", PANELS[panel][index]))

    def told(self, key: str) -> int:
        """A number of the answers' own metrics, all of them together."""
        return sum(answer.speculation.get(key, 0) for answer in self.answers)

    def counted(self) -> dict[str, float]:
        """COUNTERS as Prometheus has them, once it has all that the gateway and the target counted until now."""
        page = {**self.client.metrics(), **self.client.metrics(self.target.url)}

        def value(name: str) -> float:
            return sum(count for sample, count in page.items() if sample.partition("{")[0] == name)

        found: dict[str, float] = {}

        def known() -> bool:
            for what, name in COUNTERS.items():
                series = self.prometheus.query(f"sum({name})")  # none after a scrape that took too long
                if [count for _, count in series] != [value(name)]:
                    return False
                found[what] = value(name)
            return True

        eventually(known, "Prometheus has seen all of it")
        return found


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("prometheus")
    model = make_tiny_model(folder / "tiny", layers=4, hidden=64)
    smaller = truncate_model(model, folder / "smaller", 3)
    with Stack(folder / "logs") as stack, ExitStack() as links:
        settings = {**BITWISE, "slots": 4, "threads": 1}
        target, draft = stack.target(model, **settings), stack.draft(smaller, **settings)
        way = links.enter_context(Proxy(target.url))
        gateway = stack.gateway([way.url], [draft.url])
        stack.wait_ready()
        jobs = {"target": target, "draft": draft, "gateway": gateway}
        addresses = {job: [process.url.removeprefix("http://")] for job, process in jobs.items()}
        with Prometheus(folder, addresses) as prometheus, Client(gateway.url) as client:
            rig = Rig(prometheus, client, target, draft, gateway, way)
            # All is there at 0 before the first request, which `rate` would miss otherwise.
            eventually(lambda: len(prometheus.query("up == 1")) == 3, "every target is up")
            pair = "sum(tandem_spec_decode_num_drafts_total) == 0"
            eventually(lambda: len(prometheus.query(pair)) == 1, "the pair is known")
            _traffic(rig)
            yield rig


def _traffic(rig: Rig) -> None:
    before = rig.counted()

    def answered(kind: str) -> bool:
        """Whether with drafts, if it is to have them: they may be late."""
        nonlocal before
        path, body = KINDS[kind]
        if "stop" in body:
            body = {**body, "stop": rig.by_kind["chat"][0].stop_string()}
        told = ask(rig.gateway.url, rig.client.model, path, body)
        eventually(lambda: rig.client.metrics()["tandem_num_requests_running"] == 0, "it has ended")
        after = rig.counted()
        rig.answers.append(told)
        rig.by_kind[kind] = told, {what: after[what] - before[what] for what in COUNTERS}
        before = after
        return told.drafted > 0 or kind == "plain"

    for kind in KINDS:
        eventually(partial(answered, kind), f"{kind}, with drafts")
    # A client's error.
    url = f"{rig.gateway.url}{CHAT}"
    fields = {"model": rig.client.model, "messages": [{"role": "user", "content": "x"}], "temperature": 9}
    assert httpx.post(url, json=fields, trust_env=False, timeout=PATIENCE).status_code == 400
    # One that leaves in mid-stream: the rest of it, with which it would be whole, has not come yet.
    fields |= {"temperature": 0.2, "max_tokens": 400, "stream": True, "speculative": {"enabled": False}, "seed": 3}
    fields["ignore_eos"] = True
    generated = COUNTERS["tokens"]
    rig.way.hold(HELD_AFTER)
    with httpx.stream("POST", url, json=fields, trust_env=False, timeout=PATIENCE):
        eventually(lambda: rig.client.metrics()[generated] > before["tokens"], "some of it has come")
    eventually(lambda: rig.client.metrics()["tandem_num_requests_running"] == 0, "the abandoned one has ended")
    rig.way.release()
    after = rig.counted()
    rig.abandoned_tokens = after["tokens"] - before["tokens"]
    rig.abandoned_prompt = after["prompt_tokens"] - before["prompt_tokens"]


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
    histograms = [answer.speculation.get("acceptance_histogram", []) for answer in rig.answers]
    steps = rig.told("num_spec_steps")
    shown = {int(labels["position"]): value for labels, value in rig.shown("tandem-overview: Acceptance by position")}
    for position in range(GAMMA):
        reached = sum(sum(histogram[position + 1 :]) for histogram in histograms)
        assert shown[position] == pytest.approx(reached / steps)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_counted_is_what_the_answer_says(rig: Rig, kind: str) -> None:
    told, counted = rig.by_kind[kind]
    choices = len(told.endings)
    assert told.tokens > 0
    assert (told.drafted > 0) == (kind != "plain")
    # A target may go on to the end of the round in which a stop string ends the text.
    counted = {**counted}
    by_target = counted.pop("by_target")
    if kind == "a stop string":
        assert told.endings == ["stop"]
        assert by_target >= told.tokens
    else:
        assert by_target == told.tokens
    assert counted == {
        "tokens": told.tokens,
        "prompt_tokens": told.prompt_tokens,
        "accepted": told.accepted,
        "drafted": told.drafted,
        "choices": choices,
        "first_tokens": choices,
        "whole": choices,
        "tokens_of_choices": told.tokens,
        "prompts_of_choices": told.prompt_tokens,
    }


def test_panels_add_up_to_what_the_answers_say(rig: Rig) -> None:
    """Each rate of a panel replaced by its counter, so that nothing is extrapolated."""
    tokens = sum(answer.tokens for answer in rig.answers)
    accepted, drafted = rig.told("num_accepted_draft_tokens"), rig.told("num_draft_tokens")
    assert accepted == sum(answer.accepted for answer in rig.answers)
    assert drafted == sum(answer.drafted for answer in rig.answers)

    def one(panel: str, index: int = 0) -> float:
        [(_, value)] = rig.total(panel, index)
        return value

    def by(label: str, panel: str, index: int = 0) -> dict[str, float]:
        return {labels[label]: value for labels, value in rig.total(panel, index)}

    generated = tokens + rig.abandoned_tokens
    prompts = sum(answer.prompt_tokens for answer in rig.answers) + rig.abandoned_prompt
    assert rig.abandoned_tokens > 0
    assert one("tandem-overview: Tokens a second") == generated
    assert [one("tandem-overview: Tokens by second", index) for index in range(3)] == [generated, accepted, prompts]
    for name, value in (
        ("num_accepted_tokens", accepted),
        ("num_draft_tokens", drafted),
        ("num_drafts", rig.told("num_spec_steps")),
    ):
        assert rig.prometheus.value(f"vllm:spec_decode_{name}_total") == value
    endings = [ending for answer in rig.answers for ending in answer.endings]
    assert by("finished_reason", "tandem-overview: Texts finished a second") == {
        "stop": endings.count("stop"),
        "length": endings.count("length"),
        "abort": 1,
        "error": 0,
    }
    rounds = rig.prometheus.value("tandem_spec_decode_draft_length_count")
    assert one("tandem-overview: γ and N in use") == pytest.approx(drafted / rounds)
    assert one("tandem-overview: γ and N in use", 1) == pytest.approx(rig.told("num_spec_steps") / rounds)
    phases = by("phase", "tandem-overview: Round time by phase")
    [(_, whole)] = rig.prometheus.query('tandem_round_seconds_sum{phase="total"}')
    assert 0 < sum(phases.values()) <= 1.01 * whole / rounds
    accepted_by: dict[str, int] = {}
    for answer in rig.answers:
        for source, number in answer.speculation.get("accepted_by_drafter", {}).items():
            accepted_by[source] = accepted_by.get(source, 0) + number
    counted = rig.prometheus.query("sum by (source) (tandem_spec_decode_num_accepted_tokens_total) > 0")
    assert {labels["source"]: value for labels, value in counted} == {k: v for k, v in accepted_by.items() if v}

    served = {(path, "200"): [answer.path for answer in rig.answers].count(path) for path, _ in KINDS.values()}

    def requests() -> dict[tuple[str, str], float]:
        return {
            (labels["path"], labels["status"]): value
            for labels, value in rig.total("tandem-operations: HTTP requests")
            if labels["path"] in {answer.path for answer in rig.answers}
        }

    eventually(lambda: requests() == {**served, (CHAT, "400"): 1, (CHAT, "499"): 1}, "each request is counted")
    assert {code: n for code, n in by("code", "tandem-operations: Client errors").items() if n} == {"invalid_value": 1}
    assert set(by("code", "tandem-operations: Server errors").values()) == {0.0}
    assert by("job", "tandem-operations: Scraped") == {"gateway": 1, "target": 1, "draft": 1}
    assert by("role", "tandem-operations: Workers") == {"target": 1, "draft": 1}
    assert by("role", "tandem-operations: Breakers") == {"target": 0, "draft": 0}
    assert [labels["model"] for labels, _ in rig.total("tandem-overview: Served")] == ["tiny"]
    for panel in ("Running and waiting", "Sessions", "Calls in the workers"):
        expressions = range(len(PANELS[f"tandem-operations: {panel}"]))

        def over(panel: str = panel, expressions: range = expressions) -> bool:
            return not any(one(f"tandem-operations: {panel}", index) for index in expressions)

        eventually(over, f"{panel}: none is left")  # sessions are freed after the answer


def test_a_dead_worker_is_seen(rig: Rig) -> None:
    """The last: kill -9, as the kernel does when memory runs out."""
    before = rig.counted()
    rig.draft.kill()
    scraped, workers = "tandem-operations: Scraped", "tandem-operations: Workers"
    eventually(
        lambda: ("draft", 0.0) in [(labels["job"], value) for labels, value in rig.shown(scraped)], "not scraped"
    )
    eventually(lambda: ("draft", 0.0) in [(labels["role"], value) for labels, value in rig.shown(workers)], "down")
    assert ("target", 1.0) in [(labels["role"], value) for labels, value in rig.shown(workers)]
    for alert in ("TandemProcessDown", "TandemWorkerDown"):
        assert rig.prometheus.query(ALERTS[alert]), alert
    told = ask(rig.gateway.url, rig.client.model, *KINDS["chat"])
    assert told.tokens == rig.by_kind["chat"][0].tokens, "the text is the same without a draft worker"
    eventually(lambda: rig.client.metrics()["tandem_num_requests_running"] == 0, "it has ended")
    after = rig.counted()
    assert after["tokens"] - before["tokens"] == told.tokens
    assert (after["accepted"] - before["accepted"], after["drafted"] - before["drafted"]) == (0, 0)
    test_acceptance_is_what_the_answers_say(rig)
