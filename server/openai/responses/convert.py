"""From a Responses request to the equivalent chat request."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from server.errors import ApiError, ContextLengthExceeded, InvalidRequest, NotSupported
from server.openai import chat_schema as chat
from server.openai import messages, tool_choice
from server.openai.options import JsonSchemaFormat, ResponseFormat, SamplingOptions
from server.openai.responses import items, schema
from server.text import exact_json

logger = logging.getLogger(__name__)

LOGPROBS = "message.output_text.logprobs"
_SHARED = tuple(SamplingOptions.model_fields)
# Longer names first: one is the beginning of another.
_OWN_NAMES = (
    ("response_format.json_schema.schema", "text.format.schema"),
    ("response_format", "text.format"),
    ("max_completion_tokens", "max_output_tokens"),
    ("max_tokens", "max_output_tokens"),
    ("messages", "input"),
    ("tool_choice.function.name", "tool_choice.name"),
    ("reasoning_effort", "reasoning.effort"),
)


def as_chat(body: schema.ResponsesRequest) -> chat.ChatCompletionRequest:
    """Raises InvalidRequest or NotSupported, with the field names of `body`."""
    conversation = list(_messages(body))
    if not conversation:
        raise InvalidRequest("'input' must not be empty", param="input")
    choice, tools = _choice(body.tool_choice), _tools(body.tools)
    logprobs = LOGPROBS in (body.include or ())
    if body.top_logprobs and not logprobs:
        raise InvalidRequest(f"'top_logprobs' needs '{LOGPROBS}' in 'include'", param="top_logprobs")
    if logprobs and tools and choice != "none":
        raise NotSupported(f"'{LOGPROBS}' is not supported together with 'tools'", param="include")
    return chat.ChatCompletionRequest(
        **{name: getattr(body, name) for name in _SHARED},
        messages=conversation,
        max_completion_tokens=body.max_output_tokens,
        logprobs=logprobs or None,
        top_logprobs=body.top_logprobs if logprobs else None,
        response_format=_response_format(body.text),
        tools=tools or None,
        tool_choice=choice,
        parallel_tool_calls=body.parallel_tool_calls,
        reasoning_effort=body.reasoning.effort if body.reasoning is not None else None,
        chat_template_kwargs=body.chat_template_kwargs,
    )


@contextmanager
def own_words(body: schema.ResponsesRequest) -> Iterator[None]:
    """Turns errors about the chat request into errors about `body`, which it was made from."""
    try:
        yield
    except ApiError as error:
        if isinstance(error, ContextLengthExceeded) and len(body.instructions or "") > _size_of_input(body):
            error.param = "instructions"
        for theirs, ours in _OWN_NAMES:
            error.message = error.message.replace(f"'{theirs}", f"'{ours}")
            if error.param is not None and error.param.startswith(theirs):
                within = error.param.removeprefix(theirs) if theirs.endswith(".schema") else ""
                error.param = ours + within
        if error.param is not None and error.param.startswith("tools["):
            error.param = _own_tool(error.param, body.tools or ())
        raise


def _size_of_input(body: schema.ResponsesRequest) -> int:
    """Characters of JSON, to find out which part makes a prompt too long."""
    return len(exact_json.dumps(body.model_dump(include={"input"}, exclude_unset=True)))


def _own_tool(param: str, tools: Sequence[schema.Tool]) -> str:
    """The field of a tool in `tools` for its field in the chat request, which has only the tools that can be called."""
    index, _, rest = param.removeprefix("tools[").partition("]")
    callable_ones = [own for own, tool in enumerate(tools) if isinstance(tool, schema.FunctionTool)]
    return f"tools[{callable_ones[int(index)]}]{rest.replace('.function.', '.')}"


def _messages(body: schema.ResponsesRequest) -> Iterator[messages.Message]:
    if body.instructions:
        yield messages.InstructionMessage(role="system", content=body.instructions)
    if isinstance(body.input, str):
        yield messages.UserMessage(role="user", content=body.input)
        return
    turn = _Turn()
    for index, item in enumerate(body.input):
        param = f"input[{index}]"
        if isinstance(item, items.OtherItem):
            raise NotSupported(f"'{param}' is of type '{item.type[:64]}', which is not supported", param=param)
        if isinstance(item, items.Reasoning):
            if turn.text is not None or turn.calls:
                yield from turn.ended()
            thought = (turn.thought or "") + "".join(part.text for part in item.content or ())
            turn.thought = thought or None
        elif isinstance(item, items.FunctionCallItem):
            turn.calls.append(_call(item))
        elif isinstance(item, items.SentBackMessage):
            if turn.text is not None or turn.calls:
                yield from turn.ended()
            turn.text = _text(item.content, f"{param}.content")
        else:
            yield from turn.ended()
            yield _other(item, param)
    yield from turn.ended()


class _Turn:
    """One turn of the model: to a template, thought, text and calls are one message."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.thought: str | None = None
        self.text: str | None = None
        self.calls: list[messages.ToolCall] = []

    def ended(self) -> Iterable[messages.Message]:
        if self.text is not None or self.calls or self.thought is not None:
            yield messages.AssistantMessage(
                role="assistant",
                content=self.text,
                reasoning_content=self.thought,
                tool_calls=self.calls or None,
            )
        self._clear()


