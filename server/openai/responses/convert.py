"""From a Responses request to the chat request that it amounts to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import orjson

from server.errors import ApiError, ContextLengthExceeded, InvalidRequest, NotSupported
from server.openai import chat_schema as chat
from server.openai.options import JsonSchemaFormat, ResponseFormat, SamplingOptions
from server.openai.responses import items, schema

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
    """Raises InvalidRequest or NotSupported, in the words of `body`."""
    messages = list(_messages(body))
    if not messages:
        raise InvalidRequest("'input' must not be empty", param="input")
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("'stream_options' is only allowed with 'stream'", param="stream_options")
    logprobs = LOGPROBS in (body.include or ())
    if body.top_logprobs and not logprobs:
        raise InvalidRequest(f"'top_logprobs' needs '{LOGPROBS}' in 'include'", param="top_logprobs")
    if logprobs and body.tools and body.tool_choice != "none":
        raise NotSupported(f"'{LOGPROBS}' is not supported together with 'tools'", param="include")
    choice = body.tool_choice
    return chat.ChatCompletionRequest(
        **{name: getattr(body, name) for name in _SHARED},
        messages=messages,
        max_completion_tokens=body.max_output_tokens,
        logprobs=logprobs or None,
        top_logprobs=body.top_logprobs if logprobs else None,
        response_format=_response_format(body.text),
        tools=_tools(body.tools) or None,
        tool_choice=chat.NamedTool(type="function", function=chat.FunctionName(name=choice.name))
        if isinstance(choice, schema.NamedFunction)
        else choice,
        # Without tools there is nothing that it could be about: OpenAI's clients send it all the same.
        parallel_tool_calls=body.parallel_tool_calls if body.tools else None,
        reasoning_effort=body.reasoning.effort if body.reasoning is not None else None,
        chat_template_kwargs=body.chat_template_kwargs,
    )


@contextmanager
def own_words(body: schema.ResponsesRequest) -> Iterator[None]:
    """Errors about the chat request become errors about `body`, that it was made from."""
    try:
        yield
    except ApiError as error:
        if isinstance(error, ContextLengthExceeded) and len(body.instructions or "") > _size_of_input(body):
            error.param = "instructions"
        for theirs, ours in _OWN_NAMES:
            error.message = error.message.replace(f"'{theirs}", f"'{ours}")
            if error.param is not None and error.param.startswith(theirs):
                error.param = ours
        if error.param is not None and error.param.startswith("tools["):
            error.param = error.param.replace(".function.", ".")
        raise


def _size_of_input(body: schema.ResponsesRequest) -> int:
    """In characters of JSON, which tells what of a prompt that is too long makes it so."""
    return len(body.model_dump_json(include={"input"}, exclude_unset=True))


def _messages(body: schema.ResponsesRequest) -> Iterator[chat.Message]:
    if body.instructions:
        yield chat.InstructionMessage(role="system", content=body.instructions)
    if isinstance(body.input, str):
        yield chat.UserMessage(role="user", content=body.input)
        return
    turn = _Turn()
    for index, item in enumerate(body.input):
        param = f"input[{index}]"
        if isinstance(item, items.OtherItem):
            raise NotSupported(f"'{param}' is of type '{item.type[:64]}', which is not supported", param=param)
        if isinstance(item, items.Reasoning):
            yield from turn.ended()
            turn.thought = "".join(part.text for part in item.content or ()) or None
        elif isinstance(item, items.FunctionCall):
            turn.calls.append(_call(item, param))
        elif isinstance(item, items.Message) and item.role == "assistant":
            if turn.text is not None or turn.calls:
                yield from turn.ended()
            turn.text = _text(item.content, f"{param}.content")
        else:
            yield from turn.ended()
            yield _other(item, param)
    yield from turn.ended()


class _Turn:
    """What the model did in one turn: to a template a thought, a text and calls are one message."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.thought: str | None = None
        self.text: str | None = None
        self.calls: list[chat.ToolCall] = []

    def ended(self) -> Iterable[chat.Message]:
        if self.text is not None or self.calls:
            yield chat.AssistantMessage(
                role="assistant",
                content=self.text,
                reasoning_content=self.thought,
                tool_calls=self.calls or None,
            )
        self._clear()


def _other(item: items.Message | items.FunctionCallOutput, param: str) -> chat.Message:
    if isinstance(item, items.FunctionCallOutput):
        content = _text(item.output, f"{param}.output")
        return chat.ToolMessage(role="tool", content=content, tool_call_id=item.call_id)
    content = _text(item.content, f"{param}.content")
    if item.role == "user":
        return chat.UserMessage(role="user", content=content)
    return chat.InstructionMessage(role="developer" if item.role == "developer" else "system", content=content)


def _text(content: items.Content, param: str) -> str:
    """Parts are joined as those of chat messages are. Raises NotSupported."""
    if isinstance(content, str):
        return content
    pieces: list[str] = []
    for index, part in enumerate(content):
        if isinstance(part, items.OtherPart):
            where = f"{param}[{index}]"
            raise NotSupported(f"'{where}' is of type '{part.type[:64]}': this model reads text only", param=where)
        pieces.append(part.text if isinstance(part, items.TextPart) else part.refusal)
    return "\n".join(pieces)


def _call(item: items.FunctionCall, param: str) -> chat.ToolCall:
    try:
        orjson.loads(item.arguments or "{}")
    except orjson.JSONDecodeError:
        raise InvalidRequest(f"'{param}.arguments' is not JSON", param=f"{param}.arguments") from None
    return chat.ToolCall(id=item.call_id, function=chat.FunctionCall(name=item.name, arguments=item.arguments))


def _tools(tools: list[schema.Tool] | None) -> list[chat.Tool]:
    found = []
    for index, tool in enumerate(tools or ()):
        if isinstance(tool, schema.OtherTool):
            param = f"tools[{index}]"
            raise NotSupported(f"'{param}' is of type '{tool.type[:64]}': only functions are supported", param=param)
        given = tool.model_dump(exclude={"type"}, exclude_unset=True)
        found.append(chat.Tool(type="function", function=chat.FunctionDefinition(**given)))
    return found


def _response_format(text: schema.TextOptions | None) -> ResponseFormat | None:
    if text is None or text.format is None:
        return None
    form = text.format
    if isinstance(form, schema.SchemaFormat):
        named = JsonSchemaFormat(name=form.name, description=form.description, schema=form.schema_, strict=form.strict)
        return ResponseFormat(type="json_schema", json_schema=named)
    return ResponseFormat(type=form.type)
