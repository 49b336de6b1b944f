"""Reads JSON schemas: every keyword is checked, and what can't be enforced is refused with its path.

Keywords and their meaning: JSON Schema 2020-12 (https://json-schema.org/draft/2020-12/json-schema-validation), and of
draft-07 what it writes otherwise: lists in `items`, `additionalItems`, `dependencies`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NoReturn
from urllib.parse import unquote

from engines.grammar.automata import Atom
from engines.grammar.errors import GrammarError
from engines.grammar.formats import FORMATS, REFUSED
from engines.grammar.numbers import exact, number_language
from engines.grammar.strings import string_language

MAX_DEPTH = 64
MAX_NODES = 20_000
MAX_COUNT = 10_000  # of repetitions: maxLength, minItems and the like
MAX_PROPERTIES = 512  # of one object

OF_TYPE = {
    "object": frozenset({
        "properties", "required", "additionalProperties", "patternProperties", "propertyNames",
        "minProperties", "maxProperties", "dependentRequired", "dependentSchemas",
    }),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems"}),
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
}  # fmt: skip
NUMBERS = frozenset({"integer", "fraction"})
"""A number is an integer or a fraction; JSON Schema's `number` is both."""
KINDS = frozenset({"null", "boolean", "string", "array", "object"}) | NUMBERS
TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
UNSUPPORTED = frozenset(
    {
        "contains", "minContains", "maxContains", "unevaluatedProperties", "unevaluatedItems", "$dynamicRef",
        "$recursiveRef", "$anchor", "$dynamicAnchor",
    }
)  # fmt: skip
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
NUMBER_ATOMS = {
    "minimum": "at_least", "maximum": "at_most", "exclusiveMinimum": "above", "exclusiveMaximum": "below",
    "multipleOf": "multiple",
}  # fmt: skip
STRING_ATOMS = {"minLength": "least", "maxLength": "most", "pattern": "pattern", "format": "format"}


@dataclass(eq=False, slots=True)
class Schema:
    """One schema. `always`: of a schema that is just true or false. `words`: its keywords, their schemas read.

    Number and string keywords hold Atoms, `type` the KINDS, `enum` its values (`const` is one of one value).
    """

    path: str
    always: bool | None = None
    words: dict[str, Any] = field(default_factory=dict)


