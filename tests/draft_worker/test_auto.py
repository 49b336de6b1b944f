"""`draft_model: auto` over the wire: who is asked, how drafts are continued, and what is refused."""

from __future__ import annotations

from typing import Any

from basics.names import AUTO
from draft_worker.plans import Costs, DrawSeconds, Proposal, best_plan, extended
from draft_worker.yields import DRAWN, GREEDY, Yields, match_class
from testing.fakes.runner import FakeRunner
from testing.wire import async_test, request
from testing.worker_apps import STOP, drafter, target

CHEAP = [1.0 + 0.01 * count for count in range(33)]
DEAR = [1.0 + 1.0 * count for count in range(33)]
NO_STOP = {"logit_bias": {str(STOP): -100.0}, "temperature": 0.0}
FOLLOWED = [5, 10, 11, 12, 13, 14, 15, 16, 17]
"""A prompt of one token, and an output that has followed its prediction so far."""
REPEATED = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2, 3, 4, 5]


def sources(answer: Any) -> list[str]:
    return [part["source"] for part in answer["parts"]]


@async_test
async def test_a_long_match_is_copied_and_no_match_is_drawn() -> None:
    async with drafter() as worker:
        asked = {"draft_model": AUTO, "verify_seconds": CHEAP[:5], "sampling": NO_STOP}
        answer = await worker.draft(ids=REPEATED, **asked)
        assert (answer["source"], sources(answer)[0]) == ("lookup", "lookup")
        assert answer["candidates"][0]["token_ids"][:4] == [6, 7, 8, 9]
        answer = await worker.draft(ids=[20, 11, 23], session_id="t", **asked)
        assert sources(answer) == ["model"]
        assert answer["planned"] == len(answer["candidates"][0]["token_ids"])


@async_test
async def test_nothing_is_drafted_where_nothing_is_worth_its_rows() -> None:
    async with drafter(lookup=True) as worker:
        answer = await worker.draft(ids=REPEATED, draft_model=AUTO, verify_seconds=DEAR[:5])
        assert (answer["source"], answer["candidates"], answer["planned"]) == (AUTO, [], 0)
        answer = await worker.draft(ids=REPEATED, draft_model=AUTO, round=1)
        assert answer["source"] == "lookup", "without the target's times only tokens count"


@async_test
async def test_a_copy_that_ends_is_continued_by_the_model_with_the_targets_own_noise() -> None:
    """The model draws as if the copy were text: where both are right all of it is accepted."""
    runner = FakeRunner(8)
    async with drafter(runner) as worker, target() as judge:
        predicted = {"prediction": {"token_ids": [*FOLLOWED[1:], 6]}, "num_prompt_tokens": 1}
        answer = await worker.draft(
            ids=FOLLOWED, draft_model=AUTO, verify_seconds=CHEAP[:6], draft_tokens=5, sampling=NO_STOP, **predicted
        )
        drafted = answer["candidates"][0]["token_ids"]
        assert sources(answer)[:2] == ["prediction", "model"]
        assert sum(part["tokens"] for part in answer["parts"]) == len(drafted) == answer["planned"]
        # After the copy, the very tokens that the target goes on with.
        verdict = await judge.verify(
            ids=[*FOLLOWED, drafted[0]],
            candidates=[{"token_ids": drafted[1 : 1 + answer["parts"][1]["tokens"]]}],
            sampling=NO_STOP,
        )
        assert verdict["num_accepted"] == answer["parts"][1]["tokens"]


@async_test
async def test_a_copy_that_ends_is_continued_by_another() -> None:
    """The prediction ends in what the prompt has, and goes on from there."""
    async with drafter(lookup=True) as worker:
        prompt = [11, 12, 13, 14, 15, 16, 17, 20, 21]
        predicted = {"prediction": {"token_ids": [11, 12, 13]}, "num_prompt_tokens": len(prompt)}
        answer = await worker.draft(ids=prompt, draft_model=AUTO, verify_seconds=CHEAP[:7], draft_tokens=6, **predicted)
        assert answer["parts"] == [{"source": "prediction", "tokens": 3}, {"source": "lookup", "tokens": 3}]
        assert answer["candidates"][0]["token_ids"] == [11, 12, 13, 14, 15, 16]
        assert answer["planned"] == 6


@async_test
async def test_a_prediction_is_believed_until_it_is_wrong() -> None:
    expected = list(range(1, 24))
    costs = [1.0 + 0.06 * count for count in range(33)]
    async with drafter(lookup=True) as worker:
        fields = {
            "draft_model": AUTO,
            "verify_seconds": costs,
            "draft_tokens": 32,
            "num_prompt_tokens": 1,
            "max_tokens": 40,
        }
        first = await worker.draft(ids=[25], prediction={"token_ids": expected}, **fields)
        assert first["candidates"][0]["token_ids"] == expected
        wrong = {"ids": [25, 24], "session_id": "another", "prediction": {"token_ids": expected}}
        assert (await worker.draft(**wrong, **fields))["planned"] < 8


