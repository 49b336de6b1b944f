"""The page at /: its files, and what it does in a real Chromium."""

from __future__ import annotations

import asyncio
import itertools
import zipfile
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path

import pytest
from api_doubles import END, MODEL, TOKENIZER, Running, ScriptedBackend, Start, make_round, split

from basics.breaker import Breaker
from server.backend import GenerationRequest, Round
from server.fleet.metrics import FleetMetrics
from server.http.playground import FILES, playground
from testing.browser import Page, browser, chromium
from testing.patience import PATIENCE

HOSTILE = "<img src=x onerror=alert(1)><script>window.bad=1</script> &amp; <b>bold</b>"
KEY = "a-key"


def test_its_files_come_with_their_headers(gateway: Running) -> None:
    page = gateway.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for name in ("chat.js", "style.css", "icon.svg"):
        file = gateway.get(f"{FILES}{name}")
        assert (file.status_code, file.headers["x-content-type-options"]) == (200, "nosniff")
        assert f"{FILES}{name}" in page.text
    assert gateway.http.head(f"{gateway.url}/").status_code == 200
    for path in (f"{FILES}nothing.js", f"{FILES}%2e%2e/playground.py", f"{FILES}..%2fplayground.py"):
        assert gateway.get(path).status_code == 404
    assert gateway.post("/", {}).status_code == 405


def test_every_file_of_the_folder_is_served_and_none_loads_from_elsewhere() -> None:
    folder = Path(__file__).parents[3] / "server" / "http" / "playground_files"
    for file in folder.iterdir():
        text = file.read_text()
        assert "innerHTML" not in text
        assert "https:" not in text
        assert text.count("http:") == text.count("http://www.w3.org/2000/svg")
    assert {route.path for route in playground().routes} == {"/", f"{FILES}{{name}}"}  # type: ignore[attr-defined]


def test_the_page_needs_no_key_but_what_it_asks_does(start: Start) -> None:
    running = start(ScriptedBackend(), api_keys=[KEY])
    assert running.get("/").status_code == 200
    assert KEY not in running.get("/").text
    assert running.get("/v1/models").status_code == 401


def test_a_setting_turns_it_off(start: Start) -> None:
    off = start(ScriptedBackend(), playground=False)
    assert off.get("/").json()["error"]["code"] == "not_found"
    assert off.get(f"{FILES}chat.js").status_code == 404
    assert start(ScriptedBackend(), playground=False, api_keys=[KEY]).get("/").status_code == 401


def test_an_installed_wheel_has_the_files(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    folder = Path(__file__).parents[3] / "server" / "http" / "playground_files"
    assert {f"server/http/playground_files/{file.name}" for file in folder.iterdir()} <= set(names)


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Page]]:
    path = chromium()
    if path is None:
        pytest.skip("there is no Chromium on this machine")
    with browser(path, tmp_path_factory.mktemp("browser")) as opener:
        yield opener


async def played(request: GenerationRequest) -> AsyncGenerator[Round, None]:
    """As a target would: drafts only where they are asked for."""
    ids = [*TOKENIZER.encode(HOSTILE).ids, END]
    if request.speculation.enabled:
        for place, one in enumerate(split(ids, 4)):
            await asyncio.sleep(0.01)
            rejected = place % 2 == 0
            yield make_round(
                one.token_ids,
                stop_reason=one.stop_reason,
                stop_token_id=one.stop_token_id,
                num_drafted=4 if rejected else max(len(one.token_ids) - 1, 0),
            )
        return
    for place, token_id in enumerate(ids):
        await asyncio.sleep(0.01)
        last = place == len(ids) - 1
        yield make_round(
            [token_id],
            num_drafted=0,
            num_accepted=0,
            source=None,
            stop_reason="stop_token" if last else None,
            stop_token_id=END if last else None,
        )


def text_of(side: str) -> str:
    return f"document.querySelector('#{side} .log .assistant:last-of-type').textContent"


def ask(page: Page, text: str) -> None:
    """Ask, and wait for both answers' ends: "Send" is disabled before their bubbles come, and enabled afterwards."""
    bubbles = "document.querySelectorAll('.log .assistant').length"
    before = page.run(bubbles)
    page.run("document.getElementById('prompt').focus()")
    page.type(text)
    page.press("Enter")
    page.until(f"{bubbles} > {before} && !document.getElementById('send').disabled")


