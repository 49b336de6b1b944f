"""What Tandem loads in the calling process: models by name or object, what it refuses, and that nothing is left."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tiny_pair import EXACT, MESSAGES, until_drafted

from tandem import ModelUnavailable, Tandem
from testing.in_process import Stack
from testing.patience import PATIENCE
from testing.tiny_models import make_tiny_model


def test_what_cannot_be_loaded(tmp_path: Path, target: Path) -> None:
    before = {thread.name for thread in threading.enumerate()}
    with pytest.raises(ModelUnavailable, match="no such file"):
        Tandem("./nowhere")
    other = make_tiny_model(tmp_path / "other", vocabulary=300)
    with pytest.raises(ModelUnavailable, match="vocabulary"):
        Tandem(target, draft=other, device="cpu", draft_options={"other_vocabulary": "refuse"})
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
    with pytest.raises(TypeError, match="target_options: must be a mapping"):
        Tandem(target, target_options=["slots"])
    assert {thread.name for thread in threading.enumerate()} == before


def test_drafts_by_lookup_and_none(t: Tandem, target: Path) -> None:
    options: dict[str, Any] = {"seed": 1, "max_tokens": 16}
    expected = t.chat(MESSAGES, **options).text
    for draft in ("auto", "lookup", None):  # an unknown target's pair is lookup
        with Tandem(target, draft=draft, **EXACT) as other:
            assert other.chat(MESSAGES, **options).text == expected
            drafted = other._inner._running._workers.gateway.draft_urls  # type: ignore[union-attr]
            assert bool(drafted) == (draft is not None)


def test_loaded_objects(t: Tandem, target: Path, draft: Path, tmp_path: Path) -> None:
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
            until_drafted(lambda: other.chat(MESSAGES, seed=1, draft_tokens=3, adaptive_speculation=False))
    assert torch.equal(model(ids).logits, before), "the caller's model stays as it was"
    with pytest.raises(TypeError, match="tokenizer"):
        Tandem(model)
    fewer = make_tiny_model(tmp_path / "fewer", vocabulary=300)
    short = AutoModelForCausalLM.from_pretrained(fewer, dtype=torch.float32)
    with pytest.raises(ValueError, match=r"target: its tokenizer has \d+ tokens and the model 300"):
        Tandem(short, tokenizer=tokenizer, draft=None)
    with pytest.raises(ValueError, match="draft: its tokenizer"):
        Tandem(model, tokenizer=tokenizer, draft=short)
    options: dict[str, Any] = {"seed": 1, "max_tokens": 16}
    with Tandem(model, tokenizer=tokenizer, draft=(short, AutoTokenizer.from_pretrained(fewer)), **exact) as other:
        assert other.chat(MESSAGES, **options).text == expected


def test_a_loaded_objects_tensors_are_shared_and_no_weights_are_written(target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    layers = [type(module) for module in model.modules()]
    tokenizer = AutoTokenizer.from_pretrained(target)
    with Tandem(model, tokenizer=tokenizer, draft=None, device="cpu") as t:
        workers = t._inner._running._workers  # type: ignore[union-attr]
        served = workers.here["http://target.in-process"].service.engine.model.loop._runner.model
        mine, theirs = dict(model.named_parameters()), dict(served.named_parameters())
        assert mine.keys() == theirs.keys()
        assert all(theirs[name].data_ptr() == mine[name].data_ptr() for name in mine)
        assert served is not model
        assert not any(list(Path(folder.name).rglob("*.safetensors")) for folder in workers._folders)
        prompt = tokenizer("Once upon a time", return_tensors="pt")
        written = model.generate(**prompt, max_new_tokens=8, do_sample=False)[0, prompt.input_ids.shape[1] :]
        text = tokenizer.decode(written, skip_special_tokens=True)
        assert t.generate("Once upon a time", max_tokens=8, temperature=0).text == text
    assert [type(module) for module in model.modules()] == layers


def test_a_draft_of_another_vocabulary(target: Path, t: Tandem, tmp_path: Path) -> None:
    other = make_tiny_model(tmp_path / "other", vocabulary=300)
    with Tandem(target, draft=other, **EXACT) as mixed:
        options: dict[str, Any] = {"seed": 4, "max_tokens": 20, "draft_tokens": 4, "adaptive_speculation": False}
        answers = until_drafted(lambda: mixed.chat(MESSAGES, **options))
    assert {answer.text for answer in answers} == {t.chat(MESSAGES, **options).text}


def test_a_remote_target_with_a_draft_here(server: Stack, draft: Path, t: Tandem) -> None:
    with Tandem(server.target_url, draft=draft, batch_invariant=True) as mixed:
        options: dict[str, Any] = {"seed": 4, "max_tokens": 20, "draft_tokens": 4, "adaptive_speculation": False}
        answers = until_drafted(lambda: mixed.chat(MESSAGES, **options))
    assert {answer.text for answer in answers} == {t.chat(MESSAGES, **options).text}


INTERRUPTED = """
import signal, sys, threading, time
from tandem import Tandem
t = Tandem(sys.argv[1], draft=sys.argv[2], device="cpu")
services = [worker.service for worker in t._inner._running._workers.here.values()]
def idle():
    return not any(len(one.sessions) or one.engine.model.loop.running for one in services)
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
        give_up = time.monotonic() + float(sys.argv[3])
        while not idle() and time.monotonic() < give_up: time.sleep(0.02)
        print(kind, "idle" if idle() else "busy", flush=True)
print("still answers", len(t.generate("Once", max_tokens=2, ignore_eos=True).text) > 0, flush=True)
t.close()
print([thread.name for thread in threading.enumerate()], flush=True)
"""


def test_ctrl_c_leaves_nothing_behind(target: Path, draft: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(target), str(draft), str(PATIENCE)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE)
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
        _, errors = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode != 0
    assert errors.strip().endswith("KeyboardInterrupt")
    assert "Task was destroyed" not in errors