@async_test
async def test_a_model_that_is_not_worth_its_time_reads_no_prompts_and_is_seldom_asked() -> None:
    runner = FakeRunner(8)
    async with drafter(runner) as worker:
        fields: dict[str, Any] = {"draft_model": AUTO, "sampling": NO_STOP}
        for number in range(3):
            ids = [20, 11, 23, number]
            answer = await worker.draft(ids=ids, session_id=f"{number}", verify_seconds=CHEAP[:5], **fields)
            assert sources(answer) == ["model"]
        read = {"ids": [21, 12, 24, 2, 8], "draft_tokens": 0, "sampling": NO_STOP}
        passes = len(runner.passes)
        await worker.draft(**read, session_id="a")
        assert len(runner.passes) == passes + 1
        steep = [1e-5 * cost for cost in DEAR[:5]]  # a draft takes longer than the target's tokens
        tried = []
        for number in range(60):
            answer = await worker.draft(
                ids=[20, 11, 23, 9], session_id="d", round=number, verify_seconds=steep, **fields
            )
            tried += [number] if answer["candidates"] else []
        assert tried == [6, 19, 44], "ever more seldom"
        passes = len(runner.passes)
        answer = await worker.draft(**read, session_id="b")
        assert (answer["candidates"], len(runner.passes)) == ([], passes)
        answer = await worker.draft(**read, session_id="c", draft_model="fake")
        assert len(runner.passes) == passes + 1, "who asks for the model by name has it read"
        answer = await worker.draft(ids=[20, 11, 23, 9], session_id="d", round=60, verify_seconds=CHEAP[:5], **fields)
        assert sources(answer) == ["model"], "the target may become slower"


@async_test
async def test_a_model_that_could_not_pay_if_it_were_always_right_reads_nothing_and_draws_once_in_48_asks() -> None:
    runner = FakeRunner(8)
    async with drafter(runner, pass_seconds=0.012) as worker:
        dear = [0.030, 0.054, 0.073, 0.105, 0.128]  # two cores, the 0.5B for the 1.5B
        read = {"ids": [21, 12, 24, 2, 8], "draft_tokens": 0, "sampling": NO_STOP}
        passes = len(runner.passes)
        await worker.draft(**read, session_id="a", verify_seconds=dear)
        assert len(runner.passes) == passes
        drawn = []
        for number in range(60):
            answer = await worker.draft(
                ids=[20, 11, 23, 9],
                session_id="b",
                round=number,
                draft_model=AUTO,
                verify_seconds=dear,
                sampling=NO_STOP,
            )
            drawn += [number] if answer["candidates"] else []
        assert drawn == [48], "or it would never be known that a machine is another one now"
        await worker.draft(**read, session_id="c", verify_seconds=CHEAP[:5])
        assert len(runner.passes) == passes + 2, "a slow target makes it worth trying"


@async_test
async def test_every_token_of_a_mixed_draft_has_the_q_it_was_drawn_from() -> None:
    async with drafter() as worker:
        answer = await worker.draft(
            ids=FOLLOWED,
            num_prompt_tokens=1,
            draft_model=AUTO,
            verify_seconds=CHEAP[:6],
            draft_tokens=5,
            want_q=True,
            sampling={"temperature": 1.0},
            prediction={"token_ids": [*FOLLOWED[1:], 6]},
        )
        assert sources(answer)[:2] == ["prediction", "model"]
        (candidate,) = answer["candidates"]
        assert (candidate["token_ids"][0], candidate["q"][0]) == (6, {"token_ids": [6], "logprobs": [0.0]})
        for token_id, q in zip(candidate["token_ids"], candidate["q"], strict=True):
            assert token_id in q["token_ids"]
        assert len(candidate["q"][1]["token_ids"]) > 1


@async_test
async def test_what_auto_cannot_do_is_refused_by_name() -> None:
    async with drafter(lookup=True) as worker:
        for fields, field in (
            ({"num_candidates": 2}, "num_candidates"),
            ({"verify_seconds": [1.0, 2.0]}, "verify_seconds"),
        ):
            status, body = await worker.post(
                "/v1/draft", request([1, 2], **{"draft_tokens": 4, "draft_model": AUTO, **fields})
            )
            assert (status, body["error"]["field"]) == (400, field)
        status, body = await worker.post("/v1/draft", request([1, 2], draft_tokens=0, verify_seconds=[0.0]))
        assert (status, body["error"]["field"]) == (422, "verify_seconds.0")


