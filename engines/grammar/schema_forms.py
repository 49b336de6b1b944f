"""The values that schemas allow together, kind by kind: the step between JSON Schema and a grammar."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import combinations
from typing import Any

from engines.grammar.automata import And, Atom, Expr, Not, Or, matches
from engines.grammar.numbers import exact, number_automaton, number_language
from engines.grammar.schema_cases import Case, Node, cases
from engines.grammar.schema_reading import (
    KINDS,
    NUMBER_ATOMS,
    NUMBERS,
    OF_TYPE,
    STRING_ATOMS,
    Document,
    Schema,
    kind_of,
    refuse,
    with_path,
)
from engines.grammar.strings import ANY_STRING, any_string, string_language

MAX_PATTERNS = 4  # of patternProperties that meet in one object: 2 ** 4 kinds of names
_GUARD = 6  # how deep `possible` looks

FREE_NUMBER: Expr = And((Atom("spelling"),))
FREE_INTEGER: Expr = And((Atom("whole"),))


@dataclass(slots=True)
class ArrayForm:
    """`prefix`: what the first items must meet; `tail`: the others; `most` None: without limit."""

    prefix: list[Case]
    tail: Case
    least: int
    most: int | None


@dataclass(slots=True)
class ObjectForm:
    """`declared`: (name, schemas, whether required) in order; `others`: (expression of names, schemas) for the rest."""

    declared: list[tuple[str, Case, bool]]
    others: list[tuple[Expr, Case]]
    least: int
    most: int | None


@dataclass(slots=True)
class Form:
    """All allowed values: `constants`, and others by kind. An expression of None: no value of that kind."""

    constants: list[Any] = field(default_factory=list)
    numbers: list[Expr] = field(default_factory=list)
    strings: list[Expr] = field(default_factory=list)
    arrays: list[ArrayForm] = field(default_factory=list)
    objects: list[ObjectForm] = field(default_factory=list)


class Forms:
    """The forms of one document's schemas. All methods raise GrammarError."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._depth = 0

    def of(self, nodes: Case) -> Form:
        """The values that meet all nodes."""
        form = Form()
        for case in self._cases(nodes):
            self._add(case, form)
        form.constants = _distinct(form.constants)
        return form

    def possible(self, nodes: Case) -> bool:
        """Whether a value may meet all nodes; True if finding out takes too long."""
        if self._depth >= _GUARD:
            return True
        self._depth += 1
        try:
            form = self.of(nodes)
            return bool(
                form.constants
                or any(number_automaton(expr).edges for expr in form.numbers)
                or any(any_string(expr) for expr in form.strings)
                or any(all(map(self.possible, array.prefix[: array.least])) for array in form.arrays)
                or any(all(self.possible(value) for _, value, must in each.declared if must) for each in form.objects)
            )
        finally:
            self._depth -= 1

    def _cases(self, nodes: Case) -> list[Case]:
        return cases(nodes, self._document, self.possible)

    def _add(self, case: Case, form: Form) -> None:
        path = case[0].schema.path if case else "$"
        kinds = _kinds(case)
        listed = [node for node in case if {"enum", "const"} & node.schema.words.keys()]
        if listed:
            words = listed[0].schema.words
            values = [
                value
                for value in (words["enum"] if "enum" in words else words["const"])
                if self._fits(case, value, kinds)
            ]
            texts = tuple(value for value in values if isinstance(value, str))
            if texts:
                form.strings.append(Atom("in", texts))
            form.constants += [value for value in values if not isinstance(value, str)]
            return
        excluded = [value for node in case for value in node.schema.words.get("exclude", ())]
        for value, kind in ((None, "null"), (True, "boolean"), (False, "boolean")):
            if kind in kinds and not any(_same(value, other) for other in excluded):
                form.constants.append(value)
        if kinds & NUMBERS:
            form.numbers.append(_numbers(case, kinds, excluded))
        if "string" in kinds:
            form.strings.append(_strings(case, excluded))
        for kind in ("array", "object"):
            if kind in kinds and any(kind_of(value) == kind for value in excluded):
                refuse(path, f"excludes an {kind}, which is not supported")
        if "array" in kinds:
            self._add_array(case, form)
        if "object" in kinds:
            self._add_object(case, form, path)

    def _add_array(self, case: Case, form: Form) -> None:
        length = max((len(node.schema.words.get("prefixItems", ())) for node in case), default=0)

        def at(index: int) -> Case:
            here: list[Node] = []
            for node in case:
                prefix = node.schema.words.get("prefixItems", ())
                if index < len(prefix):
                    here.append(Node(prefix[index], node.strict))
                elif "items" in node.schema.words:
                    here.append(Node(node.schema.words["items"], node.strict))
            return tuple(here)

        least, most = _bounds(case, "Items")
        if most is None or least <= most:
            form.arrays.append(ArrayForm([at(index) for index in range(length)], at(length), least, most))

    def _add_object(self, case: Case, form: Form, path: str) -> None:
        shape = _Properties(case)
        names = And(tuple(_name_exprs(self, case)))
        required = list(dict.fromkeys(name for node in case for name in node.schema.words.get("required", ())))
        lacks = {node.schema.words["lacks"] for node in case if "lacks" in node.schema.words}
        least, most = _bounds(case, "Properties")
        declared: list[tuple[str, Case, bool]] = []
        for name in dict.fromkeys([*shape.listed, *required]):
            value = shape.value(name, required=name in required)
            if name in lacks or value is None or not matches(names, string_language, name):
                if name in required:
                    return
                continue
            if any(node.schema.always is False for node in value):
                if name in required:
                    return
                continue
            declared.append((name, value, name in required))
        known = tuple(dict.fromkeys([*shape.listed, *required, *lacks]))
        others = self._others(shape, names, known, path)
        if most is not None and max(least, sum(must for *_, must in declared)) > most:
            return
        if not others and least > len(declared):
            return
        if others and least > len(declared) + 1:
            refuse(
                f"{path}.minProperties",
                "counts properties whose names are free, of which two may be the same; that is not supported",
            )
        form.objects.append(ObjectForm(declared, others, least, most))

    def _others(self, shape: _Properties, names: Expr, known: tuple[str, ...], path: str) -> list[tuple[Expr, Case]]:
        if len(shape.patterns) > MAX_PATTERNS:
            refuse(path, f"combines more than {MAX_PATTERNS} patternProperties")
        groups: list[tuple[Expr, Case]] = []
        apart: tuple[Expr, ...] = (Not(Atom("in", known)),) if known else ()
        restricted = names.parts if isinstance(names, And) else (names,)
        for count in range(len(shape.patterns) + 1):
            for chosen in combinations(shape.patterns, count):
                value = shape.of_patterns(frozenset(chosen))
                if value is None or any(node.schema.always is False for node in value):
                    continue
                by_pattern: tuple[Expr, ...] = tuple(
                    Atom("pattern", pattern) if pattern in chosen else Not(Atom("pattern", pattern))
                    for pattern in shape.patterns
                )
                expr = And((*restricted, *apart, *by_pattern))
                if with_path(path, lambda e=expr: any_string(e)):
                    groups.append((expr, value))
        return groups

    def _fits(self, case: Case, value: Any, kinds: frozenset[str]) -> bool:
        """Whether a constant meets a case, by JSON Schema's rules."""
        if kind_of(value) not in kinds:
            return False
        return all(self._meets(node.schema, value) for node in case)

    def _meets(self, schema: Schema, value: Any) -> bool:
        words = schema.words
        for keyword in ("enum", "const"):
            if keyword in words and not any(_same(value, other) for other in words[keyword]):
                return False
        if any(_same(value, other) for other in words.get("exclude", ())):
            return False
        kind = kind_of(value)
        if kind in NUMBERS:
            text = f"{Decimal(repr(value)):f}"
            text = text if exact(value) else "0"
            exprs = [words[key] for key in (*NUMBER_ATOMS, "number") if key in words]
            return all(matches(expr, number_language, text) for expr in exprs)
        if kind == "string":
            exprs = [words[key] for key in (*STRING_ATOMS, "text") if key in words]
            return all(matches(expr, string_language, value) for expr in exprs)
        if kind == "array":
            prefix = words.get("prefixItems", ())
            pairs = [(prefix[i] if i < len(prefix) else words.get("items"), item) for i, item in enumerate(value)]
            return _within(len(value), words, "Items") and all(
                inner is None or self.meets_all(inner, item) for inner, item in pairs
            )
        return kind != "object" or self._meets_object(schema, value)

    def _meets_object(self, schema: Schema, value: dict[str, Any]) -> bool:
        words = schema.words
        if not _within(len(value), words, "Properties") or words.get("lacks") in value:
            return False
        if any(name not in value for name in words.get("required", ())):
            return False
        source = _Source(Node(schema, strict=True))
        for name, inner in value.items():
            if any(not self.meets_all(node.schema, inner) for node in source.value(name)):
                return False
            if "propertyNames" in words and not self.meets_all(words["propertyNames"], name):
                return False
        return True

    def meets_all(self, schema: Schema, value: Any) -> bool:
        """Whether a value is valid, by JSON Schema's rules."""
        strictly = self._cases((Node(schema, strict=True),))
        return any(self._fits(case, value, _kinds(case)) for case in strictly)


