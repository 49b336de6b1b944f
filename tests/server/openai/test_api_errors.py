"""Whatever a stranger sends gets a clear answer of OpenAI's shape."""

from __future__ import annotations

from typing import Any

import pytest
from api_doubles import MODEL, Running, ScriptedBackend, Start, error, served_model

HI = [{"role": "user", "content": "Hi"}]
OK = {"model": MODEL, "messages": HI}


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 5.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"seed": 2**63}, "seed"),
        ({"seed": 2**70}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"stop": [str(number) for number in range(17)]}, "stop"),
        ({"logit_bias": {"1": 1, "01": 1}}, "logit_bias"),
        ({"stop": ["a", 5]}, "stop[1]"),
        ({"stop": "x" * 5000}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream": True, "stream_options": {"foo": 1}}, "stream_options.foo"),
        ({"messages": []}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"content": "Hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "robot", "content": "Hi"}]}, "messages[0].role"),
        ({"messages": [5]}, "messages[0]"),
        ({"messages": [{"role": "user", "user": "x"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "x"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "tool", "content": "Hi"}]}, "messages[0].tool_call_id"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"logit_bias": {"²": 1}}, "logit_bias"),
        ({"logit_bias": {"7": 101}}, "logit_bias.7"),
        ({"stop_token_ids": [100_000]}, "stop_token_ids"),
        ({"top_k": -2}, "top_k"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"min_tokens": 9, "max_tokens": 5}, "min_tokens"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"speculative": {"foo": 1}}, "speculative.foo"),
        ({"speculative": {"draft_tokens": 0}}, "speculative.draft_tokens"),
        ({"speculative": {"draft_tokens": 33}}, "speculative.draft_tokens"),
        ({"speculative": {"draft_tokens": "5"}}, "speculative.draft_tokens"),
        ({"speculative": {"draft_tokens": 5, "max_speculation_depth": 4}}, "speculative.draft_tokens"),
        ({"speculative": {"num_candidates": 9}}, "speculative.num_candidates"),
        ({"speculative": {"strategy": "luck"}}, "speculative.strategy"),
        ({"speculative": {"acceptance_threshold": 1.5}}, "speculative.acceptance_threshold"),
        ({"speculative": {"candidate_top_p": 0}}, "speculative.candidate_top_p"),
        ({"speculative": {"draft_model": "nope"}}, "speculative.draft_model"),
        ({"speculative": {"log_decisions": True}}, "speculative.log_decisions"),
        ({"speculative": {"strategy": "probabilistic", "num_candidates": 2}}, "speculative.num_candidates"),
        ({"speculative": "on"}, "speculative"),
        ({"model": 5}, "model"),
        ({"metadata": {"x" * 65: "a"}}, f"metadata.{'x' * 65}"),
    ],
)
def test_a_bad_value_is_named(gateway: Running, changes: dict[str, Any], param: str) -> None:
    assert error(gateway.chat(**changes))["param"] == param


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}}, "response_format"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs.regex"),
        ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
        ({"logprobs": True, "top_logprobs": 6}, "logprobs"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, None),
        ({"best_of": 2}, "best_of"),
        ({"guided_regex": "a"}, "guided_regex"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"chat_template": "x"}, "chat_template"),
        ({"speculative": {"strategy": "greedy"}}, "speculative.strategy"),
        ({"speculative": {"num_candidates": 5}}, "speculative.num_candidates"),
        ({"speculative": {"draft_tokens": 17}}, "speculative.draft_tokens"),
    ],
)
def test_what_cannot_be_honoured_is_refused(gateway: Running, changes: dict[str, Any], param: str | None) -> None:
    found = error(gateway.chat(**changes))
    assert found["code"] == "unsupported_parameter"
    assert param is None or found["param"] == param


def test_an_unknown_model(gateway: Running) -> None:
    assert error(gateway.chat(model="nope"), 404)["code"] == "model_not_found"
    answer = gateway.post("/v1/responses", json={"model": "nope", "input": "Hi"})
    assert error(answer, 404)["code"] == "model_not_found"
    assert error(gateway.get("/v1/models/nope/nope"), 404)["code"] == "model_not_found"
    assert error(gateway.post("/v1/completions", {"model": "nope", "prompt": "x"}), 404)["param"] == "model"


