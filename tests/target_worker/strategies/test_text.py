"""With `deterministic`, at a given seed, the text is the same for every γ, N and drafter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from engines.sampling.draw import draw, draw_top2
from engines.sampling.process import process
from engines.sampling.rows import SamplingRow
from target_worker.strategies import STRATEGIES
from target_worker.strategies.drafts import Target, pad_drafts
from target_worker.strategies.verdicts import verdicts
from tests.engines.sampling.helpers import sampling_row

VOCABULARY = 40
LENGTH = 16
PROMPT = (3, 1, 4, 1, 5)
Model = Callable[[Sequence[int]], Tensor]


@cache
def _table(salt: int) -> Tensor:
    return torch.randn(997, VOCABULARY, generator=torch.Generator().manual_seed(salt)) * 2


def target_model(ids: Sequence[int]) -> Tensor:
    """Logits that depend on the last three tokens."""
    a, b, c = ids[-3:]
    return _table(0)[(a * 31 + b * 7 + c) % 997]


def close_model(ids: Sequence[int]) -> Tensor:
    return target_model(ids) + 0.3 * _table(1)[ids[-1]]


def wrong_model(ids: Sequence[int]) -> Tensor:
    return -target_model(ids)


def row_at(ids: Sequence[int], seed: int, parameters: dict[str, Any]) -> SamplingRow:
    return sampling_row(seed=seed, history=tuple(ids), num_prompt_tokens=len(PROMPT), **parameters)


def drafted(
    model: Model, ids: list[int], first: list[int], gamma: int, seed: int, parameters: dict[str, Any]
) -> list[int]:
    chain = [*ids, *first]
    while len(chain) < len(ids) + gamma:
        rows = [row_at(chain, seed, parameters)]
        chain.append(int(draw(process(model(chain)[None], rows), rows)))
    return chain[len(ids) :][:gamma]


def candidates(
    model: Model, ids: list[int], gamma: int, n: int, seed: int, parameters: dict[str, Any]
) -> list[list[int]]:
    """Candidate 0 follows the noise, the others take the runner-up at their own place first."""
    chains = [drafted(model, ids, [], gamma, seed, parameters)]
    for place in range(min(n - 1, gamma)):
        prefix = chains[0][:place]
        rows = [row_at([*ids, *prefix], seed, parameters)]
        second = int(draw_top2(process(model([*ids, *prefix])[None], rows), rows).second)
        if second >= 0:
            chains.append(drafted(model, ids, [*prefix, second], gamma, seed, parameters))
    return chains


def generate(seed: int, parameters: dict[str, Any], model: Model | None, gamma: int, n: int) -> tuple[list[int], int]:
    """The text of LENGTH tokens and how many of them were drafted."""
    ids, accepted = list(PROMPT), 0
    while len(ids) < len(PROMPT) + LENGTH:
        chains = [[]] if model is None else candidates(model, ids, gamma, n, seed, parameters)
        prefixes = [[*ids, *chain[:i]] for chain in chains for i in range(len(chain) + 1)]
        rows = [row_at(prefix, seed, parameters) for prefix in prefixes]
        distribution = process(torch.stack([target_model(prefix) for prefix in prefixes]), rows)
        target = Target(distribution, rows, draw(distribution, rows))
        counter = iter(range(len(rows)))
        drafts = pad_drafts(chains, [[next(counter) for _ in range(len(chain) + 1)] for chain in chains])
        (verdict,) = verdicts(drafts, target, STRATEGIES["deterministic"].verify(drafts, target), [len(chains)])
        ids += verdict.token_ids
        accepted += verdict.num_accepted
    return ids[len(PROMPT) :][:LENGTH], accepted


@pytest.mark.parametrize(
    "parameters",
    [
        {"temperature": 0.0},
        {"temperature": 0.3},
        {"temperature": 0.7, "top_p": 0.9},
        {"temperature": 1.0},
        {"temperature": 1.5, "top_k": 12, "min_p": 0.02},
        {
            "temperature": 0.8,
            "top_p": 0.9,
            "repetition_penalty": 1.3,
            "presence_penalty": 0.4,
            "frequency_penalty": 0.3,
        },
    ],
    ids=str,
)
def test_the_text_does_not_depend_on_speculation(parameters: dict[str, Any]) -> None:
    plain, _ = generate(-7, parameters, None, 0, 1)
    for model in (target_model, close_model, wrong_model):
        for gamma, n in ((1, 1), (3, 1), (3, 3), (8, 1)):
            text, accepted = generate(-7, parameters, model, gamma, n)
            assert text == plain, (gamma, n, model.__name__)
            if model is target_model:
                assert accepted >= LENGTH * gamma // (gamma + 1), "an equal model draws the same tokens"


def test_another_seed_gives_another_text() -> None:
    assert generate(1, {}, None, 0, 1) != generate(2, {}, None, 0, 1)
