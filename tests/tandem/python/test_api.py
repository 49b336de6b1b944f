"""Tandem from Python: the server's own text, all its calls, and nothing left behind."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tandem
from tandem import AsyncTandem, Misuse, ModelUnavailable, RequestFailed, Tandem
from testing.in_process import Stack, running_stack
from testing.tiny_models import make_tiny_model

EXACT: dict[str, Any] = {"device": "cpu", "batch_invariant": True, "target_options": {"slots": 16}}
MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "target", layers=3)


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "draft", layers=2, seed=1)


@pytest.fixture(scope="module")
def t(bitwise: None, target: Path, draft: Path) -> Iterator[Tandem]:
    with Tandem(target, draft=draft, **EXACT) as t:
        yield t


@pytest.fixture(scope="module")
def server(bitwise: None, target: Path, draft: Path) -> Iterator[Stack]:
    with running_stack(target, draft) as stack:
        yield stack


def local(t: Tandem, role: str) -> Any:
    """The worker's service."""
    return t._inner._running._workers.here[f"http://{role}.in-process"].service  # type: ignore[union-attr]


def idle(t: Tandem, seconds: float = 10.0) -> bool:
    """Whether both workers come to hold no session and run no job."""
    services = [local(t, "target"), local(t, "draft")]
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        if not any(len(one.sessions) or one.engine._engine.loop.running for one in services):
            return True
        time.sleep(0.02)
    return False


def test_importing_it_loads_nothing() -> None:
    code = "import sys; from tandem import own_packages_first; import tandem\n"
    code += "print([name for name in ('torch', 'pydantic', 'httpx', 'typer', 'transformers') if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
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
        {"seed": 6, "strategy": "probabilistic", "draft_tokens": 4, "adaptive_speculation": False},
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
    loop = local(t, "target").engine._engine.loop._passes
    original = loop._on_pass
    loop._on_pass = lambda report: (rows.append(report.sessions), original(report))
    try:
        answers = t.generate(prompts, seed=1, max_tokens=12)
    finally:
        loop._on_pass = original
    assert [answer.text for answer in answers] == alone
    assert max(rows) >= 8, "passes should serve many of them at once"
    assert t.generate([], max_tokens=1) == []


def test_without_a_seed_equal_prompts_differ(t: Tandem) -> None:
    answers = t.generate(["Once upon"] * 4, max_tokens=12)
    assert len({answer.seed for answer in answers}) == 4
    assert len({answer.text for answer in answers}) > 1


def test_stats(t: Tandem, target: Path) -> None:
    fixed: dict[str, Any] = {"seed": 1, "max_tokens": 32, "draft_tokens": 4, "adaptive_speculation": False}
    plain = t.chat(MESSAGES, seed=1, max_tokens=32, speculative=False).stats
    assert (plain.acceptance_rate, plain.tokens_per_round, plain.draft_tokens) == (0.0, 1.0, 0)
    drafted = t.chat(MESSAGES, **fixed).stats
    assert drafted.draft_tokens > 0
    with Tandem(target, draft=target, **EXACT) as same:  # its own draft: everything is accepted
        stats = same.chat(MESSAGES, **fixed).stats
    assert stats.acceptance_rate == 1.0
    assert stats.tokens_per_round > 3
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
    assert idle(t)


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
    assert idle(t)
    with t.stream(MESSAGES, max_tokens=400, ignore_eos=True) as stream:
        next(stream)
    assert stream.answer is None
    assert list(stream) == []
    assert idle(t)


def test_several_threads(t: Tandem) -> None:
    alone = [t.chat(MESSAGES, seed=seed, max_tokens=16).text for seed in range(4)]
    found: dict[int, str] = {}

    def ask(seed: int) -> None:
        found[seed] = t.chat(MESSAGES, seed=seed, max_tokens=16).text

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
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


def test_closed(target: Path) -> None:
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
    thread.join(30)
    assert not thread.is_alive()
    assert all(isinstance(error, Misuse | RequestFailed) for error in found), found


def test_a_dropped_one_ends_by_itself(target: Path) -> None:
    before = {thread.name for thread in threading.enumerate()}
    t = Tandem(target, draft=None, device="cpu")
    del t
    give_up = time.monotonic() + 20
    while {thread.name for thread in threading.enumerate()} != before and time.monotonic() < give_up:
        time.sleep(0.05)
    assert {thread.name for thread in threading.enumerate()} == before


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
    child.join(30)
    assert child.exitcode == 0
    assert "fork" in results.get()
    assert t.chat(MESSAGES, max_tokens=2).text


def test_what_cannot_be_loaded(tmp_path: Path, target: Path) -> None:
    before = {thread.name for thread in threading.enumerate()}
    with pytest.raises(ModelUnavailable, match="no such file"):
        Tandem("./nowhere")
    other = make_tiny_model(tmp_path / "other", vocabulary=300)
    with pytest.raises(ModelUnavailable, match="vocabulary"):
        Tandem(target, draft=other, device="cpu")
    with pytest.raises(ModelUnavailable, match="can't be reached"):
        Tandem.connect("http://127.0.0.1:9")
    with pytest.raises(ModelUnavailable, match="not ready"):
        Tandem("http://127.0.0.1:9", draft=None, ready_timeout=0.5)
    for wrong in ("lookup", "", 5, None):
        with pytest.raises((TypeError, ValueError), match="target"):
            Tandem(wrong)
    with pytest.raises(ValueError, match=r"target_options: slots"):
        Tandem(target, target_options={"slots": 0})
    with pytest.raises(ValueError, match="nonsense"):
        Tandem(target, draft_options={"nonsense": 1})
    with pytest.raises(TypeError, match="nonsense"):
        Tandem(target, nonsense=1)
    assert {thread.name for thread in threading.enumerate()} == before


