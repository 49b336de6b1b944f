"""Every family's text and logits against transformers' own, past its window, however they were computed."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
import torch

from engines.torch.runner import Row, Runner
from engines.torch.support import check_supported
from tests.engines.torch.families import FAMILIES, Family, Rounds, Stream, greedy, make_model, tokens

SLOT = 160
NEW = 60
CLOSE = {"rtol": 1e-4, "atol": 1e-4}
PROMPTS = [tokens(41, 1), tokens(7, 2), tokens(23, 3)]


@lru_cache(maxsize=1)
def reference(name: str) -> tuple[Any, list[list[int]]]:
    """The model as transformers runs it, and its texts after PROMPTS."""
    family = next(family for family in FAMILIES if family.name == name)
    model = make_model(family.make_config())
    with torch.inference_mode():
        return model, [greedy(model, prompt, NEW, cached=family.cached) for prompt in PROMPTS]


@lru_cache(maxsize=1)
def served(name: str) -> Runner:
    family = next(family for family in FAMILIES if family.name == name)
    config = family.make_config()
    check_supported(config, SLOT)
    return Runner(make_model(config), num_slots=4, slot_length=SLOT)


@pytest.fixture(
    scope="module",
    params=[pytest.param(family, marks=pytest.mark.slow if family.slow else ()) for family in FAMILIES],
    ids=lambda family: family.name,
)
def family(request: pytest.FixtureRequest) -> Family:
    chosen: Family = request.param
    return chosen


def test_logits_equal_those_of_transformers(family: Family) -> None:
    model, texts = reference(family.name)
    runner = served(family.name)
    ids = texts[0]
    with torch.inference_mode():
        expected = model(torch.tensor([ids])).logits[0]
        if not family.cached:
            # A token's frequencies are those of the sequence up to it.
            prefixes = [model(torch.tensor([ids[:end]])).logits[0, -1] for end in range(1, len(ids) + 1)]
            expected = torch.stack(prefixes)
    parts = [
        runner.forward([Row(2, at, ids[at : at + 17]), Row(0, 0, tokens(5, at))])[0] for at in range(0, len(ids), 17)
    ]
    torch.testing.assert_close(torch.cat(parts), expected, **CLOSE)


@pytest.mark.parametrize("drafts", ["wrong", "right", "partly right"])
def test_texts_equal_those_of_transformers(family: Family, drafts: str) -> None:
    _, texts = reference(family.name)
    rounds = Rounds(served(family.name))
    streams = [
        Stream(list(prompt), drafted(text, drafts), owner)
        for owner, (prompt, text) in enumerate(zip(PROMPTS, texts, strict=True))
    ]
    for stream in streams:
        rounds.read(stream, chunk=9)
    while any(len(stream.ids) < len(text) for stream, text in zip(streams, texts, strict=True)):
        rounds.round([stream for stream, text in zip(streams, texts, strict=True) if len(stream.ids) < len(text)], 4)
    for stream, text in zip(streams, texts, strict=True):
        assert stream.ids[: len(text)] == text


def drafted(text: list[int], drafts: str) -> list[int]:
    """Tokens to draft, by position: those of the text, others, or every third another."""
    wrong = {"wrong": 1, "right": 10**6, "partly right": 3}[drafts]
    return [3 + token % 90 if i % wrong == wrong - 1 else token for i, token in enumerate([*text, *tokens(8, 9)])]


def test_prefixes_are_reused_after_rejections_and_evictions(family: Family) -> None:
    model, texts = reference(family.name)
    runner = served(family.name)
    rounds = Rounds(runner)
    first = Stream(list(PROMPTS[0]), drafted(texts[0], "partly right"), 0)
    while len(first.ids) < len(PROMPTS[0]) + 20:
        rounds.round([first], 4)
    # The next turn of the same chat, a copy that branches off earlier, and a prompt that evicts.
    for owner, kept in (
        (0, len(first.ids)),
        (1, len(PROMPTS[0]) - 3),
        (2, 0),
        (3, len(first.ids) - 9),
        (4, 0),
        (5, 30),
    ):
        prompt = [*first.ids[:kept], *tokens(6, 20 + owner)]
        text = greedy(model, prompt, 12, cached=family.cached)
        stream = Stream(prompt, drafted(text, "partly right"), owner)
        while len(stream.ids) < len(text):
            rounds.round([stream], 3)
        assert stream.ids[: len(text)] == text
    assert rounds.slots.evictions


def test_trees(family: Family) -> None:
    _, texts = reference(family.name)
    runner = served(family.name)
    if not runner.takes_trees:
        runner.forward([Row(1, 0, texts[0][:5])])
        with pytest.raises(ValueError, match="takes no trees"):
            runner.forward([Row(1, 5, [1, 2], [-1, -1])])
        return
    # Where frequencies change at 57 tokens, trees lie before, across and behind that.
    for start in (50,) if family.cached else (50, 54, 56, 57):
        check_tree(runner, texts[0], start)


def check_tree(runner: Runner, text: list[int], start: int) -> None:
    a, b, c, d = text[start : start + 4]
    wrong = [3 + token % 90 for token in (a, b, c)]
    # The right path is the second child everywhere; then goes on as a chain.
    nodes, parents = [wrong[0], a, wrong[1], b, wrong[2], c], [-1, -1, 1, 1, 3, 3]
    runner.forward([Row(1, 0, text[:start], logits_from=start), Row(0, 0, tokens(9, 1), logits_from=9)])
    tree, beside = runner.forward([Row(1, start, nodes, parents), Row(0, 9, tokens(3, 2))])
    assert tree[[1, 3, 5]].argmax(-1).tolist() == [b, c, d]
    runner.commit(1, start, [1, 3, 5])
    alone = runner.forward(
        [
            Row(2, 0, [*text[:start], wrong[0]], logits_from=start),
            Row(3, 0, [*tokens(9, 1), *tokens(3, 2)], logits_from=9),
        ]
    )
    torch.testing.assert_close(tree[0], alone[0][0], **CLOSE)
    torch.testing.assert_close(beside, alone[1], **CLOSE)
    rest = runner.forward([Row(1, start + 3, text[start + 3 : -1])])[0]
    assert rest.argmax(-1).tolist() == text[start + 4 :]
