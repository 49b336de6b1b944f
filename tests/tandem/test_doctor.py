"""The doctor before services that answer, that do not fit together, and that are not there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from fake_services import WORDS, Fake, model, serving, tokenizer_info
from prometheus_client import generate_latest
from pydantic import SecretStr

from config.roles import ServeSettings
from server.fleet_backend import Fleet
from tandem.doctor import run_doctor
from tandem.doctor_report import print_report, verdict_line
from tandem.findings import PromptResult, Report
from tandem.payoff import Costs, Yield, judge
from tandem.probes import ProbedService
from testing.patience import PATIENCE

NOWHERE = "http://127.0.0.1:9"  # the discard port: nothing listens there


@dataclass
class Setup:
    gateway: Fake
    target: Fake
    draft: Fake
    urls: dict[str, str]


@pytest.fixture
def setup() -> Iterator[Setup]:
    gateway = Fake({"/v1/models": {"data": [{"id": "the-target"}]}})
    target = Fake({"/v1/model": model("target", WORDS), "/v1/tokenizer": tokenizer_info(WORDS)}, milliseconds=30.0)
    draft = Fake({"/v1/model": model("draft", WORDS), "/v1/tokenizer": tokenizer_info(WORDS)}, milliseconds=1.0)
    with ExitStack() as stack:
        fakes = {"url": gateway, "target_url": target, "draft_url": draft}
        urls = {name: stack.enter_context(serving(fake)) for name, fake in fakes.items()}
        yield Setup(gateway, target, draft, urls)


@pytest.fixture(autouse=True)
def round_trips_take_a_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is: what is reported of a set-up follows from them."""
    measure = ProbedService.round_trip_ms

    def measured(self: ProbedService) -> float:
        assert measure(self) > 0.0
        return 1.0

    monkeypatch.setattr(ProbedService, "round_trip_ms", measured)


def examine(
    capsys: pytest.CaptureFixture[str], urls: dict[str, str], options: dict[str, Any] | None = None, **settings: Any
) -> tuple[int, dict[str, Any]]:
    common: dict[str, Any] = {"api_key": None, "draft_tokens": None, "max_tokens": 24, "timeout": PATIENCE} | (
        options or {}
    )
    code = run_doctor(ServeSettings(**settings), **urls, **common, as_json=True)
    return code, json.loads(capsys.readouterr().out)


def details(report: dict[str, Any]) -> dict[str, tuple[bool | None, str]]:
    return {check["name"]: (check["ok"], check["detail"]) for check in report["checks"]}


