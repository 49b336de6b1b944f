"""A draft worker with chains drafts what one without does, several sessions at a time, round after round."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from config.workers import DraftWorkerConfig
from draft_worker import lookahead
from draft_worker.app import create_app
from draft_worker.outcomes import BONUS, Ahead, Guess
from draft_worker.runtime.engine import LoopDrafter
from engines.runtime.rows import Row
from engines.runtime.runner import ChainRow
from engines.torch.chains import ChainRunner
from testing.tiny_models import make_tiny_model
from testing.wire import pause, request
from testing.worker_apps import running
from tests.draft_worker.looking_ahead import give_time

SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 5},
    {"temperature": 0.7, "top_p": 0.9, "seed": -8},
    {"temperature": 1.3, "top_k": 12, "min_p": 0.02, "ignore_eos": True},
    {"temperature": 0.9, "presence_penalty": 0.8},
    {"temperature": 0.0, "ignore_eos": True},
]
MORE: list[dict[str, Any]] = [{}, {"draft_tokens": 9}, {"want_q": True}, {}, {}, {"num_candidates": 3}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "draft", "qwen2")


def products_ignore_rows() -> bool:
    """Whether the same row has the same bits alone and among five others, as with MKL on AVX-512 of Intel's."""
    values = torch.randn(6, 64, generator=torch.Generator().manual_seed(0))
    layer = torch.nn.Linear(64, 64)
    with torch.no_grad():
        return torch.equal(layer(values[:1]), layer(values)[:1])


async def rounds(model: Path, chains: Literal["on", "off"], sessions: Sequence[int], count: int) -> list[Any]:
    """What is drafted in each round for each session, of which a part is kept and something else follows."""
    config = DraftWorkerConfig(
        model=str(model), device="cpu", dtype="float32", threads=1, context_length=128, slots=6, chains=chains
    )
    kept = random.Random(3)
    texts = [[kept.randrange(3, 380) for _ in range(4 + 11 * session)] for session in sessions]
    held = [0] * len(texts)
    told = []
    async with running(create_app(config)) as client:
        for number in range(count):
            asked = [
                request(
                    list(ids), held[place], sampling=SAMPLINGS[session], session_id=f"s{session}", round=number,
                    deadline_ms=240_000, **{"draft_tokens": 5, **MORE[session]},
                )
                for place, (session, ids) in enumerate(zip(sessions, texts, strict=True))
            ]  # fmt: skip
            answers = await asyncio.gather(*(client.post("/v1/draft", json=one) for one in asked))
            assert [answer.status_code for answer in answers] == [200] * len(asked)
            drafts = [answer.json()["candidates"] for answer in answers]
            told.append(drafts)
            for place, candidates in enumerate(drafts):
                drafted = candidates[0]["token_ids"]
                accepted = kept.randint(0, len(drafted))
                held[place] = len(texts[place]) + accepted
                texts[place] += [*drafted[:accepted], kept.randrange(3, 380)]
    return told


def chain_lengths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each chain brings, from now on."""
    lengths: list[int] = []
    run = ChainRunner.run

    def counted(self: ChainRunner, chains: Sequence[ChainRow]) -> list[list[int]]:
        found = run(self, chains)
        lengths.extend(map(len, found))
        return found

    monkeypatch.setattr(ChainRunner, "run", counted)
    return lengths


@pytest.mark.parametrize("sessions", [[0], [1], [2, 3], [0, 1, 2, 3, 4, 5]], ids=str)
def test_chains_draft_what_single_steps_draft(
    model: Path, monkeypatch: pytest.MonkeyPatch, sessions: list[int]
) -> None:
    if len(sessions) > 2 and not products_ignore_rows():
        pytest.skip("on this processor a product's bits depend on the number of rows, which chains do not pad")
    lengths = chain_lengths(monkeypatch)
    plain = asyncio.run(rounds(model, "off", sessions, 5))
    assert not lengths
    assert asyncio.run(rounds(model, "on", sessions, 5)) == plain
    assert sum(lengths) > len(lengths) > 0, "chains of several tokens were drawn"


def test_a_context_too_long_for_a_chain_is_read_by_a_static_pass_before_it(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a worker that missed a few rounds would draft token by token, and miss the next ones too."""
    lengths = chain_lengths(monkeypatch)
    read: list[int] = []
    own = ChainRunner.read

    def counted(self: ChainRunner, rows: Sequence[Row]) -> None:
        read.extend(len(row.token_ids) for row in rows)
        own(self, rows)

    monkeypatch.setattr(ChainRunner, "read", counted)
    ((drafted,),) = asyncio.run(rounds(model, "on", [3], 1))
    assert lengths == [len(drafted[0]["token_ids"])] == [5]
    assert read == [4 + 11 * 3 - 1]


