"""JSON schemas as xgrammar can enforce them: everything else is refused, by its path.

xgrammar drops what it cannot express with a warning at most, and the answer would then not be valid. Keywords and their
meaning: JSON Schema 2020-12 (https://json-schema.org/draft/2020-12/json-schema-validation).
"""

from __future__ import annotations

import re
from typing import Any, NoReturn

from engines.grammar.errors import GrammarError
from engines.grammar.limits import check_repetition

MAX_DEPTH = 64
MAX_NODES = 20_000
MAX_COUNT = 10_000  # of repetitions: maxLength, minItems and the like
MAX_PROPERTIES = 512  # of one object; compiling takes quadratic time in them

OF_TYPE = {
    "object": {
        "properties", "required", "additionalProperties", "patternProperties", "propertyNames",
        "minProperties", "maxProperties",
    },
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
}  # fmt: skip
TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
COUNTS = frozenset({"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"})
WHOLE = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")  # each says all there is to say about a value
EMAIL = r"^[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+$"
_CLASS = re.compile(r"\[(?:\\.|[^\]\\])*\]", re.DOTALL)
_ESCAPED_IN_JSON = re.compile(r'["\x00-\x1f]|\\[\\nrtfv0cxu]')
UNSUPPORTED = frozenset(
    {
        "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies", "contains", "minContains",
        "maxContains", "unevaluatedProperties", "unevaluatedItems", "additionalItems", "$dynamicRef", "$recursiveRef",
        "$anchor", "$dynamicAnchor",
    }
)  # fmt: skip


def enforceable(schema: Any) -> Any:
    """The schema as xgrammar is to be given it: equal, but with types written out that keywords imply.

    A keyword of one type without a `type` beside it ("minimum": 5) allows any value of another type in JSON Schema;
    here it means its own type, which is a part of that. Properties that are not listed are refused unless
    `additionalProperties` allows them, as OpenAI's strict mode has it. Raises GrammarError.
    """
    return _Walk(schema).visit(schema, "$", 0)


