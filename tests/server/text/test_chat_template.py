"""Chat templates render as transformers renders them, and within bounds."""

from __future__ import annotations

import pytest

from server.text.chat_template import ChatTemplate, TemplateError

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
    loops = "{% for a in range(90000) %}{% for b in range(90000) %}{{ b }}{% endfor %}{% endfor %}"
    with pytest.raises(TemplateError, match="too long"):
        render(loops, timeout=0.05)


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
