"""Schemas taken apart into cases: what must hold of a value is a list of plain schemas, one list for each alternative.

`anyOf`, `oneOf`, `not`, `if` and the dependent… keywords become cases, `allOf` and `$ref` more schemas of one case.
`not` is moved inwards until it stands before a keyword whose negation can be expressed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from engines.grammar.automata import Not
from engines.grammar.limits import check_time
from engines.grammar.schema_reading import (
    KINDS,
    NUMBER_ATOMS,
    NUMBERS,
    STRING_ATOMS,
    Document,
    Schema,
    refuse,
)

MAX_CASES = 256


@dataclass(frozen=True, slots=True)
class Node:
    """A schema that must hold, or must not (`negated`).

    `strict`: as JSON Schema has it, to the letter. If a schema says what an answer shall be, a keyword of one type
    means values of that type, and properties that are not listed are not written; where it says what an answer must
    not be, it means neither.
    """

    schema: Schema
    strict: bool = False
    negated: bool = False


Case = tuple[Node, ...]
_Pending = tuple[tuple[Node, frozenset[Schema]], ...]  # each with the references it was reached by


def cases(nodes: Case, document: Document, overlap: Callable[[Case], bool]) -> list[Case]:
    """The alternatives, each a list of nodes that are not negated, of which only keywords of types count.

    `overlap` returns whether a value may fit all nodes; if unsure, True. Raises GrammarError.
    """
    found: list[Case] = []
    for case in _Split(document, overlap).split(tuple((node, frozenset()) for node in nodes), ()):
        found.append(case)
        if len(found) > MAX_CASES:
            refuse(nodes[0].schema.path, f"has more than {MAX_CASES} cases once its alternatives are combined")
    return found


class _Split:
    def __init__(self, document: Document, overlap: Callable[[Case], bool]) -> None:
        self._document = document
        self._overlap = overlap

    def split(self, pending: _Pending, done: Case) -> Iterator[Case]:
        check_time()
        if not pending:
            yield done
            return
        (node, chain), rest = pending[0], pending[1:]
        schema, words = node.schema, node.schema.words
        if schema in chain:
            refuse(schema.path, "matches no text: Circular reference")
        if "$ref" in words or len(chain) > 0:
            chain = chain | {schema}
        if schema.always is not None:
            if schema.always != node.negated:
                yield from self.split(rest, done)
            return
        if node.negated:
            for alternative in self._contraries(node):
                yield from self.split(tuple((each, chain) for each in alternative) + rest, done)
            return
        more: list[Node] = []
        if "$ref" in words:
            more.append(Node(self._document.target(words["$ref"], schema.path), node.strict))
        more += [Node(each, node.strict) for each in words.get("allOf", ())]
        choices = self._choices(node)
        if len(done) > 512:
            refuse(schema.path, "combines more than 512 schemas")
        after = tuple((each, chain) for each in more)
        yield from self._each(choices, after, chain, rest, (*done, node))

    def _each(
        self, choices: list[list[list[Node]]], taken: _Pending, chain: frozenset[Schema], rest: _Pending, done: Case
    ) -> Iterator[Case]:
        if not choices:
            yield from self.split(taken + rest, done)
            return
        for alternative in choices[0]:
            with_it = taken + tuple((node, chain) for node in alternative)
            yield from self._each(choices[1:], with_it, chain, rest, done)

    def _choices(self, node: Node) -> list[list[list[Node]]]:
        words, strict, path = node.schema.words, node.strict, node.schema.path
        choices: list[list[list[Node]]] = []
        if "anyOf" in words:
            choices.append([[Node(each, strict)] for each in words["anyOf"]])
        if "oneOf" in words:
            choices.append(self._exactly_one(words["oneOf"], strict))
        if "not" in words:
            choices.append([[Node(words["not"], True, True)]])
        if "if" in words:
            choices.append(
                [
                    [Node(words["if"], True), *([Node(words["then"], strict)] if "then" in words else [])],
                    [Node(words["if"], True, True), *([Node(words["else"], strict)] if "else" in words else [])],
                ]
            )
        for name, names in words.get("dependentRequired", {}).items():
            choices.append([[_fact(path, lacks=name)], [_fact(path, required=[name, *names])]])
        for name, schema in words.get("dependentSchemas", {}).items():
            choices.append([[_fact(path, lacks=name)], [_fact(path, required=[name]), Node(schema, strict)]])
        return choices

    def _exactly_one(self, branches: list[Schema], strict: bool) -> list[list[Node]]:
        alternatives = []
        for index, branch in enumerate(branches):
            this = Node(branch, strict)
            others = [Node(other, True) for place, other in enumerate(branches) if place != index]
            against = [Node(o.schema, True, True) for o in others if self._overlap((this, o))]
            alternatives.append([this, *against])
        return alternatives

    def _contraries(self, node: Node) -> list[list[Node]]:
        schema, words = node.schema, node.schema.words
        path = schema.path
        found: list[list[Node]] = []
        for keyword, value in words.items():
            if keyword == "type":
                found.append([_fact(path, type=KINDS - value)])
            elif keyword in ("enum", "const"):
                found.append([_fact(path, exclude=value)])
            elif keyword in NUMBER_ATOMS:
                found.append([_fact(path, type=NUMBERS, number=Not(value))])
            elif keyword in STRING_ATOMS:
                found.append([_fact(path, type=frozenset({"string"}), text=Not(value))])
            elif keyword in ("minItems", "minProperties", "maxItems", "maxProperties"):
                found += self._contrary_count(keyword, value, path)
            elif keyword == "required":
                found += [[_fact(path, type=frozenset({"object"}), lacks=name)] for name in value]
            elif keyword == "properties":
                for name, inner in value.items():
                    has = {name: Schema(inner.path, words={"not": inner})}
                    found.append([_fact(path, type=frozenset({"object"}), required=[name], properties=has)])
            elif keyword == "$ref":
                found.append([Node(self._document.target(value, path), True, True)])
            elif keyword == "allOf":
                found += [[Node(each, True, True)] for each in value]
            elif keyword == "anyOf":
                found.append([Node(each, True, True) for each in value])
            elif keyword == "not":
                found.append([Node(value, True)])
            else:
                refuse(path, f"uses {keyword} in what must not hold (not, if, or oneOf with branches that overlap)")
        return found

    def _contrary_count(self, keyword: str, value: int, path: str) -> list[list[Node]]:
        contrary = keyword.replace("min", "max") if keyword.startswith("min") else keyword.replace("max", "min")
        bound = value - 1 if keyword.startswith("min") else value + 1
        kind = frozenset({"array" if keyword.endswith("Items") else "object"})
        return [[_fact(path, type=kind, **{contrary: bound})]] if bound >= 0 else []


def _fact(path: str, **words: Any) -> Node:
    """Beside keywords: `lacks` (a property), `number` and `text` (expressions), `exclude` (values)."""
    return Node(Schema(path, words=words), strict=True)