def test_both_sides_answer_and_nothing_that_the_model_writes_is_markup(tab: Callable[[], Page], start: Start) -> None:
    running = start(ScriptedBackend(script=played), api_keys=[KEY])
    page = tab()
    page.open(running.url)
    page.until("document.getElementById('model').textContent.includes('API key')")
    assert page.run("document.activeElement.id") == "key"
    page.type(KEY)
    page.press("Tab")
    page.until(f"document.getElementById('model').textContent === '{MODEL}'")
    page.run(
        "(input => { input.value = 0.3; input.dispatchEvent(new Event('input')) })"
        "(document.getElementById('set-temperature'))"
    )
    ask(page, "Hello <i>there</i>")
    assert page.run(text_of("with")) == HOSTILE
    assert page.run(text_of("without")) == HOSTILE
    assert page.run("document.querySelectorAll('.log img, .log script, .log b, .log i').length") == 0
    assert page.run("typeof window.bad") == "undefined"
    verdict = page.run("document.getElementById('verdict').textContent")
    assert "The texts agree." in verdict
    assert "times" in verdict
    for kind in ("draft", "target", "bonus"):
        assert page.run(f"document.querySelectorAll('#with .{kind}').length") > 0
        assert page.run(f"document.querySelectorAll('#without .{kind}').length") == 0
    plain, drafted = sorted(running.backend.requests, key=lambda asked: asked.speculation.enabled)  # sent together
    assert (drafted.speculation.enabled, plain.speculation.enabled) == (True, False)
    assert drafted.sampling == plain.sampling
    assert drafted.sampling.temperature == 0.3
    assert drafted.speculation.adaptive  # what was not touched is not sent
    told = page.run("document.querySelector('#with [data-gauge=acceptance] .figure').textContent")
    accepted = page.run("Number(document.querySelector('#with [data-gauge=tokens] .figure').textContent)")
    assert "%" in told
    assert accepted == len(TOKENIZER.encode(HOSTILE).ids) + 1
    ask(page, "And again")
    assert HOSTILE in TOKENIZER.decode(running.backend.requests[-1].prompt, skip_special_tokens=False)
    assert KEY not in page.run("location.href + document.cookie + JSON.stringify(localStorage)")
    assert [problem for problem in page.problems if "401" not in problem] == []


def test_a_refusal_is_told_on_its_side_and_stopping_keeps_what_came(tab: Callable[[], Page], start: Start) -> None:
    async def endless(request: GenerationRequest) -> AsyncGenerator[Round, None]:
        for token_id in itertools.cycle(TOKENIZER.encode("the quick brown fox ").ids):
            await asyncio.sleep(0.02)
            yield make_round([token_id], num_drafted=0, num_accepted=0, source=None)

    running = start(ScriptedBackend(script=endless))
    page = tab()
    page.open(running.url)
    page.run(
        "(input => { input.value = 'nobody'; input.dispatchEvent(new Event('input')) })"
        "(document.getElementById('set-draft_model'))"
    )
    page.run("document.getElementById('prompt').focus()")
    page.type("Hello")
    page.press("Enter")
    page.until("document.querySelector('#with .failure')?.textContent.includes('draft_model')")
    page.until("document.querySelector('#without .assistant')?.textContent.length > 20")
    page.press("Escape")
    page.until("document.querySelector('#without .failure')?.textContent === 'stopped'")
    page.until("!document.getElementById('send').disabled")
    assert running.backend.gone.wait(PATIENCE)  # the gateway learns of it


def test_the_fleet_and_the_keyboard(tab: Callable[[], Page], start: Start) -> None:
    fleet, worker = FleetMetrics(), "http://127.0.0.1:8001"
    fleet.watch_worker("draft", worker, Breaker())
    fleet.way.labels(worker, "same").set(1)
    fleet.up.labels("draft", worker).set(1)
    page = tab()
    page.open(start(ScriptedBackend(watched=fleet.collectors())).url)
    page.run("document.getElementById('tab-chat').focus()")
    page.press("ArrowRight")
    assert page.run("document.activeElement.id") == "tab-fleet"
    page.until("document.getElementById('fleet-state').textContent.startsWith('Ready')")
    page.until("document.getElementById('pairs').textContent.includes('lookup')")
    rows = "[...document.querySelectorAll('#workers tr')].map(row => [...row.cells].map(cell => cell.textContent))"
    assert page.run(rows) == [["draft", worker, "up", "closed", "0", "0", ""]]
    assert page.run("document.getElementById('view-chat').hidden")
    page.press("ArrowLeft")
    assert page.run("document.getElementById('view-fleet').hidden")
    # Every control has a name, and nothing but the logs says each token.
    unnamed = page.run(
        "[...document.querySelectorAll('input, select, textarea, button')]"
        ".filter(e => !(e.labels?.length || e.textContent.trim() || e.getAttribute('aria-label'))).map(e => e.id)"
    )
    assert unnamed == []
    for width in (320, 1280):
        page.window(width, 800)
        assert page.run("document.documentElement.scrollWidth") <= width
    assert page.problems == []
