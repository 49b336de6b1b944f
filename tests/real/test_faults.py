"""Faults of real deployments, made on real processes while a stream runs: the text stays the target's own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from testing.client import ApiFailure, Client
from testing.patience import PATIENCE, eventually
from testing.processes import Process, Stack
from testing.proxy import Proxy
from testing.stacks import BITWISE, speculative
from tests.real.conftest import TINY_VOCABULARY
from tests.real.rig import OPTIONS, PROMPT, Rig, ask, at, drafts_again, revive, serving, sessions, up

RECOVERY_SECONDS = 120.0
CUTS = 2
GARBAGE = ["bad_ids", "negative_ids", "nan", "lengths", "html", "huge", "error", "cut", "mismatch", "wrong"]


@pytest.fixture(scope="module")
def rig(bitwise: None, tiny_model: Path, tiny_draft: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with Stack(tmp_path_factory.mktemp("logs-faults")) as stack:
        workers = {**BITWISE, "slots": 8, "threads": 1}
        targets = (stack.target(tiny_model, "target-a", **workers), stack.target(tiny_model, "target-b", **workers))
        drafter = stack.draft(tiny_draft, "draft-model", **workers)
        scripted = stack.module("draft-scripted", "testing.scripted_draft", "--vocabulary", str(TINY_VOCABULARY))
        shared: dict[str, Any] = {
            "draft_pools": {"model": [drafter.url], "scripted": [scripted.url]},
            "probe_interval_seconds": 0.3,
            "start_timeout_seconds": RECOVERY_SECONDS,
            "recovery_timeout_seconds": RECOVERY_SECONDS,
            "write_timeout_seconds": 3,
        }
        single = stack.gateway([targets[0].url], [drafter.url], "gateway-single", **shared)
        double = stack.gateway([target.url for target in targets], [drafter.url], "gateway-double", **shared)
        stack.wait_ready()
        client = Client(single.url)
        yield Rig(stack, targets, drafter, scripted, client, Client(double.url), ask(client, "none"))


def test_nothing_is_broken_yet(rig: Rig) -> None:
    assert ask(rig.single).identity == ask(rig.double).identity == rig.undisturbed.identity
    assert drafts_again(rig.single)


def test_draft_worker_killed(rig: Rig) -> None:
    assert ask(rig.single, during=at(5, rig.drafter.kill)).identity == rig.undisturbed.identity
    assert ask(rig.single).identity == rig.undisturbed.identity, "with the drafter gone"
    revive(rig.single, rig.drafter)
    eventually(lambda: drafts_again(rig.single), "drafting starts again")


def test_draft_worker_stopped_and_continued(rig: Rig) -> None:
    try:
        assert ask(rig.single, during=at(5, rig.drafter.suspend)).identity == rig.undisturbed.identity
    finally:
        rig.drafter.resume()
    eventually(lambda: drafts_again(rig.single), "drafting starts again")


@pytest.mark.parametrize("mode", GARBAGE)
def test_draft_worker_answers_garbage(rig: Rig, mode: str) -> None:
    rig.behave(mode="none", delay=0.0)
    eventually(lambda: ask(rig.single, "scripted", max_tokens=8) is not None, "the drafter is asked")
    found = ask(rig.single, "scripted", during=at(3, lambda: rig.behave(mode=mode)))
    assert found.identity == rig.undisturbed.identity


def test_draft_worker_sends_a_wrong_q(rig: Rig) -> None:
    """Of the only drafter that answers: each round is the target's own draw, as in plain decoding."""
    rig.behave(mode="none", delay=0.0)
    probabilistic = {**speculative("scripted", 4), "strategy": "probabilistic"}
    eventually(lambda: ask(rig.single, speculative=probabilistic, max_tokens=8) is not None, "the drafter is asked")
    found = ask(rig.single, during=at(3, lambda: rig.behave(mode="bad_q")), speculative=probabilistic)
    assert found.identity == rig.undisturbed.identity


def test_draft_worker_answers_too_late(rig: Rig) -> None:
    rig.behave(mode="wrong", delay=20.0, every=1)
    try:
        assert ask(rig.single, "scripted").identity == rig.undisturbed.identity
    finally:
        rig.behave(mode="none", delay=0.0)


def test_target_killed_and_restarted(rig: Rig) -> None:
    """Under a stream with drafts and one without: both go on once it is back."""
    target = rig.targets[0]
    began = threading.Event()

    def kill_and_restart() -> None:
        assert began.wait(PATIENCE)
        target.kill()
        target.restart()

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(ask, rig.single, "none", at(5, began.set))
        assert ask(rig.single, during=at(5, kill_and_restart)).identity == rig.undisturbed.identity
        assert other.result(PATIENCE).identity == rig.undisturbed.identity


# Plain decoding whose target is killed, and that goes on at another one, is in the test before and the one after.
@pytest.mark.parametrize("drafter", ["model", pytest.param("none", marks=pytest.mark.slow)])
def test_one_of_two_targets_killed(rig: Rig, drafter: str) -> None:
    killed: list[Process] = []

    def kill() -> None:
        killed.append(serving(rig))
        killed[0].kill()

    assert ask(rig.double, drafter, during=at(5, kill)).identity == rig.undisturbed.identity
    revive(rig.double, *killed)