class _Walk:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._nodes = 0

    def visit(self, schema: Any, path: str, depth: int) -> Any:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            _refuse(path, "must be an object or a boolean")
        self._nodes += 1
        if depth > MAX_DEPTH:
            _refuse(path, f"is nested deeper than {MAX_DEPTH} schemas")
        if self._nodes > MAX_NODES:
            _refuse("$", f"holds more than {MAX_NODES} schemas")
        for keyword in schema:
            if keyword in UNSUPPORTED:
                _refuse(path, f"uses {keyword}, which is not supported")
        if schema.get("uniqueItems") not in (None, False):
            _refuse(path, "uses uniqueItems, which is not supported")

        result = {key: value for key, value in schema.items() if key not in ("$defs", "definitions")}
        for key in ("$defs", "definitions"):
            if key in schema:
                result[key] = self._each(schema[key], f"{path}.{key}", depth)
        whole = [keyword for keyword in WHOLE if keyword in schema]
        if whole:
            self._check_whole(schema, whole, path)
            for keyword in whole:
                if keyword in ("anyOf", "oneOf", "allOf"):
                    result[keyword] = self._list(schema[keyword], f"{path}.{keyword}", depth)
            if "oneOf" in schema and not self._disjoint(schema["oneOf"]):
                _refuse(f"{path}.oneOf", "has branches that are not clearly apart; use anyOf")
            return result
        kinds = _kinds(schema, path)
        if kinds and "type" not in schema:
            result["type"] = kinds[0]
        self._check_counts(schema, path)
        if "object" in kinds:
            self._object(schema, result, path, depth)
        if "array" in kinds:
            self._array(schema, result, path, depth)
        if "string" in kinds and "pattern" in schema:
            if schema.get("minLength") or "maxLength" in schema:
                _refuse(path, "combines pattern with minLength or maxLength, which is not supported")
            result["pattern"] = self._pattern(schema["pattern"], f"{path}.pattern")
        if "string" in kinds and schema.get("format") == "email" and "pattern" not in schema:
            # xgrammar's own has a quoted form whose escapes are not JSON's.
            del result["format"]
            result["pattern"] = EMAIL
        return result

    def _each(self, schemas: Any, path: str, depth: int) -> dict[str, Any]:
        if not isinstance(schemas, dict):
            _refuse(path, "must be an object")
        return {name: self.visit(schema, f"{path}.{name}", depth + 1) for name, schema in schemas.items()}

    def _list(self, schemas: Any, path: str, depth: int) -> list[Any]:
        if not isinstance(schemas, list) or not schemas:
            _refuse(path, "must be a list of schemas")
        return [self.visit(schema, f"{path}[{index}]", depth + 1) for index, schema in enumerate(schemas)]

    def _check_whole(self, schema: dict[str, Any], whole: list[str], path: str) -> None:
        keyword = whole[0]
        beside = [key for kind in OF_TYPE.values() for key in kind if key in schema] + whole[1:]
        if beside:
            _refuse(path, f"combines {keyword} with {beside[0]}, which is not supported")
        if "type" in schema and keyword not in ("enum", "const"):
            _refuse(path, f"combines {keyword} with type, which is not supported")
        if keyword == "$ref":
            self._resolve(schema["$ref"], path)
        if keyword == "allOf" and isinstance(schema["allOf"], list) and len(schema["allOf"]) > 1:
            _refuse(path, "uses allOf with several schemas, which is not supported")
        if keyword in ("enum", "const"):
            values = schema["enum"] if keyword == "enum" else [schema["const"]]
            if not isinstance(values, list) or not values:
                _refuse(f"{path}.enum", "must be a list with at least one value")
            if "type" in schema and not all(set(_types(schema, path)) & _types_of(value) for value in values):
                _refuse(path, f"has values in {keyword} that are not of its type")

    def _check_counts(self, schema: dict[str, Any], path: str) -> None:
        for keyword in COUNTS & schema.keys():
            value = schema[keyword]
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                _refuse(f"{path}.{keyword}", "must be a whole number, 0 or more")
            if value > MAX_COUNT:
                _refuse(f"{path}.{keyword}", f"exceeds {MAX_COUNT}")

    def _object(self, schema: dict[str, Any], result: dict[str, Any], path: str, depth: int) -> None:
        for keyword in ("properties", "patternProperties"):
            if keyword in schema:
                result[keyword] = self._each(schema[keyword], f"{path}.{keyword}", depth)
        if "patternProperties" in result:
            patterns = result["patternProperties"]
            result["patternProperties"] = {
                self._pattern(pattern, f"{path}.patternProperties"): inner for pattern, inner in patterns.items()
            }
        properties = result.get("properties", {})
        if len(properties) > MAX_PROPERTIES:
            _refuse(f"{path}.properties", f"has more than {MAX_PROPERTIES} properties")
        for keyword in ("additionalProperties", "propertyNames"):
            if keyword in schema:
                result[keyword] = self.visit(schema[keyword], f"{path}.{keyword}", depth + 1)
        open_ended = [key for key in ("patternProperties", "propertyNames") if key in schema]
        if len(open_ended) > 1 or (open_ended and ("properties" in schema or "additionalProperties" in schema)):
            _refuse(path, f"combines {open_ended[0]} with other keywords for properties, which is not supported")
        required = schema.get("required", [])
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            _refuse(f"{path}.required", "must be a list of names")
        for name in required:
            if name not in properties:
                _refuse(f"{path}.required", f"names {name!r}, which is not in properties")

    def _array(self, schema: dict[str, Any], result: dict[str, Any], path: str, depth: int) -> None:
        if "items" in schema:
            result["items"] = self.visit(schema["items"], f"{path}.items", depth + 1)
        if "prefixItems" in schema:
            result["prefixItems"] = self._list(schema["prefixItems"], f"{path}.prefixItems", depth)

    def _pattern(self, pattern: Any, path: str) -> str:
        if not isinstance(pattern, str):
            _refuse(path, "must be a string")
        # xgrammar writes a constant part of a pattern as it is, where JSON would have to escape it.
        if _ESCAPED_IN_JSON.search(_CLASS.sub("", pattern)):
            _refuse(path, "spells out characters that JSON escapes (quote, backslash, control), which is not supported")
        try:
            check_repetition(pattern, ebnf=False)
        except GrammarError as error:
            _refuse(path, error.message)
        return _whole(pattern)

    def _resolve(self, reference: Any, path: str) -> Any:
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            _refuse(f"{path}.$ref", f"must point into this schema (#/…), not to {str(reference)[:80]!r}")
        node = self._root
        for part in reference.split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(node, dict) or part not in node:
                _refuse(f"{path}.$ref", f"points to {reference[:80]!r}, which does not exist")
            node = node[part]
        return node

    def _disjoint(self, branches: list[Any]) -> bool:
        """Whether no value fits two branches, as far as types and constant required properties show it."""
        resolved = [self._resolved(branch) for branch in branches]
        pairs = [(a, b) for index, a in enumerate(resolved) for b in resolved[:index]]
        return len(branches) <= 64 and all(_apart(a, b) for a, b in pairs)

    def _resolved(self, schema: Any) -> Any:
        for _ in range(MAX_DEPTH):
            if not isinstance(schema, dict) or "$ref" not in schema:
                break
            schema = self._resolve(schema["$ref"], "$")
        return schema


