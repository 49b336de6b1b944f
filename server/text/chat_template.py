"""A model's chat template, rendered as `transformers` renders it but inside bounds.

The conventions (variables, filters, whitespace, the `generation` tag) are those of
https://huggingface.co/docs/transformers/main/chat_templating_writing.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from server.text import exact_json
from server.text.template_clock import LIMIT, OutOfTime, TemplateClock, wound

MAX_RENDERED_CHARS = 64 * 2**20
# For a chat of one word, when the template is compiled.
TRIAL_SECONDS = 1.0
# What a request's chat_template_kwargs may not replace.
RESERVED = frozenset({"messages", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize"})


class TemplateError(ValueError):
    """The template refused these messages, failed on them, or wrote too much."""


class TooSlow(TemplateError):
    """The template took too long."""


class _GenerationTag(Extension):
    """{% generation %}…{% endgeneration %} marks the assistant's words for training; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own escapes for HTML, which no model was trained on.
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return exact_json.spelled(text)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


class ChatTemplate:
    """Compiled once, rendered in threads."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Raises ValueError if `source` is not a template, or takes too long for a chat of one word."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols, TemplateClock]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(wound(environment, source))
        except jinja2.TemplateError as error:
            raise ValueError(f"the model's chat template cannot be compiled: {error}") from error
        self._special_tokens = dict(special_tokens)
        self._source = source
        self._takes_parts_alone = self._try_parts()

    @property
    def source(self) -> str:
        """The template's text."""
        return self._source

    def mentions(self, word: str) -> bool:
        """Whether the template's text has `word` in it: a role it knows, or a variable it reads."""
        return word in self._source

    def names_role(self, role: str) -> bool:
        """Whether the template names this role, in quotes; one that writes any role as given does not count."""
        return f"'{role}'" in self._source or f'"{role}"' in self._source

    def reads_tools_of_messages(self) -> bool:
        """Whether it shows tools that stand in a message, as Phi-4-mini's does, rather than those it is given."""
        return any(spelled in self._source for spelled in ("message['tools']", 'message["tools"]', "message.tools"))

    def takes_instructions(
        self,
        roles: Sequence[str],
        *,
        tools: list[dict[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        timeout: float = 5.0,
    ) -> bool:
        """Whether messages of `roles` (system, developer) in front all reach the prompt: found by trying.

        Many templates know one such message, and refuse or leave out those that follow. Raises TooSlow.
        """
        marks = [secrets.token_hex(16) for _ in roles]
        messages = [{"role": role, "content": mark} for role, mark in zip(roles, marks, strict=True)]
        try:
            text = self.render(
                [*messages, {"role": "user", "content": "Hi"}], tools=tools, variables=variables, timeout=timeout
            )
        except TooSlow:
            raise
        except TemplateError:
            return False
        return all(mark in text for mark in marks)

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
        timeout: float = 5.0,
    ) -> str:
        """The prompt's text. `continue_final_message` ends it inside the last message, which must have text.

        `timeout` is in seconds of computing. Raises TemplateError.
        """
        marker = ""
        if continue_final_message:
            # Templates trim and wrap content in their own ways: a mark that cannot occur shows where it ended.
            marker = f"\u2063{secrets.token_hex(16)}\u2063"
            messages = [*messages[:-1], {**messages[-1], "content": messages[-1]["content"] + marker}]
        text = self._run(
            {
                **self._special_tokens,
                **(variables or {}),
                "messages": [_in_parts(message) for message in messages] if self._takes_parts_alone else messages,
                "tools": tools,
                "documents": None,
                "add_generation_prompt": add_generation_prompt,
            },
            timeout,
        )
        if marker:
            end = text.rfind(marker)
            if end < 0:
                raise TemplateError(
                    "the chat template leaves out the final message, which therefore can't be continued"
                )
            text = text[:end]
        return text

    def _try_parts(self) -> bool:
        """Whether content reaches the prompt as a list of parts but not as a string, found by trying: templates of
        LLaVA and SmolVLM loop over parts, and silently write nothing for a string's characters.

        Raises ValueError if that takes too long.
        """
        mark = secrets.token_hex(16)
        shown = []
        for message in ({"role": "user", "content": mark}, _in_parts({"role": "user", "content": mark})):
            variables = {**self._special_tokens, "messages": [message], "tools": None, "add_generation_prompt": True}
            try:
                shown.append(mark in self._run(variables, TRIAL_SECONDS))
            except TooSlow:
                raise ValueError(
                    f"the model's chat template takes over {TRIAL_SECONDS:g} s for a chat of one word"
                ) from None
            except TemplateError:
                shown.append(False)
        return shown == [False, True]

    def _run(self, variables: Mapping[str, Any], timeout: float) -> str:
        pieces: list[str] = []
        size = 0
        end = time.thread_time() + timeout
        try:
            for piece in self._template.generate({**variables, LIMIT: end}):
                pieces.append(piece)
                size += len(piece)
                if size > MAX_RENDERED_CHARS:
                    raise TemplateError("the rendered chat template is too long")
                if time.thread_time() > end:
                    raise OutOfTime
        except TemplateError:
            raise
        except OutOfTime:
            raise TooSlow("the chat template took too long for these messages") from None
        except Exception as error:  # a template is a program and may raise anything
            raise TemplateError(f"the model's chat template does not take these messages: {error}") from error
        return exact_json.encodable("".join(pieces))


def _in_parts(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    return {**message, "content": [{"type": "text", "text": content}]} if isinstance(content, str) else message
