"""Drafters with other tokenizers than the target's, through all three services: the text is the target's own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import pytest

from draft_worker.vocabularies.sample import SAMPLE
from testing.in_process import Stack, running_stack
from testing.patience import PATIENCE, tries
from testing.tiny_models import make_tiny_model
from testing.vocabularies import llama_like, model_that_speaks, permuted, qwen_like

OTHER = ["日本語のテキスト、東京の空。 привет мир, как дела? être où naïveté", "zzz qqq xxx vvv " * 9]
PROMPTS = ["The quick brown fox", "Once upon a time 日本", "def add(a, b):\n    return"]
RIGHT = ("right_ids", "right_text")
DRAFTERS = (*RIGHT, "bytes", "qwen", "disagrees")
BY_PROMPT = ("prompt_target", "prompt_own", "prompt_auto")
"""The target under other ids, by shared text, with a chat template of its own."""


@pytest.fixture(scope="module")
def stack(bitwise: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("models")
    target = make_tiny_model(folder / "target", layers=2, hidden=64, context_length=512)
    same = permuted(target, folder / "permuted")
    tiny: dict[str, Any] = {"layers": 1, "hidden": 32, "context_length": 512}
    bytes_ = model_that_speaks(folder / "bytes", llama_like([SAMPLE], 600), "<s>", "</s>", **tiny)
    qwen = model_that_speaks(folder / "qwen", qwen_like([SAMPLE], 600), None, "<|im_end|>", **tiny)
    disagrees = model_that_speaks(folder / "disagrees", qwen_like(OTHER, 500, ["<|end|>"]), None, "<|end|>", **tiny)
    pools = {
        "right_ids": {"model": str(same)},
        "right_text": {"model": str(same), "other_vocabulary": "shared_text"},
        "bytes": {"model": str(bytes_), "other_vocabulary": "shared_text"},
        "qwen": {"model": str(qwen)},
        "disagrees": {"model": str(disagrees), "other_vocabulary": "shared_text"},
    }
    templated = permuted(target, folder / "templated")
    template = "{% for message in messages %}<|im_start|>{{ message['content'] }}{% endfor %}<|im_start|>"
    (templated / "chat_template.jinja").write_text(template)
    for name in BY_PROMPT:
        own = {"other_vocabulary": "shared_text", "draft_prompt": name.removeprefix("prompt_")}
        pools[name] = {"model": str(templated), **own}
    with running_stack(target, pools=pools) as stack:
        yield stack


def complete(stack: Stack, prompt: str, speculative: dict[str, Any], **fields: Any) -> dict[str, Any]:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 16, "seed": 3, "speculative": speculative, **fields}
    answer = stack.post("/v1/completions", body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def drafted_by(drafter: str, **changes: Any) -> dict[str, Any]:
    """`none`: plain decoding."""
    if drafter == "none":
        return {"enabled": False}
    return {"draft_model": drafter, "draft_tokens": 4, "adaptive_speculation": False, **changes}


def counts(answer: dict[str, Any]) -> tuple[int, int]:
    told = answer["metrics"]["speculative_decoding"]
    return told["num_draft_tokens"], told["num_accepted_draft_tokens"]


def drafted(ask: Callable[[], dict[str, Any]], least: int = 1) -> list[dict[str, Any]]:
    """Asked until an answer has so many draft tokens, which may be late: all the answers."""
    return tries(ask, lambda answer: counts(answer)[0] >= least, f"an answer with {least} draft tokens")


def at_once(asked: Sequence[Callable[[], dict[str, Any]]]) -> list[dict[str, Any]]:
    """The answers to requests that are all under way together."""
    with ThreadPoolExecutor(8) as threads:
        return list(threads.map(lambda ask: ask(), asked))


@pytest.mark.parametrize(("temperature", "candidates"), [(0.0, 1), (0.0, 3), (0.7, 1), (1.3, 3)])
def test_the_text_is_the_targets_whoever_drafts(stack: Stack, temperature: float, candidates: int) -> None:
    cells = [(drafter, prompt) for drafter in ("none", *DRAFTERS) for prompt in PROMPTS]
    asks = [
        partial(complete, stack, prompt, drafted_by(drafter, num_candidates=candidates), temperature=temperature)
        for drafter, prompt in cells
    ]

    def told() -> dict[str, tuple[int, int]]:
        """Of each drafter how many tokens it drafted, and how many of them were accepted."""
        answers = dict(zip(cells, at_once(asks), strict=True))
        for drafter, prompt in cells:
            assert answers[drafter, prompt]["choices"] == answers["none", prompt]["choices"]
        each = {drafter: [counts(answers[drafter, prompt]) for prompt in PROMPTS] for drafter in DRAFTERS}
        return {drafter: (sum(d for d, _ in found), sum(a for _, a in found)) for drafter, found in each.items()}

    def shown(found: dict[str, tuple[int, int]]) -> bool:
        """All drafted; and a random model spells little as a tokenizer would, but some."""
        return all(drafted for drafted, _ in found.values()) and (temperature > 0 or found["right_text"][1] > 0)

    for found in tries(told, shown, "drafts of all"):
        drafted, accepted = found["right_ids"]
        assert accepted == drafted, "the same model, with the noise of the same ids, is right in every place"


def first_and_third_drafted(answers: list[dict[str, Any]]) -> bool:
    return bool(counts(answers[0])[0] and counts(answers[2])[0])


@pytest.mark.parametrize("strategy", ["greedy", "threshold", "probabilistic"])
def test_every_strategy_is_served_or_refused_by_name(stack: Stack, strategy: str) -> None:
    for drafter in DRAFTERS:
        asked = drafted_by(drafter, strategy=strategy)
        if strategy == "probabilistic" and drafter in ("right_text", "bytes", "disagrees"):
            body = {"model": "tiny", "prompt": "x", "max_tokens": 4, "speculative": asked}
            refusal = stack.post("/v1/completions", body)
            assert refusal.status_code == 400
            assert refusal.json()["error"]["param"] == "speculative.strategy"
            continue
        prompt = PROMPTS[0]
        lookup = drafted_by("lookup", strategy=strategy)
        asks = [
            partial(complete, stack, prompt, asked, temperature=0.0),
            partial(complete, stack, prompt, {"enabled": False}, temperature=0.0),
            partial(complete, stack, prompt, asked, temperature=0.9),
            partial(complete, stack, prompt, lookup, temperature=0.9),
        ]
        for cold, plain, warm, other in tries(partial(at_once, asks), first_and_third_drafted, f"drafts by {drafter}"):
            assert cold["choices"] == plain["choices"]
            if strategy == "greedy":  # one text for a seed, whoever drafts
                assert warm["choices"] == other["choices"]


def test_penalties_bias_stops_and_grammars_meet_other_ids(stack: Stack) -> None:
    asked: list[dict[str, Any]] = [
        {"repetition_penalty": 1.3, "presence_penalty": 0.5, "temperature": 0.6},
        {"logit_bias": {"300": 4.0, "20": -100}, "temperature": 0.9},
        {"min_tokens": 10, "stop_token_ids": list(range(200, 320))},
        {"structured_outputs": {"regex": "( (quick|brown|fox|lazy|dog)){4}"}, "temperature": 0.8},
        {"ignore_eos": True, "temperature": 1.5},
    ]
    cells = [(drafter, number) for drafter in ("none", *DRAFTERS) for number in range(len(asked))]
    answers = dict(
        zip(
            cells,
            at_once(
                [
                    partial(complete, stack, PROMPTS[0], drafted_by(drafter), **asked[number])
                    for drafter, number in cells
                ]
            ),
            strict=True,
        )
    )
    for (drafter, number), answer in answers.items():
        assert answer["choices"] == answers["none", number]["choices"], (drafter, asked[number])


def test_the_way_is_told(stack: Stack) -> None:
    detail = httpx.get(f"{stack.url}/ready", timeout=PATIENCE).json()["detail"]
    assert len(re.findall(r"by shared ids \(\d+ tokens", detail)) == 2
    assert len(re.findall(r"by shared text \(\d+ tokens", detail)) == 3 + len(BY_PROMPT)
    ways = [
        line
        for line in httpx.get(f"{stack.url}/metrics", timeout=PATIENCE).text.splitlines()
        if line.startswith("tandem_draft_voc")
    ]
    assert sum('way="shared_text"' in line and line.endswith(" 1.0") for line in ways) == 3 + len(BY_PROMPT)
    assert sum('way="shared_ids"' in line and line.endswith(" 1.0") for line in ways) == 2
    assert sum('way="same"' in line and line.endswith(" 1.0") for line in ways) == 1


def judged(stack: Stack, prompt: str) -> float:
    """Draft tokens that were judged after this prompt, by all draft workers together."""
    workers = re.findall(
        r"draft (http://[\d.:]+\d): ready", httpx.get(f"{stack.url}/ready", timeout=PATIENCE).json()["detail"]
    )
    assert len(workers) > len(DRAFTERS)
    pages = "\n".join(httpx.get(f"{url}/metrics", timeout=PATIENCE).text for url in workers)
    name = f'tandem_draft_prompt_num_draft_tokens_total{{prompt="{prompt}"}} '
    return sum(float(line.removeprefix(name)) for line in pages.splitlines() if line.startswith(name))


@pytest.mark.parametrize("drafter", BY_PROMPT)
def test_a_chat_is_drafted_after_either_prompt(stack: Stack, drafter: str) -> None:
    before = {prompt: judged(stack, prompt) for prompt in ("target", "own")}
    asked: list[dict[str, Any]] = [
        {"temperature": t, "seed": seed, "max_tokens": 24} for t in (0.0, 0.8) for seed in (1, 2)
    ]
    plain = [stack.chat(speculative={"enabled": False}, **fields).json() for fields in asked]
    drafted = [stack.chat(speculative=drafted_by(drafter), **fields).json() for fields in asked]
    texts = [[answer["choices"] for answer in answers] for answers in (plain, drafted)]
    assert texts[0] == texts[1]
    assert all(counts(answer)[0] for answer in drafted)
    more = {prompt: judged(stack, prompt) - count for prompt, count in before.items()}
    used = {"prompt_target": {"target"}, "prompt_own": {"own"}, "prompt_auto": {"target", "own"}}[drafter]
    assert {prompt for prompt, count in more.items() if count} == used, more


def test_each_prompt_is_really_what_the_drafter_reads(stack: Stack) -> None:
    """The drafter is the target's own model: after the target's prompt it says what the target does, after the other
    one what it likes."""
    accepted = dict.fromkeys(("prompt_target", "prompt_own"), 0)
    for drafter in accepted:
        for text in ("Hi", "Once upon a time", "What is the capital of France?", "def add(a, b):"):
            messages = [{"role": "user", "content": text}]
            answer = stack.chat(messages=messages, temperature=0, max_tokens=24, speculative=drafted_by(drafter)).json()
            accepted[drafter] += counts(answer)[1]
    assert accepted["prompt_target"] > 2 * accepted["prompt_own"], accepted
