from __future__ import annotations

import pytest

from config.pairs import BUNDLED, PAIRS, base_name, full_id, pair_for


@pytest.mark.parametrize(
    ("target", "draft", "draft_tokens"),
    [
        (BUNDLED, "lookup", 5),
        ("Qwen2.5-3B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct", 5),
        ("Qwen3-32B", "Qwen/Qwen3-1.7B", 5),
        ("Llama-3.1-70B-Instruct", "meta-llama/Llama-3.2-3B-Instruct", 4),
        ("Llama-3.1-8B-Instruct", "meta-llama/Llama-3.2-1B-Instruct", 3),
        ("Qwen2.5-72B-Instruct", "Qwen/Qwen2.5-7B-Instruct", 4),
        ("opt-1.3b", "facebook/opt-350m", 5),
        ("pythia-2.8b", "EleutherAI/pythia-70m", 5),
    ],
)
def test_every_pair_of_the_table(target: str, draft: str, draft_tokens: int) -> None:
    pair = pair_for(target)
    assert (pair.target, pair.draft, pair.draft_tokens) == (target, draft, draft_tokens)


def test_the_table_holds_nothing_else() -> None:
    assert len(PAIRS) == 8
    assert len({base_name(pair.target) for pair in PAIRS}) == 8


@pytest.mark.parametrize(
    "name",
    [
        "Qwen/Qwen2.5-3B-Instruct",
        "qwen2.5-3b-instruct",
        "someone/QWEN2.5-3B-INSTRUCT",
        "/models/Qwen2.5-3B-Instruct/",
        "/models/Qwen2.5-3B-Instruct.Q4_K_M.gguf",
        "qwen2.5-3b-instruct-q8_0.gguf",
        "qwen2.5-3b-instruct-q8_0-00001-of-00002.gguf",
        "qwen2.5-3b-instruct-fp16.gguf",
        "Qwen2.5-3B-Instruct.gguf",
    ],
)
def test_a_target_is_known_by_id_bare_name_folder_and_file(name: str) -> None:
    assert pair_for(name).draft == "Qwen/Qwen2.5-0.5B-Instruct"


def test_metas_older_ids_are_the_same_models() -> None:
    assert pair_for("meta-llama/Meta-Llama-3.1-8B-Instruct").draft_tokens == 3


@pytest.mark.parametrize("name", ["Qwen2.5-3B", "Qwen2.5-3B-Instruct-AWQ2", "mine/other", ""])
def test_an_unknown_target_drafts_by_lookup(name: str) -> None:
    pair = pair_for(name)
    assert (pair.draft, pair.draft_tokens) == ("lookup", 5)


def test_bare_names_of_the_table_become_ids() -> None:
    assert full_id("qwen2.5-0.5b-instruct") == "Qwen/Qwen2.5-0.5B-Instruct"
    assert full_id("opt-1.3b") == "facebook/opt-1.3b"


@pytest.mark.parametrize(
    "name", [BUNDLED, "mine/opt-1.3b", "./opt-1.3b", "opt-1.3b.gguf", "lookup", "unheard-of", "gpt2"]
)
def test_other_names_stay_as_they_are(name: str) -> None:
    assert full_id(name) == name
