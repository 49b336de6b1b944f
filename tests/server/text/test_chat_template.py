"""Chat templates render as transformers renders them, and within bounds."""

from __future__ import annotations

import time

import pytest

from server.text.chat_template import ChatTemplate, TemplateError, TooSlow

HI = [{"role": "user", "content": "Hi"}]


def render(source: str, **options: object) -> str:
    messages = options.pop("messages", HI)
    return ChatTemplate(source, {"bos_token": "<s>"}).render(messages, **options)  # type: ignore[arg-type]


def test_blocks_leave_no_whitespace() -> None:
    source = (
        "{{ bos_token }}\n{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}end"
    )
    assert render(source) == "<s>\nHi\nend"


def test_variables() -> None:
    assert render(
        "{{ add_generation_prompt }} {{ tools }} {{ enable_thinking }}", variables={"enable_thinking": 5}
    ) == ("True None 5")
    assert render("{% if tools %}x{% endif %}{% if undefined_thing %}y{% endif %}z") == "z"


def test_filters_and_functions() -> None:
    assert render("{{ {'b': '<é>', 'a': [1]} | tojson }}") == '{"b": "<é>", "a": [1]}'
    assert render("{{ {'a': 1} | tojson(indent=2) }}") == '{\n  "a": 1\n}'
    assert render("{{ strftime_now('%Y')|length }}") == "4"
    assert render("{% for n in range(9) %}{% if n == 2 %}{% break %}{% endif %}{{ n }}{% endfor %}") == "01"
    assert render("a{% generation %}{{ messages[0].content }}{% endgeneration %}b") == "aHib"


def test_a_template_may_refuse() -> None:
    with pytest.raises(TemplateError, match="only users"):
        render("{{ raise_exception('only users') }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ 1 / 0 }}",
        "{{ messages[5].content.x }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{% for a in range(99999999) %}{% endfor %}",
        "{{ 'x' * 5 + 5 }}",
    ],
)
def test_a_template_that_fails(source: str) -> None:
    with pytest.raises(TemplateError):
        render(source)


def test_a_template_that_does_not_end() -> None:
    loops = "{% for a in range(90000) %}{% for b in messages[1:] %}{{ a }}{% endfor %}{% endfor %}"
    with pytest.raises(TooSlow, match="too long"):
        render(loops, messages=HI * 9, timeout=0.05)


WRITES_NOTHING = {
    "loops in loops": "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}",
    "a condition that nothing meets": (
        "{% for a in range(90000) %}{% for b in range(90000) if b < 0 %}{% endfor %}{% endfor %}"
    ),
    "a macro that calls itself twice": (
        "{% macro f(n) %}{% if n %}{% set x = f(n - 1) ~ f(n - 1) %}{% endif %}{% endmacro %}{% set x = f(60) %}"
    ),
    "a call of a macro": (
        "{% macro f(n) %}{% if n %}{% set x %}{% call f(n - 1) %}{% endcall %}{{ f(n - 1) }}{% endset %}"
        "{% endif %}{{ caller() if caller else '' }}{% endmacro %}{% set x = f(60) %}"
    ),
    "a recursive loop": (
        "{% set x %}{% for n in [60] recursive %}{% if n %}{{ loop([n - 1, n - 1]) }}{% endif %}{% endfor %}"
        "{% endset %}"
    ),
    "a limit of its own": "{% set seconds_of_computing_end = 1e9 %}{% for a in range(90000) %}"
    "{% for b in range(90000) %}{% endfor %}{% endfor %}",
}


@pytest.mark.parametrize("source", WRITES_NOTHING.values(), ids=list(WRITES_NOTHING))
def test_a_template_that_writes_nothing_and_does_not_end(source: str) -> None:
    for_two = "{% if messages|length > 1 %}" + source + "{% endif %}"
    began = time.thread_time()
    with pytest.raises(TooSlow, match="too long"):
        render(for_two, messages=HI * 2, timeout=0.05)
    assert time.thread_time() - began < 5
    with pytest.raises(ValueError, match=r"over 1 s for a chat of one word"):
        ChatTemplate(source, {})


def test_a_client_cannot_move_the_clock() -> None:
    loops = "{% if messages|length > 1 %}" + WRITES_NOTHING["loops in loops"] + "{% endif %}"
    with pytest.raises(TooSlow):
        render(loops, messages=HI * 2, timeout=0.05, variables={"seconds_of_computing_end": 1e9})


def test_loops_keep_what_jinja_gives_them() -> None:
    source = (
        "{% for m in 'abc' if m != 'b' %}{{ loop.index }}/{{ loop.length }}{{ m }}{{ loop.last }} "
        "{% else %}none{% endfor %}{% for m in [] %}{% else %}none{% endfor %}"
    )
    assert render(source) == "1/2aFalse 2/2cTrue none"


def test_a_broken_template_is_reported_at_once() -> None:
    with pytest.raises(ValueError, match="compiled"):
        ChatTemplate("{% for %}", {})


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}[end]{% endfor %}",
        "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}[end]\n{% endfor %}tail",
    ],
)
def test_continuing_the_final_message(source: str) -> None:
    messages = [*HI, {"role": "assistant", "content": "Well, "}]
    text = render(source, messages=messages, add_generation_prompt=False, continue_final_message=True)
    assert text.endswith("[assistant]Well, ")
    assert messages[-1]["content"] == "Well, "


def test_a_final_message_that_is_left_out() -> None:
    with pytest.raises(TemplateError, match="final message"):
        render("nothing", continue_final_message=True)


PARTS = (
    "{% for m in messages %}{{ m['role'] }}: {% for part in m['content'] or [] %}{% if part['type'] == 'text' %}"
    "{{ part['text'] }}{% endif %}{% endfor %};{% endfor %}"
)


def test_content_reaches_templates_that_only_know_parts() -> None:
    """They would silently write nothing for a string."""
    messages = [*HI, {"role": "assistant", "content": "Hello", "tool_calls": []}, {"role": "user", "content": "Bye"}]
    assert render(PARTS, messages=messages) == "user: Hi;assistant: Hello;user: Bye;"
    assert render(PARTS, messages=messages, continue_final_message=True) == "user: Hi;assistant: Hello;user: Bye"
    assert ChatTemplate(PARTS, {}).takes_instructions(["system"])
    assert render(PARTS, messages=[{"role": "assistant", "content": None}, *HI]).endswith("user: Hi;")


@pytest.mark.parametrize(
    "source",
    [
        "{% if messages[0].content is string %}{{ messages[0].content }}{% else %}parts{% endif %}",
        "{{ messages[0].content }}",
        "{{ raise_exception('never') }}",
        "nothing of it",
    ],
)
def test_other_templates_get_strings(source: str) -> None:
    template = ChatTemplate(source, {})
    assert not template._takes_parts_alone
