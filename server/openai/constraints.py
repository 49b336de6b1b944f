"""What a request demands of the text's form: response_format, structured_outputs, tools that must be called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from pydantic import JsonValue

from protocol.messages import Grammar, GrammarType
from protocol.worker_info import ModelInfo
from server.errors import InvalidRequest
from server.gateway import Gateway
from server.openai.options import ResponseFormat, StructuredOutputs
from server.openai.params import not_yet
from server.reading.grammars import after_reasoning, auto_grammar, call_grammar, call_or, in_final
from server.reading.together import AnswerReading
from server.reading.tools.choice import ToolUse
from server.reading.tools.formats import GENERIC, CallFormat
from server.text import exact_json


@dataclass(frozen=True, slots=True)
class Constraint:
    """A grammar, and the request's field that it comes from.

    `schema` is the field that holds its schema, if it is made of one schema alone. `parts`: the schemas that it is made
    of otherwise, each with its field, to find which of them can't be enforced. `otherwise` replaces a grammar that
    the target can't enforce, if the request did not ask for all of it; `dispensable`: the answer may also go without.
    """

    grammar: Grammar
    param: str
    schema: str = ""
    parts: tuple[tuple[str, Grammar], ...] = ()
    otherwise: Grammar | None = None
    dispensable: bool = False


def constraint(
    format: ResponseFormat | None, structured: StructuredOutputs | None, start: int, target: ModelInfo
) -> Constraint | None:
    """On what follows token `start`. Raises InvalidRequest, or NotSupported if the target has no such grammar."""
    asked = [
        (param, kind, value) for param, kind, value in (_format(format), *_structured(structured)) if kind is not None
    ]
    if not asked:
        return None
    if len(asked) > 1:
        raise InvalidRequest(
            "only one of 'response_format' and the kinds of 'structured_outputs' may be used", param=asked[1][0]
        )
    param, kind, value = asked[0]
    schema = _schema_field(format) if param == "response_format" else param
    grammar = Grammar(type=kind, value=value, start=start)
    return _enforced(Constraint(grammar, param, schema=schema if kind == "json_schema" else ""), target)


def for_chat(
    demanded: Constraint | None, reading: AnswerReading, start: int, special_ids: Mapping[str, int], target: ModelInfo
) -> Constraint | None:
    """The same for an answer that may hold tool calls and a thought, which is free.

    A call that must be made leaves no room for anything else; one that may be made stands instead of what is demanded,
    or where nothing is, amid free text.
    """
    calls, use = reading.calls, reading.use
    if calls is not None and use.mode == "required":
        demanded = Constraint(call_grammar(calls, use, start, special_ids), "tools")
    elif calls is not None and demanded is not None:
        demanded = replace(demanded, grammar=call_or(demanded.grammar, calls, use, special_ids), schema="")
    elif calls is not None:
        demanded = _free_but_for_calls(calls, use, start, special_ids)
        if demanded is not None and demanded.dispensable and "structural_tag" not in target.capabilities.grammar_types:
            return None
    if demanded is None:
        return None
    if calls is not None:
        demanded = replace(demanded, parts=(*demanded.parts, *_parameters(use, start)))
    thought = reading.thought
    if thought is not None and thought.channels and calls is None:
        demanded = replace(demanded, grammar=in_final(demanded.grammar, special_ids))
    if thought is not None:

        def after(grammar: Grammar) -> Grammar:
            return after_reasoning(grammar, thought, reading.start, special_ids)

        otherwise = after(demanded.otherwise) if demanded.otherwise is not None else None
        demanded = replace(demanded, grammar=after(demanded.grammar), otherwise=otherwise)
    return _enforced(demanded, target)


def _parameters(use: ToolUse, start: int) -> Iterator[tuple[str, Grammar]]:
    for function in use.functions:
        value = _dump(function.parameters, function.param)
        yield function.param, Grammar(type="json_schema", value=value, start=start)


def _free_but_for_calls(
    calls: CallFormat, use: ToolUse, start: int, special_ids: Mapping[str, int]
) -> Constraint | None:
    """Strict functions are held to their schemas. In the generic form all are, where the target can: no model knows it
    by heart, and it would be lost in the first key.
    """
    strict = {function.name for function in use.functions if function.strict}
    held = auto_grammar(calls, use, start, special_ids, held=strict)
    if calls.name != GENERIC or held is None:
        return Constraint(held, "tools") if held is not None else None
    every = auto_grammar(calls, use, start, special_ids, held=use.names)
    return Constraint(every or held, "tools", otherwise=held, dispensable=not strict)


async def check(gateway: Gateway, constraint: Constraint | None) -> Constraint | None:
    """Has the target look at the grammar before anything is generated: the constraint that it can enforce.

    Raises InvalidRequest, with its reason.
    """
    if constraint is None:
        return None
    fault = await gateway.backend.grammar_fault(constraint.grammar)
    if fault is None:
        return constraint
    if constraint.otherwise is not None and constraint.otherwise != constraint.grammar:
        return await check(gateway, replace(constraint, grammar=constraint.otherwise, otherwise=None))
    for param, schema in constraint.parts:
        own = await gateway.backend.grammar_fault(schema)
        if own is not None:
            where = f"{param}.{own.place}" if own.place else param
            raise InvalidRequest(f"'{where}': {own.reason}", param=where, code="invalid_grammar")
    param = f"{constraint.schema}.{fault.place}" if constraint.schema and fault.place else constraint.param
    raise InvalidRequest(f"'{param}': {fault.reason}", param=param, code="invalid_grammar")


def _enforced(constraint: Constraint, target: ModelInfo) -> Constraint:
    kind = constraint.grammar.type
    if kind not in target.capabilities.grammar_types:
        raise not_yet(constraint.param, f"the target enforces no {kind}")
    return constraint


def _format(format: ResponseFormat | None) -> tuple[str, GrammarType | None, str]:
    if format is None:
        return "response_format", None, ""
    if format.type == "text":
        for name in ("json_schema", "schema_"):
            if getattr(format, name) is not None:
                param = f"response_format.{name.rstrip('_')}"
                raise InvalidRequest(f"'{param}' does not go with the type text", param=param)
        return "response_format", None, ""
    schema = _schema(format)
    if schema is None:
        return "response_format", "json_object", ""
    return "response_format", "json_schema", _dump(schema, _schema_field(format))


def _schema_field(format: ResponseFormat | None) -> str:
    in_front = format is not None and format.schema_ is not None
    return "response_format.schema" if in_front else "response_format.json_schema.schema"


def _schema(format: ResponseFormat) -> dict[str, JsonValue] | None:
    """The one schema that there is, wherever it stands; None: any object will do."""
    if format.json_schema is not None and (format.schema_ is not None or format.type == "json_object"):
        raise InvalidRequest(
            "'response_format.json_schema' goes with the type json_schema alone, and with no other schema beside it",
            param="response_format.json_schema",
        )
    if format.json_schema is not None:
        return format.json_schema.schema_ or {}
    if format.type == "json_schema" and format.schema_ is None:
        raise InvalidRequest("'response_format.json_schema' is missing", param="response_format.json_schema")
    return format.schema_


def _structured(structured: StructuredOutputs | None) -> list[tuple[str, GrammarType | None, str]]:
    if structured is None:
        return []
    found: list[tuple[str, GrammarType | None, str]] = []
    if structured.json_ is not None:
        schema = structured.json_
        text = _json(schema) if isinstance(schema, str) else _dump(schema, "structured_outputs.json")
        found.append(("structured_outputs.json", "json_schema", text))
    if structured.regex is not None:
        found.append(("structured_outputs.regex", "regex", structured.regex))
    if structured.choice is not None:
        found.append(("structured_outputs.choice", "choice", _dump(structured.choice, "structured_outputs.choice")))
    if structured.grammar is not None:
        found.append(("structured_outputs.grammar", "grammar", structured.grammar))
    if structured.json_object:
        found.append(("structured_outputs.json_object", "json_object", ""))
    if not found:
        raise InvalidRequest("'structured_outputs' asks for nothing", param="structured_outputs")
    return found


def _dump(value: object, param: str) -> str:
    try:
        return exact_json.dumps(value)
    except ValueError as error:
        raise InvalidRequest(f"'{param}' is no schema: {error}", param=param) from None


def _json(text: str) -> str:
    try:
        exact_json.loads(text)
    except ValueError as error:
        param = "structured_outputs.json"
        raise InvalidRequest(f"'{param}' is not valid JSON: {error}", param=param) from None
    return text