def test_a_good_set_up(setup: Setup, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = examine(capsys, setup.urls)
    assert code == 0
    assert report["healthy"] is True
    assert {name: ok for name, (ok, _) in details(report).items()} == dict.fromkeys(
        ("target", "draft", "gateway", "vocabulary"), True
    )
    assert report["costs"]["draft_token"] == pytest.approx(1.0)
    assert report["costs"]["draft_call"] == pytest.approx(0.0)
    assert [rows for rows, _ in report["costs"]["steps"]] == [1, 2, 4, 6, 8]
    assert [prompt["kind"] for prompt in report["prompts"]] == ["copying", "code", "chat"]
    for prompt in report["prompts"]:
        assert prompt["acceptance_rate"] == pytest.approx(2 / 3)
        assert prompt["coverage"] == 1.0
        assert prompt["same_text"] is True
    assert all(verdict["pays"] for verdict in report["verdicts"].values())
    assert "prepares no drafts" in report["lookahead"]


def test_it_says_what_it_does_and_standard_output_stays_the_report(
    setup: Setup, capsys: pytest.CaptureFixture[str]
) -> None:
    common: dict[str, Any] = {"api_key": None, "draft_tokens": None, "max_tokens": 24, "timeout": PATIENCE}
    run_doctor(ServeSettings(), **setup.urls, **common, as_json=True)
    written = capsys.readouterr()
    json.loads(written.out)
    assert written.err.splitlines() == [
        "looking at the services …",
        *(f"prompt {kind}: an answer without drafts, then with them …" for kind in ("copying", "code", "chat")),
        "timing drafts and the target's passes …",
    ]


def test_bitwise_mode_is_named(setup: Setup, capsys: pytest.CaptureFixture[str]) -> None:
    told = setup.target.answers["/v1/model"]
    told["capabilities"] = {**told["capabilities"], "batch_invariant": True}
    _, report = examine(capsys, setup.urls)
    assert details(report)["target"][1].endswith("the-target on fake, cpu, float32, bitwise mode")
    assert details(report)["draft"][1].endswith("the-draft on fake, cpu, float32")


def test_gamma_is_the_gateways_own_or_the_one_to_try(setup: Setup, capsys: pytest.CaptureFixture[str]) -> None:
    _, report = examine(capsys, setup.urls, draft_tokens=2)
    assert report["draft_tokens"] == 5, "the gateway's answer counts, not the doctor's own settings"
    _, report = examine(capsys, setup.urls, options={"draft_tokens": 3})
    assert report["draft_tokens"] == 3
    assert report["verdicts"]["code"]["draft_tokens"] == 3


def test_nothing_that_was_answered_before_is_copied(setup: Setup, capsys: pytest.CaptureFixture[str]) -> None:
    """Else a second run would measure how well the first one's answers are remembered."""
    for _ in range(2):
        examine(capsys, setup.urls)
    assert None not in setup.gateway.salts
    assert len({*setup.gateway.salts}) == 12


@pytest.mark.parametrize("ending", ["/v1", "/v1/", "/"])
def test_the_address_may_be_that_of_the_api(setup: Setup, ending: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = examine(capsys, {**setup.urls, "url": setup.urls["url"] + ending})
    assert code == 0


@pytest.mark.parametrize("address", ["127.0.0.1:9400", "ftp://127.0.0.1"])
def test_no_address(setup: Setup, address: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, report = examine(capsys, {**setup.urls, "url": address})
    assert "no address such as http://" in details(report)["gateway"][1]


def test_its_sessions_are_freed(setup: Setup, capsys: pytest.CaptureFixture[str]) -> None:
    examine(capsys, setup.urls)
    assert len(setup.target.forgotten) == 5
    assert len(setup.draft.forgotten) == 2
    assert all(path.startswith("/v1/sessions/doctor-") for path in setup.target.forgotten)


def test_workers_get_the_worker_token_and_the_gateway_its_key(setup: Setup, capsys: pytest.CaptureFixture[str]) -> None:
    examine(capsys, setup.urls, worker_token=SecretStr("w"), api_keys=[SecretStr("k")])
    assert setup.target.tokens_seen == setup.draft.tokens_seen == {"Bearer w"}
    assert setup.gateway.tokens_seen == {"Bearer k"}


def test_a_draft_that_is_too_slow(setup: Setup, capsys: pytest.CaptureFixture[str]) -> None:
    setup.draft.milliseconds = 60.0
    code, report = examine(capsys, setup.urls)
    assert code == 0, "not to pay is no fault"
    for verdict in report["verdicts"].values():
        assert not verdict["pays"]
        assert verdict["reasons"][0].startswith("the draft is too slow: 300.0 ms for 5 tokens")


def test_another_vocabulary(setup: Setup, capsys: pytest.CaptureFixture[str]) -> None:
    other = [*WORDS[:-1], "zebra"]
    setup.draft.answers |= {
        "/v1/model": model("draft", other, vocabulary={"fingerprint": "o", "size": len(other), "logits_size": 99}),
        "/v1/tokenizer": tokenizer_info(other),
    }
    code, report = examine(capsys, setup.urls)
    assert code == 1
    ok, detail = details(report)["vocabulary"]
    assert ok is False
    assert "the-draft cannot draft for the-target" in detail
    assert "zebra" in detail


def test_another_vocabulary_that_the_drafter_has_learned(setup: Setup, capsys: pytest.CaptureFixture[str]) -> None:
    other, name = [*WORDS[:-1], "zebra"], setup.target.answers["/v1/model"]["vocabulary"]["fingerprint"]
    learned = {"vocabulary": name, "way": "shared_text", "q": False, "shared": 41, "coverage": 0.5}
    of_others = learned | {"vocabulary": "another target's", "way": "shared_ids", "shared": 7}
    vocabulary = {"fingerprint": "o", "size": len(other), "logits_size": 99}
    setup.draft.answers["/v1/model"] = model("draft", other, vocabulary=vocabulary, translations=[of_others, learned])
    code, report = examine(capsys, setup.urls)
    assert code == 0
    said = "the-draft has another one and drafts by shared text (41 tokens are the target's too)"
    assert details(report)["vocabulary"] == (True, said)
    assert setup.draft.vocabularies_seen == {name}, "drafts are timed in the target's ids"


def test_padded_rows_are_one_vocabulary(setup: Setup, capsys: pytest.CaptureFixture[str]) -> None:
    for fake, rows in ((setup.target, 152_064), (setup.draft, 151_936)):
        fake.answers["/v1/model"]["vocabulary"] |= {"size": 151_665, "logits_size": rows}
    code, report = examine(capsys, setup.urls)
    assert code == 0
    assert details(report)["vocabulary"] == (True, "one vocabulary of 151665 tokens")
    assert setup.draft.vocabularies_seen == {None}


def test_lookup_speaks_any_vocabulary(setup: Setup, capsys: pytest.CaptureFixture[str]) -> None:
    setup.draft.answers["/v1/model"] = model("draft", WORDS, id="lookup", dtype=None, vocabulary=None)
    code, report = examine(capsys, setup.urls)
    assert code == 0
    assert details(report)["vocabulary"] == (True, "lookup drafts in the target's own ids")


def test_what_cannot_be_reached_is_told_and_the_rest_is_still_looked_at(
    setup: Setup, capsys: pytest.CaptureFixture[str]
) -> None:
    code, report = examine(capsys, setup.urls | {"draft_url": NOWHERE})
    assert code == 1
    found = details(report)
    assert found["draft"] == (False, f"draft at {NOWHERE}: cannot be reached (is it running?)")
    assert found["target"][0] is True
    assert found["gateway"][0] is True
    assert report["verdicts"] == {}


def test_nothing_there_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    code, report = examine(capsys, dict.fromkeys(("url", "target_url", "draft_url"), NOWHERE))
    assert code == 1
    assert [ok for ok, _ in details(report).values()] == [False, False, False]


def test_a_worker_that_is_loading(setup: Setup, capsys: pytest.CaptureFixture[str]) -> None:
    setup.target.answers |= {"ready": False, "/ready": {"ready": False, "detail": "reading weights"}}
    code, report = examine(capsys, setup.urls)
    assert code == 1
    assert details(report)["target"] == (False, f"{setup.urls['target_url']} is not ready: reading weights")


def test_addresses_that_were_swapped(setup: Setup, capsys: pytest.CaptureFixture[str]) -> None:
    swapped = setup.urls | {"target_url": setup.urls["draft_url"], "draft_url": setup.urls["target_url"]}
    code, report = examine(capsys, swapped)
    assert code == 1
    assert details(report)["target"] == (False, f"{setup.urls['draft_url']} is a draft worker")


def test_something_else_that_speaks_http(setup: Setup, capsys: pytest.CaptureFixture[str]) -> None:
    setup.target.answers["/v1/model"] = {"hello": "world"}
    code, report = examine(capsys, setup.urls)
    assert code == 1
    assert "/v1/model does not speak Tandem's wire" in details(report)["target"][1]


def test_something_that_speaks_no_json(setup: Setup, capsys: pytest.CaptureFixture[str]) -> None:
    setup.gateway.answers |= {"/health": "<html>", "/ready": "<html>"}
    _, report = examine(capsys, setup.urls)
    assert "what answers there is no Tandem" in details(report)["gateway"][1]


def test_the_report_for_people(setup: Setup, capsys: pytest.CaptureFixture[str]) -> None:
    setup.draft.milliseconds = 60.0
    code = run_doctor(
        ServeSettings(),
        **setup.urls,
        api_key=None,
        draft_tokens=None,
        max_tokens=24,
        timeout=PATIENCE,
        as_json=False,  # type: ignore[arg-type]
    )
    said = " ".join(capsys.readouterr().out.split())
    assert code == 0
    assert "round trip to the target" in said
    assert "chat: speculation will not pay here, because the draft is too slow" in said


@pytest.mark.parametrize(
    ("acceptance", "measured", "contradicted"),
    [(0.9, 1.85, False), (0.9, 0.9, True), (0.05, 1.85, True), (0.35, 1.01, False), (0.05, 0.0, False)],
)
def test_a_verdict_that_the_measured_times_contradict_says_so(
    acceptance: float, measured: float, contradicted: bool
) -> None:
    costs = Costs(((1, 30.0), (6, 40.0)), 1.0, 1.0, 1.0, 1.0)
    verdict = judge(costs, Yield(acceptance), 5)
    assert verdict.pays == (acceptance == 0.9)
    line = verdict_line(PromptResult("chat", 10.0, 10.0 * measured, 0.5, 2.0, 1.0, True), verdict)
    assert ("contradict each other" in line) == contradicted


@pytest.mark.parametrize(
    ("acceptance", "said"),
    [
        (0.9, "chat: speculation pays, 2.93× expected"),
        (0.4, "chat: speculation pays little here, because too little is accepted: "),
        (0.1, "chat: speculation will not pay here, because too little is accepted: "),
    ],
)
def test_what_holds_speculation_back_is_told(acceptance: float, said: str) -> None:
    costs = Costs(((1, 30.0), (6, 40.0)), 1.0, 1.0, 1.0, 1.0)
    line = verdict_line(PromptResult("chat", 10.0, 0.0, 0.5, 2.0, 1.0, True), judge(costs, Yield(acceptance), 5))
    assert line.startswith(said)


def test_whether_lookahead_pays(setup: Setup, capsys: pytest.CaptureFixture[str]) -> None:
    setup.draft.answers["/v1/model"]["capabilities"]["lookahead"] = True
    setup.draft.milliseconds = 4.0
    report = examine(capsys, setup.urls)[1]
    assert "lookahead may pay" in report["lookahead"]
    assert report["flights"].startswith("verifications in flight are not to be had: ")
    setup.draft.answers["/v1/model"]["capabilities"]["prepared"] = True
    setup.target.answers["/v1/model"]["capabilities"]["follows"] = True
    assert "verifications in flight " in (said := examine(capsys, setup.urls)[1]["flights"])
    assert "not to be had" not in said


def page_of(lookahead: str, rounds: int = 0, hidden: float = 0.0, **settings: Any) -> str:
    """A gateway's /metrics after so many rounds that hid so many seconds of drafting."""
    fleet = Fleet(ServeSettings(lookahead=lookahead, **settings))
    fleet._metrics.lookahead_rounds.labels("hit").inc(rounds)
    fleet._metrics.lookahead_hidden.inc(hidden)
    return "".join(generate_latest(collector).decode() for collector in fleet.collectors())  # type: ignore[arg-type]


@pytest.mark.parametrize("own", ["off", "on"])
def test_the_gateways_lookahead_is_judged_and_not_the_doctors_settings(
    setup: Setup, own: str, capsys: pytest.CaptureFixture[str]
) -> None:
    setup.draft.answers["/v1/model"]["capabilities"] |= {"lookahead": True, "prepared": True}
    setup.target.answers["/v1/model"]["capabilities"]["follows"] = True
    setup.draft.milliseconds = 4.0
    setup.gateway.answers["/metrics"] = page_of("off")
    said = examine(capsys, setup.urls, lookahead=own)[1]["lookahead"]
    assert said.endswith("; the gateway's is off; `lookahead: auto` measures it")
    setup.gateway.answers["/metrics"] = page_of("auto")
    said = examine(capsys, setup.urls, lookahead=own)[1]["lookahead"]
    assert said.endswith("; the gateway's is auto, not yet tried: it is measured in requests whose γ adapts")
    setup.gateway.answers["/metrics"] = page_of("auto", 3)
    said = examine(capsys, setup.urls, lookahead=own)[1]["lookahead"]
    assert said.endswith("; the gateway's is auto, which measures it in requests whose γ adapts")


def test_what_the_gateways_lookahead_hides_counts(setup: Setup, capsys: pytest.CaptureFixture[str]) -> None:
    """A draft of five takes 20 ms, of which 15 are hidden."""
    setup.draft.answers["/v1/model"]["capabilities"]["lookahead"] = True
    setup.draft.milliseconds = 4.0
    pages = iter([page_of("on", 10, 7.0), page_of("on", 34, 7.0 + 24 * 0.015)])
    without = examine(capsys, setup.urls)[1]
    setup.gateway.answers["/metrics"] = lambda: next(pages)
    report = examine(capsys, setup.urls)[1]
    assert report["lookahead"].endswith("; the gateway's is on, which hid 15.0 ms a round here")
    assert report["costs"]["hidden"] == pytest.approx(15.0)
    shorter = without["verdicts"]["chat"]["round_ms"] - report["verdicts"]["chat"]["round_ms"]
    assert shorter == pytest.approx(15.0)
    assert report["verdicts"]["chat"]["speed_up"] > 1.2 * without["verdicts"]["chat"]["speed_up"]


@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_worker_in_the_gateways_place(setup: Setup, role: str, capsys: pytest.CaptureFixture[str]) -> None:
    worker = {"target": setup.target, "draft": setup.draft}[role]
    worker.answers["/metrics"] = f'# TYPE tandem_{role}_build_info gauge\ntandem_{role}_build_info{{version="1"}} 1.0\n'
    code, report = examine(capsys, setup.urls | {"url": setup.urls[f"{role}_url"]})
    assert code == 1
    ok, said = details(report)["gateway"]
    assert (ok, said) == (False, f"{setup.urls[f'{role}_url']} is a {role} worker: --url is for the gateway's address")
    assert "prompts" not in details(report)


def test_whether_verifying_copies_ahead_pays(setup: Setup, capsys: pytest.CaptureFixture[str]) -> None:
    setup.draft.answers["/v1/model"]["engine"] = "lookup"
    setup.target.answers["/v1/model"]["capabilities"]["follows"] = True
    assert examine(capsys, setup.urls)[1]["flights"] is None
    setup.draft.answers["/v1/model"]["capabilities"]["chooses_ahead"] = True
    report = examine(capsys, setup.urls)[1]
    assert report["flights"].startswith("verifications in flight ")
    assert "not to be had" not in report["flights"]
    assert "not to be had" in report["lookahead"]


def test_the_tables_headers_fit_a_terminal_of_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    print_report(Report(draft_tokens=5, prompts=[PromptResult("copying", 1234.5, 2345.6, 1.0, 16.25, 1.0, True)]))
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "prompt accepted drafted tok/round plain spec. expected measured same" in lines
    assert "copying 100% 100% 16.25 1234.5 2345.6 – 1.90× ✓" in lines


def test_the_workers_are_those_that_the_gateway_names(setup: Setup, capsys: pytest.CaptureFixture[str]) -> None:
    urls = setup.urls
    _, detail = Fleet(ServeSettings(target_urls=[urls["target_url"], NOWHERE], draft_urls=[urls["draft_url"]])).ready()
    setup.gateway.answers["/ready"] = {"ready": True, "detail": detail}
    code, report = examine(capsys, {"url": urls["url"], "target_url": None, "draft_url": None})  # type: ignore[dict-item]
    assert code == 0
    assert urls["target_url"] in details(report)["target"][1]
    assert urls["draft_url"] in details(report)["draft"][1]