def test_an_unknown_drafter_is_a_wrong_value(gateway: Running) -> None:
    found = error(gateway.chat(speculative={"draft_model": "nope"}), 400)
    assert (found["param"], found["code"]) == ("speculative.draft_model", "model_not_found")


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize("depth", [100, 250, 500, 900])
def test_nested_values_do_no_harm(start: Start, depth: int) -> None:
    running = start(ScriptedBackend(served=served_model(grammar_types=["json_schema"])))
    format = {"type": "json_schema", "json_schema": {"name": "a", "schema": nested(depth)}}
    assert running.chat(response_format=format).status_code in (200, 400)
    assert running.chat(chat_template_kwargs={"x": nested(depth)}).status_code in (200, 400)
    assert running.chat(foo=nested(depth)).status_code == 400
    assert running.chat(speculative=nested(depth)).status_code == 400


@pytest.mark.parametrize("content", ["\x00", "\u2028\ufeff", "😀" * 50, "<|end|>" * 10, "{{ 1/0 }}{% raw %}", " "])
def test_odd_text_is_text(gateway: Running, content: str) -> None:
    assert gateway.chat(messages=[{"role": "user", "content": content}]).status_code == 200


def test_unknown_addresses_and_methods(gateway: Running) -> None:
    assert error(gateway.get("/v1/nope"), 404)["code"] == "not_found"
    found = gateway.get("/v1/chat/completions")
    assert error(found, 405)["code"] == "method_not_allowed"
    assert found.headers["allow"] == "POST"


def test_limits(start: Start) -> None:
    running = start(max_messages=2, max_prompt_tokens=20, max_choices=2, max_stop_strings=1, max_stop_string_chars=3)
    assert error(running.chat(messages=HI * 3))["param"] == "messages"
    assert error(running.chat(messages=[{"role": "user", "content": "x" * 50}]))["code"] == "context_length_exceeded"
    for wanted in (3, 1000):
        refusal = error(running.chat(n=wanted))
        assert (refusal["param"], refusal["message"]) == ("n", "this server gives at most 2 choices a request")
    assert error(running.chat(stop=["a", "b"]))["param"] == "stop"
    assert error(running.chat(stop="abcd"))["param"] == "stop"


def test_before_a_target_is_there(start: Start) -> None:
    running = start(ScriptedBackend(served=None))
    response = running.chat()
    assert error(response, 503)["code"] == "not_ready"
    assert int(response.headers["retry-after"]) > 0
    assert running.get("/v1/models").status_code == 503
    assert running.get("/health").status_code == 200
    assert running.get("/ready").status_code == 503


def test_a_model_without_a_template(start: Start) -> None:
    model = served_model()
    bare = model.tokenizer.model_copy(update={"chat_template": None})
    running = start(ScriptedBackend(served=served_model(tokenizer=bare)))
    found = error(running.chat())
    assert "/v1/completions" in found["message"]
    assert running.post("/v1/completions", {"model": MODEL, "prompt": "the"}).status_code == 200


def test_a_template_that_refuses(start: Start) -> None:
    template = "{% if messages|length > 1 %}{{ raise_exception('one at a time') }}{% endif %}x{{ messages[0].foo.bar }}"
    broken = served_model().tokenizer.model_copy(update={"chat_template": template})
    running = start(ScriptedBackend(served=served_model(tokenizer=broken)))
    assert "one at a time" in error(running.chat(messages=HI * 2))["message"]
    assert error(running.chat())["code"] == "chat_template_error"


def test_a_broken_tokenizer_is_no_crash(start: Start) -> None:
    broken = served_model().tokenizer.model_copy(update={"tokenizer_json": "{}"})
    running = start(ScriptedBackend(served=served_model(tokenizer=broken)))
    assert error(running.chat(), 503)["code"] == "not_ready"
    assert running.get("/ready").status_code == 503