PROMPT = [7, 9, 11, 13]


@asynccontextmanager
async def looking_ahead(model: Path, sampling: dict[str, Any]) -> AsyncIterator[Callable[..., Any]]:
    """Of a worker with chains: what asks it for a draft, waits until nothing is being prepared any more, and returns
    the draft's tokens and source."""
    config = DraftWorkerConfig(
        model=str(model), device="cpu", dtype="float32", threads=1, context_length=128, slots=4, chains="on"
    )
    async with running(create_app(config)) as client:

        async def draft(ids: list[int], session: str, held: int = 0, **fields: Any) -> tuple[list[int], str]:
            asked = request(
                ids, held, sampling=sampling | {"ignore_eos": True}, session_id=session,
                num_prompt_tokens=len(PROMPT), max_tokens=64, deadline_ms=240_000, **fields,
            )  # fmt: skip
            answer = (await client.post("/v1/draft", json=asked)).json()
            while "tandem_draft_lookahead_running 0.0" not in (await client.get("/metrics")).text:
                await pause()
            return answer["candidates"][0]["token_ids"], answer["source"]

        yield draft


@pytest.mark.parametrize("sampling", [SAMPLINGS[0], SAMPLINGS[1]], ids=str)
def test_what_is_prepared_by_chains_is_what_is_drawn(
    model: Path, monkeypatch: pytest.MonkeyPatch, sampling: dict[str, Any]
) -> None:
    """The draft's own continuation is the text, so each next draft is foreseen."""

    def alone(outcomes: Sequence[tuple[float, Guess]], planned: int, worth: list[float], *rest: Any) -> list[Guess]:
        return [Guess(BONUS, 0, len(worth))]

    monkeypatch.setattr(lookahead, "laid_out", alone)
    give_time(monkeypatch)
    lengths = chain_lengths(monkeypatch)

    async def scenario() -> None:
        async with looking_ahead(model, sampling) as draft:
            text, _ = await draft(PROMPT, "plain", round=0, draft_tokens=18)
            ids, held = list(PROMPT), 0
            for number in range(3):
                lengths.clear()
                tokens, source = await draft(ids, "ahead", held=held, round=number, draft_tokens=5, lookahead_tokens=5)
                place = len(ids) - len(PROMPT)
                assert tokens == text[place : place + 5]
                assert source == ("cache" if number else "model")
                # The draft itself, unless it was there, and 1 + 5 tokens ahead, at most four at once.
                assert lengths == ([] if number else [5]) + [4, 2]
                held = len(ids) + 5
                ids = [*PROMPT, *text[: place + 6]]

    asyncio.run(scenario())