def test_drafts_by_lookup_and_none(t: Tandem, target: Path) -> None:
    options: dict[str, Any] = {"seed": 1, "max_tokens": 16}
    expected = t.chat(MESSAGES, **options).text
    for draft in ("auto", "lookup", None):  # an unknown target's pair is lookup
        with Tandem(target, draft=draft, **EXACT) as other:
            assert other.chat(MESSAGES, **options).text == expected
            drafted = other._inner._running._workers.gateway.draft_urls  # type: ignore[union-attr]
            assert bool(drafted) == (draft is not None)


def test_loaded_objects(t: Tandem, target: Path, draft: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    small = AutoModelForCausalLM.from_pretrained(draft, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(target)
    ids = torch.tensor([[5, 6, 7]])
    before = model(ids).logits
    expected = t.chat(MESSAGES, seed=1, max_tokens=16).text
    exact = {"batch_invariant": True, "target_options": {"slots": 16}}
    for given in ({"tokenizer": tokenizer}, {}):
        with Tandem(model if given else (model, tokenizer), draft=small, **given, **exact) as other:
            assert other.chat(MESSAGES, seed=1, max_tokens=16).text == expected
            assert other.chat(MESSAGES, seed=1, draft_tokens=3, adaptive_speculation=False).stats.draft_tokens > 0
    assert torch.equal(model(ids).logits, before), "the caller's model stays as it was"
    with pytest.raises(TypeError, match="tokenizer"):
        Tandem(model)


def test_a_loaded_objects_tensors_are_shared_and_no_weights_are_written(target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    layers = [type(module) for module in model.modules()]
    tokenizer = AutoTokenizer.from_pretrained(target)
    with Tandem(model, tokenizer=tokenizer, draft=None, device="cpu") as t:
        workers = t._inner._running._workers  # type: ignore[union-attr]
        served = workers.here["http://target.in-process"].service.engine._loop._runner.model
        mine, theirs = dict(model.named_parameters()), dict(served.named_parameters())
        assert mine.keys() == theirs.keys()
        assert all(theirs[name].data_ptr() == mine[name].data_ptr() for name in mine)
        assert served is not model
        assert not any(Path(folder.name).rglob("*.safetensors") for folder in workers._folders)
        prompt = tokenizer("Once upon a time", return_tensors="pt")
        written = model.generate(**prompt, max_new_tokens=8, do_sample=False)[0, prompt.input_ids.shape[1] :]
        text = tokenizer.decode(written, skip_special_tokens=True)
        assert t.generate("Once upon a time", max_tokens=8, temperature=0).text == text
    assert [type(module) for module in model.modules()] == layers


def test_a_remote_target_with_a_draft_here(server: Stack, draft: Path, t: Tandem) -> None:
    with Tandem(server.target_url, draft=draft, batch_invariant=True) as mixed:
        options: dict[str, Any] = {"seed": 4, "max_tokens": 20, "draft_tokens": 4, "adaptive_speculation": False}
        answer = mixed.chat(MESSAGES, **options)
        assert answer.stats.draft_tokens > 0
        assert answer.text == t.chat(MESSAGES, **options).text


INTERRUPTED = """
import signal, sys, threading, time
from tandem import Tandem
t = Tandem(sys.argv[1], draft=sys.argv[2], device="cpu")
services = [worker.service for worker in t._inner._running._workers.here.values()]
def idle():
    return not any(len(one.sessions) or one.engine._engine.loop.running for one in services)
for kind in ("stream", "chat", "generate"):
    try:
        threading.Timer(0.3, lambda: signal.raise_signal(signal.SIGINT)).start()
        while True:
            if kind == "stream":
                for piece in t.stream("Once", max_tokens=500, ignore_eos=True): pass
            elif kind == "chat":
                t.chat("Once", max_tokens=400, ignore_eos=True)
            else:
                t.generate(["Once"] * 4, max_tokens=400, ignore_eos=True)
    except KeyboardInterrupt:
        give_up = time.monotonic() + 10
        while not idle() and time.monotonic() < give_up: time.sleep(0.02)
        print(kind, "idle" if idle() else "busy", flush=True)
print("still answers", len(t.generate("Once", max_tokens=2, ignore_eos=True).text) > 0, flush=True)
t.close()
print([thread.name for thread in threading.enumerate()], flush=True)
"""


def test_ctrl_c_leaves_nothing_behind(target: Path, draft: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(target), str(draft)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
    lines = found.stdout.splitlines()
    assert lines == ["stream idle", "chat idle", "generate idle", "still answers True", "['MainThread']"], found.stderr


def test_ctrl_c_that_nobody_catches_ends_the_process(target: Path) -> None:
    code = (
        "import sys\nfrom tandem import Tandem\n"
        "with Tandem(sys.argv[1], draft=None, device='cpu') as t:\n"
        "    print('loaded', flush=True)\n"
        "    while True: t.generate('Once', max_tokens=400, ignore_eos=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(target)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "loaded\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode != 0
    assert errors.strip().endswith("KeyboardInterrupt")
    assert "Task was destroyed" not in errors