class Document:
    """A root schema with all that it refers to."""

    def __init__(self, root: Any) -> None:
        """Raises GrammarError."""
        self._root = root
        self._read: dict[int, Schema] = {}
        self._nodes = 0
        self._references: list[tuple[str, str]] = []
        self.schema = self._visit(root, "$", 0)
        for reference, path in self._references:  # grows on the way
            self.target(reference, path)

    def target(self, reference: str, path: str) -> Schema:
        """What a `$ref` at `path` points to. Raises GrammarError."""
        node = self._root
        for part in reference.split("/")[1:]:
            part = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(node, list) and part.isdigit() and int(part[:9]) < len(node):
                node = node[int(part[:9])]
            elif isinstance(node, dict) and part in node:
                node = node[part]
            else:
                refuse(f"{path}.$ref", f"points to {reference[:80]!r}, which does not exist")
        return self._visit(node, reference, 0)

    def _visit(self, raw: Any, path: str, depth: int) -> Schema:
        if isinstance(raw, bool):
            return Schema(path, always=raw)
        if not isinstance(raw, dict):
            refuse(path, "must be an object or a boolean")
        if id(raw) in self._read:
            return self._read[id(raw)]
        self._nodes += 1
        if depth > MAX_DEPTH:
            refuse(path, f"is nested deeper than {MAX_DEPTH} schemas")
        if self._nodes > MAX_NODES:
            refuse("$", f"holds more than {MAX_NODES} schemas")
        schema = Schema(path)
        self._read[id(raw)] = schema
        for keyword in raw:
            if keyword in UNSUPPORTED:
                refuse(path, f"uses {keyword}, which is not supported")
        if raw.get("uniqueItems") not in (None, False) and raw.get("maxItems") not in (0, 1):
            refuse(path, "uses uniqueItems, which is not supported")
        if "$id" in raw and raw is not self._root:
            refuse(path, "uses $id within another schema, which is not supported")
        self._values(raw, schema)
        self._schemas(raw, schema, depth)
        return schema

    def _values(self, raw: dict[str, Any], schema: Schema) -> None:
        path, words = schema.path, schema.words
        if "type" in raw:
            words["type"] = _kinds(raw["type"], path)
        for keyword, values in (("enum", raw.get("enum")), ("const", [raw.get("const")])):
            if keyword in raw:
                if not isinstance(values, list) or not values:
                    refuse(f"{path}.enum", "must be a list with at least one value")
                words[keyword] = values
        for keyword in _COUNTS:
            if keyword in raw:
                words[keyword] = _count(raw[keyword], f"{path}.{keyword}")
        for keyword, kind in NUMBER_ATOMS.items():
            if keyword in raw:
                words[keyword] = self._number(kind, raw[keyword], f"{path}.{keyword}")
        for keyword, kind in STRING_ATOMS.items():
            if keyword in raw:
                value = words.get(keyword, raw[keyword])
                if keyword in ("pattern", "format") and not isinstance(value, str):
                    refuse(f"{path}.{keyword}", "must be a string")
                words[keyword] = self._string(kind, value, f"{path}.{keyword}")
                if words[keyword] is None:
                    del words[keyword]
        if "required" in raw:
            words["required"] = _names(raw["required"], f"{path}.required")

    def _number(self, kind: str, value: Any, path: str) -> Atom:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            refuse(path, "must be a number")
        if kind == "multiple" and value <= 0:
            refuse(path, "must be more than 0")
        atom = Atom(kind, exact(value))
        with_path(path, lambda: number_language(atom))
        return atom

    def _string(self, kind: str, value: Any, path: str) -> Atom | None:
        if kind == "format" and value in REFUSED:
            refuse(path, f"is {value}, which is not supported")
        if kind == "format" and value not in FORMATS:
            return None
        atom = Atom(kind, value)
        with_path(path, lambda: string_language(atom))
        return atom

    def _schemas(self, raw: dict[str, Any], schema: Schema, depth: int) -> None:
        path, words = schema.path, schema.words

        def one(node: Any, *steps: str) -> Schema:
            return self._visit(node, path + "".join(f".{step}" for step in steps), depth + 1)

        def several(node: Any, keyword: str) -> list[Schema]:
            if not isinstance(node, list) or not node:
                refuse(f"{path}.{keyword}", "must be a list of schemas")
            return [self._visit(each, f"{path}.{keyword}[{index}]", depth + 1) for index, each in enumerate(node)]

        def by_name(keyword: str) -> dict[str, Any]:
            node = raw[keyword]
            if not isinstance(node, dict):
                refuse(f"{path}.{keyword}", "must be an object")
            if len(node) > MAX_PROPERTIES:
                refuse(f"{path}.{keyword}", f"has more than {MAX_PROPERTIES} properties")
            return node

        if "$ref" in raw:
            reference = raw["$ref"]
            if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
                refuse(f"{path}.$ref", f"must point into this schema (#/…), not to {str(reference)[:80]!r}")
            words["$ref"] = reference
            self._references.append((reference, path))
        for keyword in ("anyOf", "oneOf", "allOf"):
            if keyword in raw:
                words[keyword] = several(raw[keyword], keyword)
        for keyword in ("not", "if", "additionalProperties", "propertyNames"):
            if keyword in raw:
                words[keyword] = one(raw[keyword], keyword)
        for keyword in ("then", "else"):
            if keyword in raw and "if" in raw:
                words[keyword] = one(raw[keyword], keyword)
        for keyword in ("properties", "patternProperties", "dependentSchemas"):
            if keyword in raw:
                words[keyword] = {name: one(node, keyword, name) for name, node in by_name(keyword).items()}
        for pattern in words.get("patternProperties", ()):
            with_path(f"{path}.patternProperties", lambda p=pattern: string_language(Atom("pattern", p)))
        if "dependentRequired" in raw:
            words["dependentRequired"] = {
                name: _names(names, f"{path}.dependentRequired.{name}")
                for name, names in by_name("dependentRequired").items()
            }
        if "dependencies" in raw:
            for name, node in by_name("dependencies").items():
                if isinstance(node, list):
                    words.setdefault("dependentRequired", {})[name] = _names(node, f"{path}.dependencies.{name}")
                else:
                    words.setdefault("dependentSchemas", {})[name] = one(node, "dependencies", name)
        tail = raw.get("items")
        if isinstance(tail, list):
            if "prefixItems" in raw:
                refuse(path, "has a list in items beside prefixItems")
            words["prefixItems"] = several(tail, "items") if tail else []
            if "additionalItems" in raw:
                words["items"] = one(raw["additionalItems"], "additionalItems")
        else:
            if "prefixItems" in raw:
                words["prefixItems"] = several(raw["prefixItems"], "prefixItems")
            if "items" in raw:
                words["items"] = one(tail, "items")


def refuse(path: str, problem: str) -> NoReturn:
    """Raises GrammarError; its field leads to the place: "grammar.value.properties.x" for $.properties.x."""
    place = path[:200]
    raise GrammarError(f"JSON schema: {place} {problem}", f"grammar.value{place.removeprefix('$')}")


def with_path(path: str, work: Any) -> Any:
    """What `work` returns; the message of its GrammarError is prefixed with the path."""
    try:
        return work()
    except GrammarError as error:
        refuse(path, error.message)


def kind_of(value: Any) -> str:
    """Which of KINDS a JSON value is."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if float(value).is_integer() else "fraction"
    names = {dict: "object", list: "array", str: "string", type(None): "null"}
    return names[type(value)]


def _kinds(types: Any, path: str) -> frozenset[str]:
    types = [types] if isinstance(types, str) else types
    if not isinstance(types, list) or not types or not all(isinstance(kind, str) and kind in TYPES for kind in types):
        refuse(f"{path}.type", f"must be one or more of {', '.join(sorted(TYPES))}")
    return frozenset().union(*(NUMBERS if kind == "number" else {kind} for kind in types))


def _count(value: Any, path: str) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        refuse(path, "must be a whole number, 0 or more")
    if value > MAX_COUNT:
        refuse(path, f"exceeds {MAX_COUNT}")
    return value


def _names(value: Any, path: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        refuse(path, "must be a list of names")
    return list(dict.fromkeys(value))
