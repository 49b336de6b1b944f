"""`speculative.report_rounds`: which tokens were drafted, said with the text they brought."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import hypothesis.strategies as st
import pytest
from api_doubles import END, MODEL, TOKENIZER, Running, ScriptedBackend, Start, make_round
from hypothesis import given, settings
from test_api_tools import ADD, NOOP, THINK_TEMPLATE, TOOL_TEMPLATE, TWO, model

from server.backend import GenerationRequest, Round

HELD = "a € 😀 ✓ dog sto stop"
"""Characters of several tokens, and beginnings of the stop string `stop!`."""


class Rounds:
    """A script: `text` in rounds of these (tokens, draft tokens, sources)."""

    def __init__(self, text: str, plan: list[tuple[int, int]], parts: bool = False) -> None:
        self.ids = [*TOKENIZER.encode(text).ids, END]
        self.rounds: list[Round] = []
        start = 0
        while start < len(self.ids):
            size, drafted = plan[len(self.rounds) % len(plan)]
            ids = self.ids[start : start + size]
            start += size
            accepted = 0 if drafted == 0 else min(drafted, max(len(ids) - 1, 0))
            self.rounds.append(
                make_round(
                    ids,
                    num_drafted=drafted,
                    num_accepted=accepted,
                    source="lookup" if drafted else None,
                    parts=(("history", 1), ("model", drafted - 1)) if parts and drafted > 1 else (),
                    num_candidates=min(drafted, 1),
                    stop_reason="stop_token" if start >= len(self.ids) else None,
                    stop_token_id=END if start >= len(self.ids) else None,
                )
            )

    async def __call__(self, request: GenerationRequest) -> AsyncGenerator[Round, None]:
        for one in self.rounds:
            yield one


def chunks_of(running: Running, path: str, **body: Any) -> list[dict[str, Any]]:
    answer = running.post(path, {"model": MODEL, "stream": True, "max_tokens": 200, **body})
    assert answer.status_code == 200, answer.text
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def reported(chunks: list[dict[str, Any]], index: int = 0) -> list[dict[str, Any]]:
    own = [chunk for chunk in chunks if chunk["choices"] and chunk["choices"][0]["index"] == index]
    return [one for chunk in own for one in chunk.get("tandem", {}).get("rounds", ())]


def text_of(choice: dict[str, Any]) -> str:
    """Of a chunk's choice: content, thought or arguments, of which a chunk has one."""
    delta = choice.get("delta", {})
    calls = delta.get("tool_calls") or ()
    texts = [choice.get("text"), delta.get("content"), delta.get("reasoning_content")]
    texts += [call["function"].get("arguments") for call in calls]
    return "".join(text for text in texts if text)


def check(chunks: list[dict[str, Any]], rounds: list[Round], kept: int) -> None:
    """Each chunk's pieces are its text; every round is told once, in order; counts are those of the usage."""
    for chunk in chunks:
        for choice in chunk["choices"]:
            pieces = [piece for one in chunk.get("tandem", {}).get("rounds", ()) for piece in one["pieces"]]
            assert "".join(piece["text"] for piece in pieces) == text_of(choice)
    told = [one for one in reported(chunks) if "tokens" in one]
    assert [one["round"] for one in told] == list(range(len(told)))
    origins: dict[tuple[int, int], dict[str, Any]] = {}
    for one in told:
        done = rounds[one["round"]]
        assert (one["draft_tokens"], one["num_candidates"]) == (done.num_drafted, done.num_candidates)
        assert one["timings"]["verify_forward_ms"] == 2.0
        for place, token in enumerate(one["tokens"]):
            origins[one["round"], place] = token
            own = "plain" if not done.num_drafted else "bonus" if done.num_accepted == done.num_drafted else "target"
            assert token["origin"] == ("draft" if place < done.num_accepted else own)
            assert ("source" in token) == (token["origin"] == "draft")
    for one in reported(chunks):
        for piece in one["pieces"]:
            named = {key: piece[key] for key in ("origin", "source") if key in piece}
            assert named == origins[one["round"], piece["token"]]
    usage = next(chunk["usage"] for chunk in reversed(chunks) if chunk.get("usage"))
    details = usage["completion_tokens_details"]
    counted = [token["origin"] for token in origins.values()]
    assert len(counted) == usage["completion_tokens"] == kept
    assert counted.count("draft") == details["accepted_prediction_tokens"]
    drafted = sum(one["draft_tokens"] for one in told)
    assert drafted == details["accepted_prediction_tokens"] + details["rejected_prediction_tokens"]


