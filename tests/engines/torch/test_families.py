"""Every family's text and logits against transformers' own, past its window, however they were computed."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import Any

import pytest
import torch

from basics.names import Strategy
from engines.drawing import Limits
from engines.errors import BatchInvarianceError, ModelError
from engines.runtime.loop import EngineLoop
from engines.runtime.slots import SlotCache
from engines.torch.runner import Row, Runner
from protocol.messages import Candidate, Context, Sampling, TopK, VerifyRequest
from target_worker.runtime.verify import verify_job
from target_worker.strategies import STRATEGIES
from tests.engines.torch.families import FAMILIES, Family, Rounds, Stream, greedy, tokens
from tests.engines.torch.further_families import FURTHER
from tests.engines.torch.wrapped import WRAPPERS, Wrapper

SLOT = 160
NEW = 60
CLOSE = {"rtol": 1e-4, "atol": 1e-4}
PROMPTS = [tokens(41, 1), tokens(7, 2), tokens(23, 3)]
ALL: dict[str, Family | Wrapper] = {case.name: case for case in (*FAMILIES, *FURTHER, *WRAPPERS)}


@lru_cache(maxsize=1)
def reference(name: str) -> tuple[Any, list[list[int]]]:
    """The model as transformers runs it, and its texts after PROMPTS."""
    model = ALL[name].make_model()
    with torch.inference_mode():
        return model, [greedy(model, prompt, NEW, cached=ALL[name].cached) for prompt in PROMPTS]


@lru_cache(maxsize=1)
def served(name: str) -> Runner:
    return ALL[name].make_runner(num_slots=4, slot_length=SLOT)


@pytest.fixture(
    scope="module",
    params=[pytest.param(case, marks=pytest.mark.slow if case.slow else ()) for case in ALL.values()],
    ids=lambda case: case.name,
)
def family(request: pytest.FixtureRequest) -> Family | Wrapper:
    chosen: Family | Wrapper = request.param
    return chosen


def test_logits_equal_those_of_transformers(family: Family | Wrapper) -> None:
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


@pytest.mark.parametrize("drafts", ["none", "wrong", "right", "partly right"])
def test_texts_equal_those_of_transformers(family: Family | Wrapper, drafts: str) -> None:
    _, texts = reference(family.name)
    rounds = Rounds(served(family.name))
    streams = [
        Stream(list(prompt), drafted(text, drafts), owner)
        for owner, (prompt, text) in enumerate(zip(PROMPTS, texts, strict=True))
    ]
    for stream in streams:
        rounds.read(stream, chunk=9)
    while any(len(stream.ids) < len(text) for stream, text in zip(streams, texts, strict=True)):
        unfinished = [stream for stream, text in zip(streams, texts, strict=True) if len(stream.ids) < len(text)]
        rounds.round(unfinished, 0 if drafts == "none" else 4)
    for stream, text in zip(streams, texts, strict=True):
        assert stream.ids[: len(text)] == text
    cache = served(family.name).cache
    assert cache.shape.stretch is None or all(cache.bases[:3]), "no key was given up"


def drafted(text: list[int], drafts: str) -> list[int]:
    """Tokens to draft, by position: those of the text, others, or every third another."""
    wrong = {"none": 10**6, "wrong": 1, "right": 10**6, "partly right": 3}[drafts]
    return [3 + token % 90 if i % wrong == wrong - 1 else token for i, token in enumerate([*text, *tokens(8, 9)])]


def test_prefixes_are_reused_after_rejections_and_evictions(family: Family | Wrapper) -> None:
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


def test_trees(family: Family | Wrapper) -> None:
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


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_strategies(family: Family | Wrapper, strategy: Strategy) -> None:
    """Each strategy's greedy text is transformers' own, with drafts partly right and (where trees are) several."""
    _, texts = reference(family.name)
    several = served(family.name).takes_trees and STRATEGIES[strategy].max_candidates > 1
    found = asyncio.run(decoded(served(family.name), PROMPTS[0], drafted(texts[0], "partly right"), strategy, several))
    assert found == texts[0][: len(found)]
    assert len(found) >= len(PROMPTS[0]) + 20


async def decoded(
    runner: Runner, prompt: list[int], hint: list[int], strategy: Strategy, several: bool, temperature: float = 0.0
) -> list[int]:
    """The prompt and at least 20 tokens, by the jobs that a target worker runs on its loop."""
    slots = SlotCache(runner.num_slots, runner.copy, 0.0, reusable=runner.reusable)
    loop = EngineLoop(runner, slots, max_queue=4, prefill_chunk=16)
    loop.start()
    ids, accepted, drafts = list(prompt), 0, 0
    try:
        while len(ids) < len(prompt) + 20:
            right = hint[len(ids) : len(ids) + 3]
            chains = [right, [right[0], 3, 5], [7]] if several else [right]
            candidates = [
                Candidate(token_ids=chain, q=[TopK(token_ids=[token], logprobs=[0.0]) for token in chain])
                for chain in chains
            ]
            request = VerifyRequest(
                round=0, context=Context(start=0, token_ids=ids, prefix_hash="0" * 16), num_prompt_tokens=len(prompt),
                max_tokens=50, sampling=Sampling(temperature=temperature, seed=5), candidates=candidates,
                strategy=strategy,
            )  # fmt: skip
            answer = await loop.run(
                verify_job(request, list(ids), None, Limits(frozenset(), SLOT), log_all=False), float("inf")
            )
            drafts += answer.num_drafted
            accepted += answer.num_accepted
            ids += answer.token_ids
    finally:
        await asyncio.to_thread(loop.shutdown, 5.0)
    assert temperature or 0 < accepted < drafts
    return ids


def test_drawn_text_does_not_depend_on_drafts(family: Family | Wrapper) -> None:
    runner = served(family.name)
    plain = asyncio.run(decoded(runner, PROMPTS[1], [99] * SLOT, "deterministic", False, 0.8))
    right = asyncio.run(decoded(runner, PROMPTS[1], plain + [3] * 9, "deterministic", False, 0.8))
    alike = len(PROMPTS[1]) + 20
    assert right[:alike] == plain[:alike]


@pytest.mark.usefixtures("bitwise")
def test_bitwise_mode(family: Family | Wrapper) -> None:
    """Held where the page says so: load_runner itself compares the bits of passes of every size. Refused elsewhere."""
    if not served(family.name).takes_trees:
        with pytest.raises(ModelError, match="recurrent layers"):
            family.make_runner(num_slots=2, slot_length=96, batch_invariant=True)
        return
    try:
        runner = family.make_runner(num_slots=2, slot_length=96, batch_invariant=True)
    except BatchInvarianceError as error:
        if "padding does not help experts" in str(error):
            pytest.skip(str(error))  # a processor whose products need padding
        raise
    assert runner.batch_invariant