@pytest.mark.parametrize("drafter", ["model", "none"])
def test_one_of_two_targets_stopped(rig: Rig, drafter: str) -> None:
    """It keeps its connections and says nothing: the other goes on long before the call's own deadline."""
    stopped: list[Process] = []

    def stop() -> None:
        stopped.append(serving(rig))
        stopped[0].suspend()

    try:
        assert ask(rig.double, drafter, during=at(5, stop)).identity == rig.undisturbed.identity
    finally:
        for process in stopped:
            process.resume()
    eventually(lambda: up(rig.double, stopped[0]), "it is used again")


def test_target_terminated_while_it_serves(rig: Rig) -> None:
    """SIGTERM: it drains and ends, and the other one goes on with the stream."""
    terminated: list[Process] = []

    def terminate() -> None:
        terminated.append(serving(rig))
        terminated[0].terminate()

    assert ask(rig.double, during=at(5, terminate)).identity == rig.undisturbed.identity
    assert terminated[0].wait(PATIENCE) == 0
    revive(rig.double, *terminated)


def test_all_targets_gone(rig: Rig, tiny_model: Path) -> None:
    with Stack(rig.stack.logs / "gone") as stack:
        target = stack.target(tiny_model, threads=1, batch_invariant=True)
        gateway = stack.gateway(
            [target.url], start_timeout_seconds=1, recovery_timeout_seconds=1, probe_interval_seconds=0.3
        )
        stack.wait_ready()
        with Client(gateway.url) as client:
            failed: list[ApiFailure] = []

            def broken_off() -> bool:
                try:
                    assert ask(client, "none", during=at(5, target.kill)).identity == rig.undisturbed.identity
                    revive(client, target)
                except ApiFailure as failure:
                    failed.append(failure)
                return bool(failed)

            eventually(broken_off, "the target was killed before all of its text was there")
            (during,) = failed
            assert during.status == 200, "the stream had begun, so the failure is an event in it"
            assert rig.undisturbed.text.startswith(during.text)
            assert during.text
            assert during.body["error"]["message"]
            with pytest.raises(ApiFailure) as before:
                ask(client, "none")
            assert before.value.status == 503
            assert before.value.body["error"]["message"]


@pytest.mark.parametrize("drafter", ["model", "none"])
@pytest.mark.parametrize("side", ["target", "draft"])
def test_connections_cut_in_mid_body(rig: Rig, side: str, drafter: str) -> None:
    with (
        Stack(rig.stack.logs / f"cut-{side}-{drafter}") as stack,
        Proxy(rig.targets[0].url) as target,
        Proxy(rig.drafter.url) as draft,
    ):
        gateway = stack.gateway(
            [target.url], [draft.url], draft_pools={"model": [draft.url]}, recovery_timeout_seconds=RECOVERY_SECONDS
        )
        gateway.wait_ready()
        proxy = target if side == "target" else draft
        with Client(gateway.url) as client:

            def cut() -> bool:
                found = ask(client, drafter, during=lambda chunks: proxy.cut(CUTS) if chunks % 10 == 5 else None)
                assert found.identity == rig.undisturbed.identity
                return proxy.cuts > 0 or (side, drafter) == ("draft", "none")

            eventually(cut, "an answer was cut")
        # While the way to them is still there.
        workers = (rig.targets[0], rig.drafter)
        eventually(lambda: sessions(rig.single, *workers) == 0, "sessions are freed whatever was cut")


@pytest.mark.parametrize("drafter", ["model", "none"])
def test_client_that_disconnects(rig: Rig, drafter: str) -> None:
    class Gone(Exception):
        pass

    def leave() -> None:
        raise Gone

    workers = (rig.targets[0], rig.drafter)
    with pytest.raises(Gone):
        ask(rig.single, drafter, during=at(5, leave), max_tokens=400)
    eventually(lambda: sessions(rig.single, *workers) == 0, "both sessions are freed")
    eventually(lambda: rig.single.metrics()["tandem_num_requests_running"] == 0, "generation has stopped")


def test_client_that_reads_slowly(rig: Rig) -> None:
    assert ask(rig.single, during=lambda chunks: time.sleep(0.02)).identity == rig.undisturbed.identity


def test_client_that_never_reads(rig: Rig) -> None:
    """Others are served meanwhile, and what it was sent is let go of."""
    body = {"model": rig.single.model, "messages": [{"role": "user", "content": PROMPT}], "stream": True, **OPTIONS}
    body |= {"max_tokens": 400, "logprobs": True, "top_logprobs": 20}
    url = f"{rig.single.url}/v1/chat/completions"
    with httpx.Client(trust_env=False, timeout=PATIENCE) as silent, silent.stream("POST", url, json=body) as answer:
        assert answer.status_code == 200
        assert ask(rig.single).identity == rig.undisturbed.identity
        eventually(lambda: rig.single.metrics()["tandem_num_requests_running"] == 0, "it has ended")
    eventually(lambda: sessions(rig.single, rig.targets[0], rig.drafter) == 0, "its sessions are freed")


def test_gateway_drains_on_sigterm(rig: Rig) -> None:
    with Stack(rig.stack.logs / "drain") as stack:
        # Time enough to drain: how long the answer takes depends on what else the machine does.
        settings: dict[str, Any] = {"draft_pools": {"model": [rig.drafter.url]}, "drain_seconds": PATIENCE}
        gateway = stack.gateway([rig.targets[0].url], [rig.drafter.url], **settings)
        gateway.wait_ready()
        began = threading.Event()
        with Client(gateway.url) as client, ThreadPoolExecutor(1) as pool:
            running = pool.submit(ask, client, during=at(3, began.set))
            assert began.wait(PATIENCE)
            gateway.terminate()
            assert running.result(PATIENCE).identity == rig.undisturbed.identity
        assert gateway.wait(PATIENCE) == 0