@pytest.mark.parametrize("abreast", [True, False])
@pytest.mark.parametrize("sampling", [SAMPLINGS[0], SAMPLINGS[1], SAMPLINGS[2]], ids=str)
def test_other_outcomes_are_prepared_by_chains_too(
    model: Path, monkeypatch: pytest.MonkeyPatch, sampling: dict[str, Any], abreast: bool
) -> None:
    """Whatever comes true, what was prepared for it is what is drawn there; and the draft's place has a runner-up.

    `abreast`: all outcomes at once; if not, one after the other, each of which goes back to where it leaves the draft.
    """
    outcomes = [(BONUS, 0), (3, 0), (0, 0), (BONUS, 1), (1, 0)]

    def laid(likely: Sequence[tuple[float, Guess]], planned: int, worth: list[float], *rest: Any) -> list[Guess]:
        return [Guess(place, rank, 5, in_turn=True) for place, rank in outcomes]

    seen: list[Ahead] = []

    def noted(*args: Any, **named: Any) -> Ahead:
        seen.append(Ahead(*args, **named))
        return seen[-1]

    monkeypatch.setattr(lookahead, "laid_out", laid)
    monkeypatch.setattr(lookahead, "Ahead", noted)
    give_time(monkeypatch)
    if not abreast:
        monkeypatch.setattr(LoopDrafter, "abreast", 1)
    lengths = chain_lengths(monkeypatch)

    async def scenario() -> None:
        async with looking_ahead(model, sampling) as draft:
            ids, held = list(PROMPT), 0
            for number, chosen in enumerate([None, (3, 0), (5, 0), (1, 0), (0, 0), (5, 1), (5, 0)]):
                if chosen is not None:
                    branch = [branch for branch in seen[-1].branches if branch.at == chosen[0]][chosen[1]]
                    held, ids = len(ids) + branch.at, [*ids, *seen[-1].drafted[: branch.at], branch.tokens[0]]
                lengths.clear()
                tokens, source = await draft(ids, "ahead", held=held, round=number, draft_tokens=5, lookahead_tokens=5)
                at_once, one_by_one = [4, 4, 4, 4, 2, 1, 1, 1, 4, 1, 1], [4, 2] + 4 * [4, 1]
                assert sorted(lengths[0 if chosen else 1 :]) == sorted(at_once if abreast else one_by_one)
                alone, _ = await draft(ids, "alone", round=number, draft_tokens=5)
                assert tokens == alone
                assert source == ("model" if chosen is None else "cache")
                branches = seen[-1].branches
                assert sorted(branch.at for branch in branches) == [0, 1, 3, 5, 5]
                assert [len(branch.tokens) for branch in branches] == [6] * 5
                assert all(branch.tokens[0] != seen[-1].drafted[branch.at] for branch in branches if branch.at < 5)

    asyncio.run(scenario())


@pytest.mark.parametrize("abreast", [True, False])
def test_what_follows_a_batch_is_prepared_by_the_same_chains_for_all_its_items(
    model: Path, monkeypatch: pytest.MonkeyPatch, abreast: bool
) -> None:
    def laid(outcomes: Sequence[tuple[float, Guess]], planned: int, worth: list[float], *rest: Any) -> list[Guess]:
        return [Guess(place, 0, 5, in_turn=True) for place in (BONUS, 2, 0)]

    together: list[int] = []
    run = ChainRunner.run

    def counted(self: ChainRunner, chains: Sequence[ChainRow]) -> list[list[int]]:
        together.append(len(chains))
        return run(self, chains)

    monkeypatch.setattr(lookahead, "laid_out", laid)
    give_time(monkeypatch)
    monkeypatch.setattr(ChainRunner, "run", counted)
    if not abreast:
        monkeypatch.setattr(LoopDrafter, "abreast", 1)
    config = DraftWorkerConfig(
        model=str(model), device="cpu", dtype="float32", threads=1, context_length=128, slots=4, chains="on"
    )

    async def scenario() -> None:
        async with running(create_app(config)) as client:
            items = [
                request(
                    [*PROMPT, 20 + place], session_id=f"s{place}", sampling={"temperature": 0.0, "ignore_eos": True},
                    draft_tokens=5, lookahead_tokens=5, max_tokens=64, deadline_ms=240_000,
                )
                for place in range(3)
            ]  # fmt: skip
            assert (await client.post("/v1/draft/batch", json={"items": items})).status_code == 200
            while "tandem_draft_lookahead_running 0.0" not in (await client.get("/metrics")).text:
                await pause()
            # The drafts themselves are drawn together, too, unless their calls came one by one.
            ahead = [9, 9] if abreast else [3] * 6
            assert sum(together[: -len(ahead)]) == 3
            assert together[-len(ahead) :] == ahead, "three outcomes of six, five and five tokens, four at once at most"

    asyncio.run(scenario())
