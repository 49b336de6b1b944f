"""From samples to rows, to a file and back, to a comparison; and the order in which all is asked."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tandem.bench.compare import cautions, changes
from tandem.bench.errors import BenchError
from tandem.bench.options import BenchOptions, WrongOption, also, candidates, draft_tokens, known_drafters, loads, quick
from tandem.bench.plan import groups, turns
from tandem.bench.prompts import Prompt
from tandem.bench.results import Results, read, write
from tandem.bench.samples import Group, Reply, Sample
from tandem.bench.summary import rows
from tandem.bench.variants import HISTORY, Load, Sweep, Variant, variants

PLAIN = Variant()
LOOKUP = Variant(drafter="lookup", draft_tokens=4)
ONE = Load()


def reply(text: str = "abc", tokens: int = 4, seconds: float = 2.0, **changes: object) -> Reply:
    arrivals = tuple(seconds * (number + 1) / tokens for number in range(tokens))
    found = Reply(text, tokens, 10, "length", seconds, arrivals, lossless=True)
    return replace(found, **changes)  # type: ignore[arg-type]


def sample(variant: Variant, prompt: str = "p", of: Reply | None = None, **changes: object) -> Sample:
    return replace(Sample(variant, ONE, prompt, "chat", 0, 1, of or reply()), **changes)  # type: ignore[arg-type]


def test_a_row_has_what_its_samples_say() -> None:
    counts: dict[str, Any] = {
        "num_spec_steps": 2,
        "num_draft_tokens": 8,
        "num_accepted_draft_tokens": 2,
        "acceptance_histogram": [1, 0, 1],
    }
    samples = [
        sample(PLAIN, "p"),
        sample(PLAIN, "q"),
        sample(LOOKUP, "p", reply(seconds=1.0, speculation=counts), right=True),
        sample(LOOKUP, "q", reply("abX", seconds=2.0), right=False),
        sample(LOOKUP, "r", reply()),
        Sample(LOOKUP, ONE, "s", "chat", 0, 1, None, "HTTP 500"),
    ]
    plain, lookup = rows(samples, [Group(PLAIN, ONE, 4.0, 8), Group(LOOKUP, ONE, 2.0, 8), Group(LOOKUP, ONE, 3.0, 4)])
    assert (plain.tokens_per_second, lookup.tokens_per_second) == (2.0, 12 / 5)
    assert lookup.speed_up.value == pytest.approx((4 / 8) / (3 / 8)), "of p and q alone: plain decoding has no r"
    assert lookup.extremes == (pytest.approx(1.0), pytest.approx(2.0))
    assert (lookup.same, lookup.compared) == (1, 2)
    assert (lookup.requests, lookup.failures) == (4, 1)
    assert (lookup.right, lookup.judged) == (1, 2)
    assert lookup.acceptance.by_position == [0.5, 0.5]
    assert plain.ttft[0] == pytest.approx(0.5)
    assert plain.itl[2] == pytest.approx(0.5)
    assert plain.tpot == pytest.approx(0.5)


def test_texts_are_compared_where_they_are_to_be_equal() -> None:
    warm = Variant(temperature=0.7)
    sampled = replace(LOOKUP, temperature=0.7)
    rejection = replace(sampled, strategy="probabilistic")
    loose = replace(LOOKUP, strategy="threshold")
    cold_rejection = replace(LOOKUP, strategy="probabilistic")
    other = Variant(server="other", temperature=0.7)
    samples = [sample(PLAIN), sample(warm)]
    samples += [sample(way) for way in (sampled, rejection, loose, cold_rejection, other)]
    samples[4] = replace(samples[4], reply=reply(lossless=False))
    samples[6] = replace(samples[6], reply=reply(lossless=None))
    found = {row.variant: row.compared for row in rows(samples, [])}
    assert found == {PLAIN: 1, warm: 1, sampled: 1, rejection: 0, loose: 0, cold_rejection: 1, other: 0}


def test_only_one_load_and_temperature_is_the_base() -> None:
    eight = Load(8)
    samples = [sample(PLAIN), sample(LOOKUP, load=eight), sample(replace(LOOKUP, temperature=1.0))]
    assert all(math.isnan(row.speed_up.value) for row in rows(samples, []) if not row.variant.is_plain)


def results(*samples: Sample) -> Results:
    about = {"machine": {"cores": 2}, "server": {"model": "m"}, "options": {"seed": 1}}
    return Results(about, True, list(samples), [Group(s.variant, s.load, 1.0, 4) for s in samples])


def test_a_file_keeps_every_sample(tmp_path: Path) -> None:
    failed = Sample(LOOKUP, Load(rate=0.5), "q", "chat", 1, 2, None, "HTTP 500: no", None)
    kept = results(sample(PLAIN), sample(replace(LOOKUP, candidates=2, strategy="threshold"), right=True), failed)
    write(tmp_path / "sub" / "a.json", kept, rows(kept.samples, kept.groups))
    assert read(tmp_path / "sub" / "a.json") == kept
    json.loads((tmp_path / "sub" / "a.json").read_text(), parse_constant=pytest.fail)
    assert [path.name for path in (tmp_path / "sub").iterdir()] == ["a.json"]


@pytest.mark.parametrize("text", ["", "[]", "{}", "7", '{"format": 1, "samples": [{}], "groups": []}'])
def test_another_file_is_no_result(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(BenchError, match=r"a\.json: no"):
        read(path)
    path.write_text('{"format": 2}')
    with pytest.raises(BenchError, match="format 2"):
        read(path)


def test_two_runs_are_compared_on_what_both_asked() -> None:
    first = results(sample(PLAIN, "p", reply(seconds=4.0)), sample(PLAIN, "q", reply(seconds=1.0)), sample(LOOKUP))
    second = results(sample(PLAIN, "p", reply("other", seconds=1.0)), sample(PLAIN, "r", reply(seconds=9.0)))
    (change,) = changes(first, second)
    assert change.first.variant == PLAIN
    assert change.ratio.value == pytest.approx(4.0), "above 1: the second is faster"
    assert (change.same, change.compared) == (0, 1)


def test_what_makes_two_runs_differ_is_said() -> None:
    a = {"machine": {"cores": 2}, "server": {"model": "m"}, "options": {"seed": 1, "max_tokens": 8}}
    b = {"machine": {"cores": 4}, "server": {"model": "m"}, "options": {"seed": 1, "max_tokens": 9}}
    assert cautions(a, a) == []
    assert cautions(a, b) == ["machine: cores differs: 2 and 4", "max_tokens differs: 8 and 9"]


PROMPTS = [Prompt(f"p/{number}", "p", ("Hi",)) for number in range(5)]


def test_every_way_meets_every_prompt_and_none_is_always_first() -> None:
    ways = variants(Sweep(["lookup", "auto"]))
    order = list(turns(ways, [ONE], PROMPTS, 2, seed=1))
    assert len(order) == 2 * 5 * 3
    asked = {(turn.variant, turn.asks[0].prompt.id, turn.asks[0].seed) for turn in order}
    assert len(asked) == len(order)
    in_turn = [order[place : place + 3] for place in range(0, len(order), 3)]
    assert all(
        {turn.variant for turn in some} == set(ways) and len({turn.asks for turn in some}) == 1 for some in in_turn
    )
    assert {some[0].variant for some in in_turn} == set(ways)


def test_a_group_keeps_a_concurrency_busy() -> None:
    for concurrency in (1, 2, 3, 4, 8):
        found = groups(PROMPTS, Load(concurrency), 0, seed=1)
        asks = [ask for group in found for ask in group]
        assert len(set(asks)) == len(asks), "no question twice"
        assert {ask.prompt for ask in asks} == set(PROMPTS)
        assert all(len(group) >= concurrency for group in found)
        assert len(asks) == max(5, 2 * concurrency if concurrency > 1 else 1)


def test_a_rate_comes_as_often_as_it_says() -> None:
    many = PROMPTS * 400
    (asks,) = groups(many, Load(rate=4.0), 0, seed=1)
    assert asks[0].at == 0.0
    assert len(asks) / asks[-1].at == pytest.approx(4.0, rel=0.1)
    assert groups(many, Load(rate=4.0), 0, seed=1) == [asks]
    assert groups(many, Load(rate=4.0), 1, seed=1) != [asks]


def test_a_sweep_is_every_combination() -> None:
    found = variants(Sweep(["lookup", "auto", HISTORY], (None, 2), (1, 3), (None, "threshold"), (0.0, 1.0)), ["vllm"])
    assert len(found) == 2 * (1 + 2 * 2 * 2 + 2 * 2 + 1)
    assert len({(way.name, way.temperature) for way in found}) == len(found)
    assert PLAIN.speculative() == {"enabled": False}
    assert Variant(drafter="auto").speculative() == {"draft_model": "auto"}
    assert Variant(drafter=HISTORY).speculative() == {"draft_model": "auto"}
    assert Variant(drafter="m", draft_tokens=4, candidates=2, strategy="threshold").speculative() == {
        "draft_model": "m",
        "draft_tokens": 4,
        "adaptive_speculation": False,
        "num_candidates": 2,
        "strategy": "threshold",
    }


def test_options_are_read_or_refused_by_name() -> None:
    assert draft_tokens("adaptive, 2,2,8") == [None, 2, 8]
    assert loads("1,4", "0.5") == [Load(1), Load(4), Load(rate=0.5)]
    assert loads(None, "2") == [Load(rate=2.0)]
    assert loads(None, None) == [ONE]
    assert also(["a=http://x:1/v1"]) == {"a": "http://x:1/v1"}
    for wrong in (
        lambda: draft_tokens("33"),
        lambda: candidates("0"),
        lambda: loads("1000", None),
        lambda: loads(None, "nan"),
        lambda: also(["http://x"]),
        lambda: also(["tandem=http://x"]),
    ):
        with pytest.raises(WrongOption, match=r"^--"):
            wrong()


def test_a_quick_run_keeps_what_was_given() -> None:
    wanted = BenchOptions(max_tokens=7, loads=[Load(9)])
    found = quick(wanted, {"quick", "max_tokens", "concurrency"})
    assert found.quick
    assert (found.max_tokens, found.loads) == (7, [Load(9)])
    assert found.limit is not None, "what was not given is made small"


def test_drafters_are_those_of_the_server() -> None:
    card = {"drafters": ["auto", "lookup"]}
    assert known_drafters(card, None) == ["auto", "lookup"]
    assert known_drafters(card, [HISTORY]) == [HISTORY]
    with pytest.raises(WrongOption, match="'m'; it has: auto, lookup, history"):
        known_drafters(card, ["m"])
    with pytest.raises(WrongOption, match="none"):
        known_drafters({}, [HISTORY])