def pieces_by_token(chunks: list[dict[str, Any]]) -> dict[tuple[int, int], str]:
    found: dict[tuple[int, int], str] = {}
    for one in reported(chunks):
        for piece in one["pieces"]:
            key = one["round"], piece["token"]
            found[key] = found.get(key, "") + piece["text"]
    return found


def own_texts(rounds: list[Round]) -> dict[tuple[int, int], str]:
    """What each token adds to the text, a character going to the token that completes it: worked out anew."""
    places = [(number, place) for number, one in enumerate(rounds) for place in range(len(one.token_ids))]
    ids = [token_id for one in rounds for token_id in one.token_ids]
    texts: dict[tuple[int, int], str] = {}
    before = ""
    for count, place in enumerate(places, start=1):
        now = TOKENIZER.decode(ids[:count]).rstrip("\ufffd")
        texts[place] = now[len(before) :]
        before = now
    return {place: text for place, text in texts.items() if text}


PLANS = st.lists(st.tuples(st.integers(1, 6), st.sampled_from([0, 1, 2, 4, 9])), min_size=1, max_size=5)
ASK: dict[str, Any] = {"speculative": {"report_rounds": True}, "stream_options": {"include_usage": True}}


@settings(max_examples=30, deadline=None)
@given(plan=PLANS, chat=st.booleans(), parts=st.booleans())
def test_each_character_is_its_tokens(gateway: Running, plan: list[tuple[int, int]], chat: bool, parts: bool) -> None:
    script = Rounds(HELD, plan, parts)
    gateway.backend.script = script
    path = "/v1/chat/completions" if chat else "/v1/completions"
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]} if chat else {"prompt": "Hi"}
    try:
        chunks = chunks_of(gateway, path, stop=["stop!", "dog sto!"], **asked, **ASK)
        without = chunks_of(gateway, path, stop=["stop!", "dog sto!"], **asked)
    finally:
        gateway.backend.script = None
    check(chunks, script.rounds, len(script.ids))
    assert pieces_by_token(chunks) == own_texts(script.rounds)
    assert all("rounds" not in chunk.get("tandem", {}) for chunk in without)
    texts = ["".join(text_of(choice) for chunk in run for choice in chunk["choices"]) for run in (chunks, without)]
    assert texts == [HELD, HELD]


def test_a_draft_of_two_drafters_names_each(gateway: Running) -> None:
    gateway.backend.script = Rounds("the quick brown fox jumps", [(3, 2), (2, 3)], parts=True)
    try:
        chunks = chunks_of(gateway, "/v1/completions", prompt="Hi", **ASK)
    finally:
        gateway.backend.script = None
    first, second, *_ = [one["tokens"] for one in reported(chunks) if "tokens" in one]
    assert first == [
        {"origin": "draft", "source": "history"},
        {"origin": "draft", "source": "model"},
        {"origin": "bonus"},
    ]
    assert second == [{"origin": "draft", "source": "history"}, {"origin": "target"}]