def _whole(pattern: str) -> str:
    """A pattern that matches a whole string where `pattern` matches a part, which is what JSON Schema means by it.

    With alternatives at the top it stays as it is, and is then met by strings that it matches whole: fewer, all valid.
    """
    depth = 0
    for part in re.findall(r"\\.|[()|]", _CLASS.sub("", pattern), re.DOTALL):
        depth += {"(": 1, ")": -1}.get(part, 0)
        if part == "|" and depth == 0:
            return pattern
    before = "" if pattern.startswith("^") else ".*"
    after = "" if pattern.endswith("$") and not pattern.endswith("\\$") else ".*"
    return before + pattern + after


def _apart(a: Any, b: Any) -> bool:
    if not isinstance(a, dict) or not isinstance(b, dict):
        return False
    values = [_values(schema) for schema in (a, b)]
    if values[0] is not None and values[1] is not None:
        return not any(x == y for x in values[0] for y in values[1])
    types = [_possible_types(schema) for schema in (a, b)]
    if not types[0] & types[1]:
        return True
    if types[0] != {"object"} or types[1] != {"object"}:
        return False
    shared = set(a.get("required", [])) & set(b.get("required", []))
    for name in shared:
        x, y = (_values(schema.get("properties", {}).get(name)) for schema in (a, b))
        if x is not None and y is not None and not any(left == right for left in x for right in y):
            return True
    return False


def _values(schema: Any) -> list[Any] | None:
    if not isinstance(schema, dict):
        return None
    if "const" in schema:
        return [schema["const"]]
    return schema["enum"] if isinstance(schema.get("enum"), list) else None


def _possible_types(schema: dict[str, Any]) -> set[str]:
    values = _values(schema)
    if values is not None:
        return {kind for value in values for kind in _types_of(value)}
    if any(keyword in schema for keyword in WHOLE):
        return set(TYPES)
    kinds = set(_kinds(schema, "$")) or set(TYPES)
    return kinds | ({"integer"} if "number" in kinds else set())


def _kinds(schema: dict[str, Any], path: str) -> list[str]:
    """The types a schema allows, as said or as its keywords imply; none means any."""
    if "type" in schema:
        return _types(schema, path)
    implied = [kind for kind, keywords in OF_TYPE.items() if keywords & schema.keys()]
    if len(implied) > 1:
        _refuse(path, "has keywords of several types and no type")
    return implied


def _types(schema: dict[str, Any], path: str) -> list[str]:
    types = schema["type"]
    types = [types] if isinstance(types, str) else types
    if not isinstance(types, list) or not types or not all(isinstance(kind, str) and kind in TYPES for kind in types):
        _refuse(f"{path}.type", f"must be one or more of {', '.join(sorted(TYPES))}")
    return types


def _types_of(value: Any) -> set[str]:
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int):
        return {"integer", "number"}
    if isinstance(value, float):
        return {"number", "integer"} if value.is_integer() else {"number"}
    names = {dict: "object", list: "array", str: "string", type(None): "null"}
    return {names[type(value)]}


def _refuse(path: str, problem: str) -> NoReturn:
    raise GrammarError(f"JSON schema: {path[:200]} {problem}")
