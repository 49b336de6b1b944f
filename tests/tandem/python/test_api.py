"""Tandem from Python: the server's own text, all its calls, and nothing left behind."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tiny_pair import EXACT, MESSAGES, until_drafted

import tandem
from tandem import AsyncTandem, Misuse, RequestFailed, Tandem
from testing.in_process import Stack
from testing.patience import PATIENCE, eventually, tries


def local(t: Tandem, role: str) -> Any:
    """The worker's service."""
    return t._inner._running._workers.here[f"http://{role}.in-process"].service  # type: ignore[union-attr]


def comes_to_rest(t: Tandem) -> None:
    """Wait until both workers hold no session and run no job."""
    services = [local(t, "target"), local(t, "draft")]
    eventually(
        lambda: not any(len(one.sessions) or one.engine.model.loop.running for one in services),
        "the workers hold no session and run no job",
    )


def test_importing_it_loads_nothing() -> None:
    code = "import sys; from tandem import own_packages_first; import tandem\n"
    code += "print([name for name in ('torch', 'pydantic', 'httpx', 'typer', 'transformers') if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert found.stdout.strip() == "[]"


def test_all_names_can_be_had() -> None:
    assert all(getattr(tandem, name).__name__ == name for name in tandem.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = tandem.nonsense


@pytest.mark.parametrize(
    "options",
    [
        {"seed": 1},
        {"seed": 2, "temperature": 0},
        {"seed": 3, "draft_tokens": 7, "adaptive_speculation": False},
        {"seed": 4, "draft_tokens": 3, "num_candidates": 3, "adaptive_speculation": False},
        {"seed": 5, "speculative": False},
        {"seed": 7, "temperature": 1.3, "top_p": 0.9, "top_k": 40, "repetition_penalty": 1.1},
        {"seed": 8, "stop": ["e"]},
        {"seed": 9, "structured_outputs": {"regex": "( (quick|brown|fox|lazy|dog)){6}"}},
        {"seed": 10, "prediction": "The quick brown fox"},
    ],
)
def test_the_text_is_the_servers(t: Tandem, server: Stack, options: dict[str, Any]) -> None:
    options = {"max_tokens": 24, **options}
    with Tandem.connect(server.url) as there:
        ours, theirs = t.chat(MESSAGES, **options), there.chat(MESSAGES, **options)
        assert (ours.text, ours.finish_reason) == (theirs.text, theirs.finish_reason)
        assert ours.seed == theirs.seed == options["seed"]
        stream = t.stream(MESSAGES, **options)
        pieces = list(stream)
    assert "".join(pieces) == ours.text
    assert stream.answer is not None
    assert (stream.answer.text, stream.answer.finish_reason) == (ours.text, ours.finish_reason)
    assert stream.answer.stats.completion_tokens == ours.stats.completion_tokens


def test_probabilistic_is_served_too(t: Tandem) -> None:
    """Its text depends on what was drafted in time, so two runs may differ: only its distribution is the target's."""
    fixed: dict[str, Any] = {"draft_tokens": 4, "adaptive_speculation": False}
    answer = t.chat(MESSAGES, seed=6, max_tokens=24, strategy="probabilistic", **fixed)
    assert answer.finish_reason in ("stop", "length")
    assert answer.stats.completion_tokens <= 24


def test_a_prompt_is_continued_as_by_the_server(t: Tandem, server: Stack) -> None:
    with Tandem.connect(server.url) as there:
        for prompt in ("Once upon a time", [5, 6, 7]):
            options: dict[str, Any] = {"seed": 3, "max_tokens": 20}
            text = t.generate(prompt, **options).text
            assert text == there.generate(prompt, **options).text
            assert text == "".join(t.stream(prompt, **options)) == "".join(there.stream(prompt, **options))


def test_a_list_is_one_batch(t: Tandem) -> None:
    prompts = [f"Number {index} of them" for index in range(12)]
    alone = [t.generate(prompt, seed=1, max_tokens=12).text for prompt in prompts]
    rows: list[int] = []
    loop = local(t, "target").engine.model.loop
    original = loop._passes._on_pass

    def note(*report: Any) -> None:
        rows.append(report[0])
        give_up = time.monotonic() + PATIENCE
        # They come one by one: the first, which may be done before the next is there, waits for some of them.
        while len(rows) == 1 and loop.running + loop.waiting <= 4 and time.monotonic() < give_up:
            time.sleep(0.001)
        original(*report)

    loop._passes._on_pass = note
    try:
        answers = t.generate(prompts, seed=1, max_tokens=12)
    finally:
        loop._passes._on_pass = original
    assert [answer.text for answer in answers] == alone
    # Drafts come when they come, so not all twelve meet in a pass.
    assert max(rows) >= 4, "passes should serve many of them at once"
    assert t.generate([], max_tokens=1) == []


def test_without_a_seed_equal_prompts_differ(t: Tandem) -> None:
    answers = t.generate(["Once upon"] * 4, max_tokens=12)
    assert len({answer.seed for answer in answers}) == 4
    assert len({answer.text for answer in answers}) > 1


def test_stats(t: Tandem, target: Path) -> None:
    fixed: dict[str, Any] = {"seed": 1, "max_tokens": 32, "draft_tokens": 4, "adaptive_speculation": False}
    plain = t.chat(MESSAGES, seed=1, max_tokens=32, speculative=False).stats
    assert (plain.acceptance_rate, plain.tokens_per_round, plain.draft_tokens) == (0.0, 1.0, 0)
    until_drafted(lambda: t.chat(MESSAGES, **fixed))
    with Tandem(target, draft=target, **EXACT) as same:  # its own draft: everything is accepted
        found = tries(
            lambda: same.chat(MESSAGES, **fixed).stats, lambda stats: stats.tokens_per_round > 3, "drafts in time"
        )
    assert {stats.acceptance_rate for stats in found} <= {0.0, 1.0}
    stats = found[-1]
    assert stats.acceptance_rate == 1.0
    assert stats.completion_tokens == plain.completion_tokens
    assert 0 < stats.tokens_per_second == stats.completion_tokens / stats.seconds
    assert stats.prompt_tokens == plain.prompt_tokens > 0


def test_errors_name_the_field(t: Tandem) -> None:
    with pytest.raises(RequestFailed, match="temperature") as caught:
        t.chat(MESSAGES, temperature=5)
    assert (caught.value.status, caught.value.param) == (400, "temperature")
    with pytest.raises(RequestFailed, match="tempratur"):
        list(t.stream("x", tempratur=1))
    with pytest.raises(RequestFailed, match="messages"):
        t.chat([])
    with pytest.raises(RequestFailed, match="prompt"):
        t.generate(["a", 5])
    with pytest.raises(TypeError, match="model"):
        t.chat(MESSAGES, model="x")
    with pytest.raises(TypeError, match="draft_tokens"):
        t.chat(MESSAGES, draft_tokens=3, speculative={"draft_tokens": 4})
    with pytest.raises(TypeError, match="JSON"):
        t.chat(MESSAGES, temperature=float("nan"))
    with pytest.raises(TypeError, match="JSON"):
        t.chat(MESSAGES, stop={1, 2})
    with pytest.raises(TypeError, match="messages"):
        t.generate(MESSAGES)
    with pytest.raises(TypeError, match="n"):
        t.stream("x", n=2)
    for wrong in (5, None, b"abc", (one for one in "ab"), {"role": "user"}):
        with pytest.raises(TypeError, match="prompt: must be"):
            t.generate(wrong)
        with pytest.raises(TypeError, match="prompt: must be"):
            t.stream(wrong)
        with pytest.raises(TypeError, match="messages: must be"):
            t.chat(wrong)
    with pytest.raises(TypeError, match="a stream has one"):
        t.stream(["a", "b"])
    with pytest.raises(TypeError, match="speculative: must be"):
        t.chat(MESSAGES, speculative=5)
    comes_to_rest(t)


def test_half_a_line_separator_is_text(t: Tandem, server: Stack) -> None:
    """U+2028 within JSON ends no line of a stream."""
    options: dict[str, Any] = {"max_tokens": 3, "echo": True}
    with Tandem.connect(server.url) as there:
        for one in (t, there):
            assert "".join(one.stream("a\u2028b\x85c", **options)).startswith("a\u2028b\x85c")


def test_leaving_a_stream_stops_the_model(t: Tandem) -> None:
    for piece in t.stream(MESSAGES, max_tokens=400, ignore_eos=True, seed=1):
        assert piece
        break
    comes_to_rest(t)
    with t.stream(MESSAGES, max_tokens=400, ignore_eos=True) as stream:
        next(stream)
    assert stream.answer is None
    assert list(stream) == []
    comes_to_rest(t)


def test_several_threads(t: Tandem) -> None:
    alone = [t.chat(MESSAGES, seed=seed, max_tokens=16).text for seed in range(4)]
    found: dict[int, str] = {}

    def ask(seed: int) -> None:
        found[seed] = t.chat(MESSAGES, seed=seed, max_tokens=16).text

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert [found[seed] for seed in range(4)] == alone


def test_async(target: Path, draft: Path, t: Tandem) -> None:
    expected = t.chat(MESSAGES, seed=1, max_tokens=16).text

    async def main() -> None:
        async with AsyncTandem(target, draft=draft, **EXACT) as inner:
            assert (await inner.chat(MESSAGES, seed=1, max_tokens=16)).text == expected
            async with inner.stream(MESSAGES, seed=1, max_tokens=16) as stream:
                assert "".join([piece async for piece in stream]) == expected
            answers = await inner.generate(["One", "Two"], max_tokens=4)
            assert len(answers) == 2
            task = asyncio.create_task(inner.chat(MESSAGES, max_tokens=400, ignore_eos=True))
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            left_open = inner.stream(MESSAGES, max_tokens=400, ignore_eos=True)
            await anext(left_open)
        with pytest.raises(Misuse, match="closed"):
            await anext(left_open)
        with pytest.raises(Misuse, match="closed"):
            await inner.chat(MESSAGES)
        await inner.close()

    asyncio.run(main())


def test_two_event_loops(target: Path) -> None:
    inner = AsyncTandem(target, draft=None, device="cpu")
    with pytest.raises(Misuse, match="start"):
        asyncio.run(_stream(inner))
    asyncio.run(inner.start())
    with pytest.raises(Misuse, match="another event loop"):
        asyncio.run(_chat(inner))
    inner._running._workers.abandon()  # type: ignore[union-attr]


async def _stream(inner: AsyncTandem) -> None:
    inner.stream("x")


async def _chat(inner: AsyncTandem) -> None:
    await inner.chat(MESSAGES)


def test_closed(target: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = {thread.name for thread in threading.enumerate()}
    t = Tandem(target, draft=None, device="cpu")
    stream = t.stream(MESSAGES, max_tokens=400, ignore_eos=True)
    next(stream)
    t.close()
    t.close()
    with pytest.raises(Misuse, match="closed"):
        t.chat(MESSAGES)
    with pytest.raises(Misuse, match="closed"), t:
        pass
    with pytest.raises(Misuse, match="closed"):
        next(stream)
    assert {thread.name for thread in threading.enumerate()} == before
    assert not caplog.records, "the stream that was open ends without complaints"


def test_closed_while_another_thread_waits(target: Path) -> None:
    t = Tandem(target, draft=None, device="cpu")
    found: list[BaseException] = []

    def ask() -> None:
        try:
            t.chat(MESSAGES, max_tokens=450, ignore_eos=True)
        except BaseException as error:  # noqa: BLE001 - looked at below
            found.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(0.2)
    t.close()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert all(isinstance(error, Misuse | RequestFailed) for error in found), found


def test_a_dropped_one_ends_by_itself(target: Path) -> None:
    before = {thread.name for thread in threading.enumerate()}
    t = Tandem(target, draft=None, device="cpu")
    del t
    eventually(lambda: {thread.name for thread in threading.enumerate()} == before, "its threads have ended")


def _in_child(t: Tandem, results: Any) -> None:
    try:
        t.chat(MESSAGES)
    except Misuse as error:
        results.put(str(error))
    t.close()
    os._exit(0)


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_process_is_told(t: Tandem) -> None:
    context = multiprocessing.get_context("fork")
    results: Any = context.SimpleQueue()
    child = context.Process(target=_in_child, args=(t, results))
    child.start()
    child.join(PATIENCE)
    assert child.exitcode == 0
    assert "fork" in results.get()
    assert t.chat(MESSAGES, max_tokens=2).text