@pytest.mark.parametrize("chat", [True, False])
def test_tokens_after_a_stop_string_are_not_told(gateway: Running, chat: bool) -> None:
    script = Rounds("the quick brown fox jumps", [(5, 8)])
    gateway.backend.script = script
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]} if chat else {"prompt": "Hi"}
    try:
        chunks = chunks_of(
            gateway, "/v1/chat/completions" if chat else "/v1/completions", stop=["n fo"], **asked, **ASK
        )
    finally:
        gateway.backend.script = None
    ids = script.ids
    kept = next(n for n in range(len(ids)) if "n fo" in TOKENIZER.decode(ids[:n]))
    check(chunks, script.rounds, kept)
    assert "".join(pieces_by_token(chunks).values()) == "the quick brow"


@pytest.mark.parametrize("template", [TOOL_TEMPLATE, THINK_TEMPLATE])
@pytest.mark.parametrize("plan", [[(1, 0)], [(3, 4)], [(4, 3), (1, 2), (2, 0)], [(200, 199)]])
def test_calls_and_thoughts_keep_their_tokens(start: Start, template: str, plan: list[tuple[int, int]]) -> None:
    thought = "hm, <b>\n</think>" if template is THINK_TEMPLATE else ""
    text = thought + "One <<tool\n moment. \n" + TWO.removeprefix("One moment.\n")
    script = Rounds(text, plan)
    running = start(ScriptedBackend(served=model(template, context_length=4096), script=script))
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "tools": [ADD, NOOP]}
    chunks = chunks_of(running, "/v1/chat/completions", **asked, **ASK)
    check(chunks, script.rounds, len(script.ids))
    shown = ["hm, <b>\n"] if thought else []
    shown += ["One <<tool\n moment.", '{"a": 1, "b": 2}', "{}"]
    told = "".join(text_of(choice) for chunk in chunks for choice in chunk["choices"])
    assert told == "".join(shown)
    owners = [place for place, own in own_texts(script.rounds).items() for _ in own]
    expected: dict[tuple[int, int], str] = {}
    start_at = 0
    for part in shown:
        start_at = text.index(part, start_at)
        for place in range(start_at, start_at + len(part)):
            expected[owners[place]] = expected.get(owners[place], "") + text[place]
        start_at += len(part)
    assert pieces_by_token(chunks) == expected


def test_every_choice_reports_its_own(gateway: Running) -> None:
    chunks = chunks_of(gateway, "/v1/completions", prompt="Hi", n=3, **ASK)
    for index in range(3):
        text = "".join(piece["text"] for one in reported(chunks, index) for piece in one["pieces"])
        assert text == gateway.backend.text
        assert [one["round"] for one in reported(chunks, index) if "tokens" in one][:2] == [0, 1]


def test_the_last_chunk_has_both(gateway: Running) -> None:
    chunks = chunks_of(gateway, "/v1/completions", prompt="Hi", speculative={"report_rounds": True}, seed=3)
    assert chunks[-1]["tandem"].keys() == {"strategy", "lossless", "seed", "rounds"}
    assert all(chunk["tandem"].keys() == {"rounds"} for chunk in chunks[:-1])


def test_without_a_stream_it_changes_nothing_and_responses_refuse_it(gateway: Running) -> None:
    answer = gateway.chat(speculative={"report_rounds": True}).json()
    assert "rounds" not in answer["tandem"]
    body = {"model": MODEL, "input": "Hi", "speculative": {"report_rounds": True}}
    assert gateway.post("/v1/responses", body).status_code == 200
    refused = gateway.post("/v1/responses", {**body, "stream": True})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "speculative.report_rounds")
    assert gateway.chat(speculative={"report_rounds": "yes"}).status_code == 400


def test_the_schema_is_published(gateway: Running) -> None:
    document = gateway.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    assert schemas["ReportedRound"]["properties"].keys() >= {"round", "tokens", "pieces", "timings"}
    assert "report_rounds" in schemas["SpeculativeOptions"]["properties"]
    chat = document["paths"]["/v1/chat/completions"]["post"]["responses"]["200"]["content"]["text/event-stream"]
    assert "ChatCompletionChunk" in chat["schema"]["description"]