class _Source:
    """One node's constraints on properties."""

    def __init__(self, node: Node) -> None:
        words = node.schema.words
        self._strict = node.strict
        self._properties: dict[str, Schema] = words.get("properties", {})
        self.patterns: dict[str, Schema] = words.get("patternProperties", {})
        self.additional: Schema | None = words.get("additionalProperties")

    def value(self, name: str) -> list[Node]:
        found = [self._properties[name]] if name in self._properties else []
        found += [
            schema
            for pattern, schema in self.patterns.items()
            if matches(Atom("pattern", pattern), string_language, name)
        ]
        if not found and self.additional is not None:
            found = [self.additional]
        return [Node(schema, self._strict) for schema in found]

    def of_patterns(self, chosen: frozenset[str]) -> list[Node]:
        found = [schema for pattern, schema in self.patterns.items() if pattern in chosen]
        if not found and self.additional is not None:
            found = [self.additional]
        return [Node(schema, self._strict) for schema in found]


class _Properties:
    """The constraints of all nodes of a case on properties."""

    def __init__(self, case: Case) -> None:
        self._sources = [_Source(node) for node in case]
        self.patterns = list(dict.fromkeys(pattern for source in self._sources for pattern in source.patterns))
        answers = [node.schema.words for node in case if not node.strict]
        names = any("properties" in words or "patternProperties" in words for words in answers)
        self._closed = names and not any("additionalProperties" in words for words in answers)
        self.listed = list(dict.fromkeys(name for words in answers for name in words.get("properties", ())))
        if not self._closed:
            strict = [node.schema.words for node in case if node.strict]
            self.listed += [name for words in strict for name in words.get("properties", ()) if name not in self.listed]
        self._listed = frozenset(self.listed)

    def value(self, name: str, *, required: bool) -> Case | None:
        """The schemas of a property; None if it may not be there."""
        matched = any(matches(Atom("pattern", pattern), string_language, name) for pattern in self.patterns)
        if self._closed and name not in self._listed and not matched and not required:
            return None
        return tuple(node for source in self._sources for node in source.value(name))

    def of_patterns(self, chosen: frozenset[str]) -> Case | None:
        """The schemas of names that match these patterns and no others, and are not listed."""
        if self._closed and not chosen:
            return None
        return tuple(node for source in self._sources for node in source.of_patterns(chosen))


