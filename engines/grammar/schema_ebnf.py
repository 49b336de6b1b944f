"""A JSON schema as an EBNF that takes exactly its values, in one layout (docs/structured_output.md).

xgrammar's own reading of schemas drops what it cannot express; its EBNF leaves nothing to drop. Everything that is
regular (strings, numbers, names) becomes right-linear rules, one for each state of its automaton.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from engines.grammar.automata import And, Atom, Automaton, Expr, Or, matches
from engines.grammar.charsets import ANY
from engines.grammar.errors import GrammarError
from engines.grammar.layouts import Layout
from engines.grammar.numbers import MAX_PLACES, number_automaton
from engines.grammar.schema_cases import Case, Node
from engines.grammar.schema_forms import FREE_INTEGER, FREE_NUMBER, ArrayForm, Forms, ObjectForm
from engines.grammar.schema_reading import Document, with_path
from engines.grammar.strings import ANY_STRING, character_class, finite, spelled, string_automaton, string_language

MAX_RULES = 30_000
MAX_COUNTED = 200
"""The largest maxLength of a free string with escapes; a longer one holds no character that JSON escapes."""

# Free strings may be spelled with every escape that JSON has, but for halves of surrogate pairs alone.
_STATIC = (
    r"""
string ::= "\"" string_rest
string_rest ::= "\"" | [^"\\\x00-\x1f] string_rest | "\\" ["\\/bfnrt] string_rest | "\\u" unit string_rest
unit ::= [0-9a-cA-CefEF] hex hex hex | [dD] [0-7] hex hex | [dD] [89abAB] hex hex "\\u" [dD] [c-fC-F] hex hex
hex ::= [0-9a-fA-F]
integer ::= "0" | "-"? [1-9] [0-9]*
number ::= "-"? ("0" | [1-9] [0-9]*) ("." place_1)? ([eE] [+-]? [0-9] [0-9]?)?
"""
    # One rule a digit: xgrammar's masks are slow with counted repetitions.
    + "".join(f"place_{n} ::= [0-9] place_{n + 1}?\n" for n in range(1, MAX_PLACES))
    + f"place_{MAX_PLACES} ::= [0-9]\n"
)


class _Ref(str):
    """The name of a rule; a plain str is EBNF."""

    __slots__ = ()


_Alternative = list[str]
# Where a value stands: in JSON, or in a layout, as its outermost object or as a member of one.
_Depth = Literal["json", "root", "member"]


def schema_ebnf(schema: Any, layout: Layout | None = None) -> str:
    """An EBNF with a rule `root`: of an object in the `layout`, or without one, of a value as JSON.

    Raises GrammarError by the path of what cannot be enforced.
    """
    try:
        return _Writer(Document(schema), layout).text()
    except RecursionError:
        raise GrammarError("the JSON schema combines too many schemas at one place") from None


def literal(text: str) -> str:
    """EBNF that matches exactly this text."""
    return '"' + "".join(f"\\U{ord(c):08x}" if c in '"\\' or not c.isprintable() else c for c in text) + '"'


class _Writer:
    def __init__(self, document: Document, layout: Layout | None) -> None:
        self._layout = layout
        self._forms = Forms(document)
        self._root = (Node(document.schema),)
        self._rules: dict[str, list[_Alternative]] = {}
        self._values: dict[tuple[frozenset[Node], _Depth], _Ref] = {}
        self._waiting: list[tuple[_Ref, Case, _Depth]] = []
        self._automata: dict[tuple[str, Expr, str], _Ref] = {}
        self._chain: dict[tuple[int, int], _Ref] = {}

    def text(self) -> str:
        root = self._value(self._root, "json" if self._layout is None else "root")
        while self._waiting:
            name, nodes, depth = self._waiting.pop()
            path = nodes[0].schema.path if nodes else "$"
            self._rules[name] = self._alternatives(nodes, path, depth)
            if len(self._rules) > MAX_RULES:
                raise GrammarError(f"the JSON schema takes more than {MAX_RULES} rules")
        self._rules["root"] = [[root]]
        rules = _productive(self._rules)
        if "root" not in rules:
            raise GrammarError("the JSON schema matches no text: no value fits it (a range that is empty, or false)")
        lines = [f"{name} ::= " + " | ".join(" ".join(alternative) for alternative in rules[name]) for name in rules]
        return "\n".join(lines) + _STATIC

    def _new(self) -> _Ref:
        name = _Ref(f"r{len(self._rules)}")
        self._rules[name] = []
        return name

    def _value(self, nodes: Case, depth: _Depth) -> _Ref:
        key = frozenset(nodes), depth
        if key not in self._values:
            self._values[key] = self._new()
            self._waiting.append((self._values[key], nodes, depth))
        return self._values[key]

    def _alternatives(self, nodes: Case, path: str, depth: _Depth) -> list[_Alternative]:
        form = self._forms.of(nodes)
        layout = self._layout
        if layout is None or depth == "json":
            found: list[_Alternative] = [[literal(_dump(value))] for value in form.constants]
        elif depth == "root":
            if not form.objects:
                raise GrammarError(f"{path} must be an object that is not a constant")
            return [[layout.begin, self._object(each, path, layout)] for each in form.objects]
        else:
            found = self._constants(form.constants, path, layout)
        if form.numbers:
            found.append([with_path(path, lambda: self._number(form.numbers))])
        if form.strings:
            quoted = layout is None or depth == "json"
            found += with_path(path, lambda: self._string(form.strings) if quoted else self._unquoted(form.strings))
        own = layout if depth == "member" and layout is not None and not layout.json_inside else None
        inner: _Depth = "member" if own is not None else "json"
        found += [['"["', self._array(array, inner)] for array in form.arrays]
        found += [['"{"' if own is None else own.begin, self._object(each, path, own)] for each in form.objects]
        return found

    def _constants(self, values: list[Any], path: str, layout: Layout) -> list[_Alternative]:
        """String constants have no quotes; others are JSON, which must not contain objects here."""
        found: list[_Alternative] = []
        for value in values:
            if isinstance(value, str):
                if not matches(layout.string(ANY_STRING), string_language, value):
                    raise GrammarError(f"{path} has a constant that this model's form of calls has no way to write")
                found.append([layout.quote, literal(value), layout.quote])
            elif isinstance(value, dict | list) and value and not layout.json_inside:
                raise GrammarError(f"{path} has a constant that this model's form of calls has no way to write")
            else:
                found.append([literal(_dump(value))])
        return found

    def _unquoted(self, exprs: list[Expr]) -> list[_Alternative]:
        """Strings in the layout's form, without JSON's escapes."""
        assert self._layout is not None
        expr = self._layout.string(exprs[0] if len(exprs) == 1 else Or(tuple(dict.fromkeys(exprs))))
        quote = self._layout.quote
        texts = finite(expr)
        if texts is not None:
            return [[quote, literal(text), quote] for text in texts]
        return [[quote, self._automaton("string", expr, string_automaton, quoted=False), quote]]

    def _number(self, exprs: list[Expr]) -> _Ref:
        if FREE_NUMBER in exprs:
            return _Ref("number")
        if exprs == [FREE_INTEGER]:
            return _Ref("integer")
        expr = exprs[0] if len(exprs) == 1 else Or(tuple(dict.fromkeys(exprs)))
        return self._automaton("number", expr, number_automaton)

    def _string(self, exprs: list[Expr]) -> list[_Alternative]:
        if ANY_STRING in exprs:
            return [[_Ref("string")]]
        expr = exprs[0] if len(exprs) == 1 else Or(tuple(dict.fromkeys(exprs)))
        texts = finite(expr)
        if texts is not None:
            return [[literal(_dump(text))] for text in texts]
        lengths = _lengths(expr)
        if lengths is not None and max(lengths[0], lengths[1] or 0) > MAX_COUNTED:
            most = "" if lengths[1] is None else str(lengths[1])
            return [[rf'"\"" [^"\\\x00-\x1f]{{{lengths[0]},{most}}} "\""']]
        if lengths is not None and lengths[1] is not None:
            return [['"\\""', self._counted(lengths[0], lengths[1])]]
        return [['"\\""', self._automaton("string", expr, string_automaton, quoted=True)]]

    def _counted(self, least: int, most: int) -> _Ref:
        """The rest of a string of so many characters. Fields of all lengths share one chain of rules."""
        key = least, most
        if key not in self._chain:
            name = self._chain[key] = self._new()
            alternatives = [] if least else [['"\\""']]
            if most:
                after = self._counted(max(0, least - 1), most - 1)
                alternatives += [[character, after] for character in spelled(ANY)]
            self._rules[name] = alternatives
        return self._chain[key]

    def _automaton(self, kind: str, expr: Expr, build: Any, *, quoted: bool = False) -> _Ref:
        key = kind, expr, "quoted" if quoted else "plain"
        if key not in self._automata:
            self._automata[key] = self._states(build(expr), quoted=quoted)
        return self._automata[key]

    def _states(self, automaton: Automaton, *, quoted: bool) -> _Ref:
        names = [self._new() for _ in automaton.edges] or [self._new()]
        for state, edges in enumerate(automaton.edges):
            alternatives = self._rules[names[state]]
            for target, charset in edges.items():
                parts = spelled(charset) if quoted else [character_class(list(charset))]
                alternatives += [[part, names[target]] for part in parts]
            if state in automaton.accepting:
                alternatives.append(['"\\""' if quoted else '""'])
        return names[0]

    def _array(self, array: ArrayForm, depth: _Depth) -> _Ref:
        if array.most is None:
            count = max(len(array.prefix), array.least, 1)
        else:
            count = array.most
        names = [self._new() for _ in range(count + 1)]
        for index, name in enumerate(names):
            alternatives = self._rules[name]
            if index < count or array.most is None:
                item = self._value(array.prefix[index] if index < len(array.prefix) else array.tail, depth)
                comma = '", "' if depth == "json" or self._layout is None else self._layout.separator
                separator = [] if index == 0 else [comma]
                alternatives.append([*separator, item, names[min(index + 1, count)]])
            if index >= array.least:
                alternatives.append(['"]"'])
        return names[0]

    def _object(self, form: ObjectForm, path: str, layout: Layout | None) -> _Ref:
        return _ObjectWriter(self, form, path, layout).start()

    # For objects

    def rule(self, alternatives: list[_Alternative], name: _Ref) -> None:
        self._rules[name] = alternatives

    def new(self) -> _Ref:
        if len(self._rules) > MAX_RULES:
            raise GrammarError(f"the JSON schema takes more than {MAX_RULES} rules")
        return self._new()

    def value(self, nodes: Case, depth: _Depth) -> _Ref:
        return self._value(nodes, depth)

    def name(self, expr: Expr, path: str, layout: Layout | None) -> list[_Alternative]:
        """Undeclared names."""
        if layout is None:
            alternatives: list[_Alternative] = with_path(path, lambda: self._string([expr]))
            return alternatives
        build = lambda: self._automaton("string", layout.name(expr), string_automaton)  # noqa: E731
        return [[layout.before, with_path(path, build)]]


# Progress through an object: the next declared property, whether declared ones were just left out, how many properties
# there are so far (as far as it matters), whether one of them is not declared, whether there is any.
_Place = tuple[int, bool, int, bool, bool]


class _ObjectWriter:
    """Declared properties in their order, others anywhere between them.

    A name that is not declared may come twice, and is then one property to a reader of the answer: towards
    `minProperties` all of these count as one, towards `maxProperties` each.
    """

    def __init__(self, writer: _Writer, form: ObjectForm, path: str, layout: Layout | None) -> None:
        self._writer, self._form, self._path, self._layout = writer, form, path, layout
        self._names: dict[_Place, _Ref] = {}
        self._waiting: list[_Place] = []
        self._depth: _Depth = "json" if layout is None else "member"
        self._others = [
            (writer.name(expr, path, layout), writer.value(nodes, self._depth)) for expr, nodes in form.others
        ]

    def start(self) -> _Ref:
        first = self._at((0, False, 0, False, False))
        while self._waiting:
            place = self._waiting.pop()
            self._writer.rule(self._after(place), self._names[place])
        return first

    def _at(self, place: _Place) -> _Ref:
        if place not in self._names:
            self._names[place] = self._writer.new()
            self._waiting.append(place)
        return self._names[place]

    def _after(self, place: _Place) -> list[_Alternative]:
        index, skipped, count, other, any_yet = place
        form = self._form
        layout = self._layout
        comma = '", "' if layout is None else layout.separator
        separator = [comma] if any_yet and comma else []
        colon, close, end = ('": "', [], '"}"') if layout is None else (layout.after, [layout.close], layout.end)
        found: list[_Alternative] = []
        full = form.most is not None and count >= form.most
        if index < len(form.declared):
            name, nodes, required = form.declared[index]
            if not full:
                after = self._at((index + 1, False, self._counted(count + 1), other, True))
                value = self._writer.value(nodes, self._depth)
                found.append([*self._declared(name, separator), value, *close, after])
            if not required:
                found.append([self._at((index + 1, True, count, other, any_yet))])
        elif count >= form.least:
            found.append([end])
        if not full and not skipped:
            for keys, value in self._others:
                more = count + 1 if form.most is not None or not other else count
                after = self._at((index, False, self._counted(more), other or form.least > 0, True))
                found += [[*separator, *key, colon, value, *close, after] for key in keys]
        return found

    def _declared(self, name: str, separator: list[str]) -> list[str]:
        """The text before the value of a declared property."""
        layout = self._layout
        if layout is None:
            return [literal((", " if separator else "") + _dump(name) + ": ")]
        if not layout.takes(name):
            raise GrammarError(f"{self._path} has a property that this model's form of calls has no way to name")
        return [*separator, layout.before, literal(name), layout.after]

    def _counted(self, count: int) -> int:
        return count if self._form.most is not None else min(count, self._form.least)


def _lengths(expr: Expr) -> tuple[int, int | None] | None:
    """The bounds, if the expression is about lengths only."""
    if not isinstance(expr, And) or not all(isinstance(p, Atom) and p.kind in ("least", "most") for p in expr.parts):
        return None
    least = max((int(p.value) for p in expr.parts if isinstance(p, Atom) and p.kind == "least"), default=0)  # type: ignore[call-overload]
    tops = [int(p.value) for p in expr.parts if isinstance(p, Atom) and p.kind == "most"]  # type: ignore[call-overload]
    if tops and min(tops) < least:
        return None
    return least, min(tops) if tops else None


def _productive(rules: dict[str, list[_Alternative]]) -> dict[str, list[_Alternative]]:
    """Removes alternatives that lead to no text, rules without alternatives, and unused rules."""
    static = {"string", "integer", "number"}
    good = set(static)
    users: dict[str, list[tuple[str, int]]] = {}
    missing: dict[tuple[str, int], int] = {}
    ready: list[str] = []
    for name, alternatives in rules.items():
        for index, alternative in enumerate(alternatives):
            needed = {part for part in alternative if isinstance(part, _Ref)} - static
            missing[name, index] = len(needed)
            for part in needed:
                users.setdefault(part, []).append((name, index))
            if not needed:
                ready.append(name)
    while ready:
        name = ready.pop()
        if name in good:
            continue
        good.add(name)
        for user in users.get(name, ()):
            missing[user] -= 1
            if missing[user] == 0:
                ready.append(user[0])
    kept = {
        name: [a for index, a in enumerate(alternatives) if missing[name, index] == 0]
        for name, alternatives in rules.items()
        if name in good
    }
    used: set[str] = {"root"} & kept.keys()
    waiting: list[str] = list(used)
    while waiting:
        for kept_alternative in kept[waiting.pop()]:
            for after in kept_alternative:
                if isinstance(after, _Ref) and after not in static and after not in used:
                    used.add(after)
                    waiting.append(after)
    return {name: alternatives for name, alternatives in kept.items() if name in used}


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