@async_test
async def test_a_poor_model_is_tried_where_it_has_read_the_prompt() -> None:
    """Requests end long before one of them has asked often; it is their number that makes a try due."""
    runner = FakeRunner(8)
    steep = [1e-5 * cost for cost in DEAR[:5]]
    async with drafter(runner) as worker:
        fields: dict[str, Any] = {"draft_model": AUTO, "sampling": NO_STOP}
        for number in range(3):
            await worker.draft(ids=[20, 11, 23, number], session_id=f"{number}", verify_seconds=CHEAP[:5], **fields)
        drawn, read = [], []
        for number in range(40):
            ids = [20, 11, 23] * 20 + [number % 3]
            passes = len(runner.passes)
            await worker.draft(ids=ids, draft_tokens=0, sampling=NO_STOP, session_id=f"chat-{number}")
            read += [number] if len(runner.passes) > passes else []
            answer = await worker.draft(ids=ids, round=1, session_id=f"chat-{number}", verify_seconds=steep, **fields)
            drawn += [number] if sources(answer) == ["model"] else []
        assert drawn == [6, 19]
        assert set(read) <= {0, *drawn}, "prompts are read for that alone"


def test_what_a_draw_took_long_ago_gives_way_to_what_it_takes_now() -> None:
    draws = DrawSeconds()
    for _ in range(10):
        draws.observe(3, 0.050)
    for _ in range(40):
        draws.rest()
    draws.observe(3, 0.005)
    assert draws.of(3) < 0.010


def test_short_draws_alone_do_not_make_long_ones_dear() -> None:
    draws = DrawSeconds(per_token=0.001)
    for _ in range(20):
        draws.observe(1, 0.004)
    assert 0.006 < draws.of(4) < 0.008


def test_greedy_drafts_say_nothing_of_those_at_a_temperature() -> None:
    yields = Yields(strength=4.0)
    before = yields.chances(("model", DRAWN), 3)
    for _ in range(50):
        yields.observe(("model", GREEDY), [1, 2, 3], [1, 2, 3])
    assert yields.chances(("model", DRAWN), 3) == before


def test_yields_learn_from_what_came_alone() -> None:
    yields = Yields(strength=4.0)
    kind = ("lookup", match_class(8))
    before = yields.chances(kind, 8)
    yields.observe(kind, [1, 2, 3, 4], [])
    assert yields.chances(kind, 8) == before, "nothing has come yet"
    for _ in range(50):
        yields.observe(kind, [1, 2, 3, 4], [1, 2, 9])
    chances = yields.chances(kind, 4)
    assert chances[1] > 0.8
    assert chances[2] < 0.2


def test_a_session_corrects_what_is_known_of_all() -> None:
    everybody = Yields(strength=4.0)
    for _ in range(100):
        everybody.observe(("model", 0), [1], [1])
    session = Yields(strength=6.0, prior=everybody)
    assert session.chances(("model", 0), 1) == everybody.chances(("model", 0), 1)
    for _ in range(40):
        session.observe(("model", 0), [1], [2])
    assert session.chances(("model", 0), 1)[0] < 0.3


def test_the_best_plan_weighs_chances_rows_and_draws() -> None:
    copy = Proposal(("lookup", 3), [1, 2, 3])
    draws = DrawSeconds()
    for count in (1, 2, 4, 8) * 4:
        draws.observe(count, 0.1 * count)
    sure, unsure, drawn = [0.9, 0.85, 0.8], [0.2, 0.1, 0.05], [0.8, 0.64, 0.5]
    cheap = Costs(CHEAP[:7], draws)
    plan = best_plan([(copy, sure)], drawn, cheap)
    assert (plan.copied, plan.drawn > 0) == (3, True), "a copy that the model goes on from"
    plan = best_plan([(copy, unsure)], drawn, cheap)
    assert (plan.copied, plan.drawn > 0) == (0, True)
    plan = best_plan([(copy, unsure)], drawn, Costs(DEAR[:7], draws))
    assert (plan.copied, plan.drawn) == (0, 0)
    assert best_plan([(copy, sure)], drawn, Costs(DEAR[:7], draws), must_draw=True).drawn > 0


def test_a_copy_goes_on_from_the_model_as_far_as_it_is_worth_its_rows() -> None:
    plan = best_plan([], [0.9, 0.8], Costs(CHEAP[:9]))
    assert plan.drawn == 2
    assert extended(plan, 2, [0.9] * 10, Costs(CHEAP[:9])) == 6
    assert extended(plan, 2, [0.01] * 10, Costs(DEAR[:9])) == 0