def _kinds(case: Case) -> frozenset[str]:
    """The kinds of value that a case allows: by its `type`, or as its keywords imply."""
    said = [node.schema.words["type"] for node in case if "type" in node.schema.words]
    if said:
        return frozenset.intersection(*said)
    if any({"enum", "const"} & node.schema.words.keys() for node in case):
        return KINDS
    implied: set[str] = set()
    for kind, keywords in OF_TYPE.items():
        if any(not node.strict and keywords & node.schema.words.keys() for node in case):
            implied |= NUMBERS if kind == "number" else {kind}
    return frozenset(implied) or KINDS


def _numbers(case: Case, kinds: frozenset[str], excluded: list[Any]) -> Expr:
    parts: list[Expr] = [Atom("whole" if "fraction" not in kinds else "spelling")]
    if "integer" not in kinds:
        parts.append(Not(Atom("integer")))
    for node in case:
        parts += [node.schema.words[keyword] for keyword in (*NUMBER_ATOMS, "number") if keyword in node.schema.words]
    parts += [Not(Atom("equal", exact(value))) for value in excluded if kind_of(value) in NUMBERS]
    return And(tuple(dict.fromkeys(parts)))


def _strings(case: Case, excluded: list[Any]) -> Expr:
    parts: list[Expr] = []
    for node in case:
        parts += [node.schema.words[keyword] for keyword in (*STRING_ATOMS, "text") if keyword in node.schema.words]
    texts = tuple(value for value in excluded if isinstance(value, str))
    if texts:
        parts.append(Not(Atom("in", texts)))
    return And(tuple(dict.fromkeys(parts)))


def _name_exprs(forms: Forms, case: Case) -> Iterable[Expr]:
    for node in case:
        if "propertyNames" in node.schema.words:
            text = Node(Schema(node.schema.path, words={"type": frozenset({"string"})}), strict=True)
            strings = forms.of((text, Node(node.schema.words["propertyNames"], strict=True))).strings
            if ANY_STRING not in strings:
                yield Or(tuple(strings))


def _bounds(case: Case, what: str) -> tuple[int, int | None]:
    least = max((node.schema.words.get(f"min{what}", 0) for node in case), default=0)
    tops = [node.schema.words[f"max{what}"] for node in case if f"max{what}" in node.schema.words]
    return least, min(tops) if tops else None


def _within(count: int, words: dict[str, Any], what: str) -> bool:
    least, most = words.get(f"min{what}", 0), words.get(f"max{what}", count)
    return bool(least <= count <= most)


def _same(a: Any, b: Any) -> bool:
    """Equality of JSON values: 1 is 1.0, but not true."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[name], b[name]) for name in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)


def _distinct(values: list[Any]) -> list[Any]:
    return list({json.dumps(value, sort_keys=True): value for value in values}.values())