def _other(item: items.InputMessage | items.FunctionCallOutput, param: str) -> messages.Message:
    if isinstance(item, items.FunctionCallOutput):
        content = _text(item.output, f"{param}.output")
        return messages.ToolMessage(role="tool", content=content, tool_call_id=item.call_id)
    content = _text(item.content, f"{param}.content")
    if item.role == "user":
        return messages.UserMessage(role="user", content=content)
    return messages.InstructionMessage(role="developer" if item.role == "developer" else "system", content=content)


def _text(content: items.OptionalContent, param: str) -> str:
    """Joins parts like those of chat messages. Raises NotSupported."""
    if content is None or isinstance(content, str):
        return content or ""
    pieces: list[str] = []
    for index, part in enumerate(content):
        if isinstance(part, items.OtherPart):
            where = f"{param}[{index}]"
            raise NotSupported(f"'{where}' is of type '{part.type[:64]}': this model reads text only", param=where)
        pieces.append(part.text if isinstance(part, messages.TextPart) else part.refusal)
    return "\n".join(pieces)


def _call(item: items.FunctionCallItem) -> messages.ToolCall:
    return messages.ToolCall(id=item.call_id, function=messages.FunctionCall(name=item.name, arguments=item.arguments))


def _choice(choice: schema.ToolChoice | None) -> tool_choice.ToolChoice | None:
    if isinstance(choice, schema.OtherChoice):
        raise NotSupported(
            f"'tool_choice' is of type '{choice.type[:64]}': only functions can be called", param="tool_choice"
        )
    return choice


def _tools(tools: list[schema.Tool] | None) -> list[chat.Tool]:
    """The tools that can be called. Agents always list others too, which are left out of the prompt."""
    found = []
    skipped = []
    for tool in tools or ():
        if isinstance(tool, schema.OtherTool):
            skipped.append(tool.type[:64])
        else:
            given = tool.model_dump(exclude={"type"}, exclude_unset=True)
            found.append(chat.Tool(type="function", function=chat.FunctionDefinition(**given)))
    if skipped:
        logger.info("tools that are no functions are not shown to the model: %s", ascii(sorted(set(skipped))[:20]))
    return found


def _response_format(text: schema.TextOptions | None) -> ResponseFormat | None:
    if text is None or text.format is None:
        return None
    form = text.format
    if isinstance(form, schema.SchemaFormat):
        named = JsonSchemaFormat(name=form.name, description=form.description, schema=form.schema_, strict=form.strict)
        return ResponseFormat(type="json_schema", json_schema=named)
    return ResponseFormat(type=form.type)
