"""How a value of a JSON schema is written: as JSON, or as a family of models writes a call's arguments."""

from __future__ import annotations

import re
from dataclasses import dataclass

from engines.grammar.automata import And, Atom, Expr, Not
from engines.grammar.errors import GrammarError


@dataclass(frozen=True, slots=True)
class Layout:
    """An object is `begin`, members apart by `separator`, `end`; a member `before` its name, `after` it, its value,
    `close`. All of these are EBNF.

    `json_inside`: only the outermost object is written so, and what is inside its members is JSON, but for strings,
    which stand as they are. Else objects at every depth are, and strings stand between two of `quote`.
    `no_string_holds`, `names`: a pattern that a string may not have in it, one that a name must have.
    """

    begin: str
    end: str
    separator: str
    before: str
    after: str
    close: str
    json_inside: bool
    quote: str
    no_string_holds: str
    names: str

    def string(self, expr: Expr) -> Expr:
        """The strings of a language that can stand in the text."""
        return And((expr, Not(Atom("pattern", self.no_string_holds))))

    def name(self, expr: Expr) -> Expr:
        return And((expr, Atom("pattern", self.names)))

    def takes(self, name: str) -> bool:
        return re.search(self.names, name) is not None


def layout(style: str, quote: object = None) -> Layout:
    """qwen_xml, glm_xml, or gemma with its mark for quotes: a token's id, or a text. Raises GrammarError."""
    match style:
        case "qwen_xml":
            return _tagged(r'"<parameter="', r'">\n"', r'"\n</parameter>\n"', "</parameter>", "^[^>]+$")
        case "glm_xml":
            after = r'"</arg_key>\n<arg_value>"'
            return _tagged('"<arg_key>"', after, r'"</arg_value>\n"', "</arg_value>", "^[^<>]+$")
        case "gemma":
            text = str(quote)
            mark = f"Token({quote})" if isinstance(quote, int) else '"' + text.replace('"', '\\"') + '"'
            # Text cannot contain a special token, but its spelling would be read as one.
            held = re.escape(text) if isinstance(quote, str) else re.escape('<|"|>')
            return Layout('"{"', '"}"', '","', "", '":"', "", False, mark, held, "^[A-Za-z0-9_.$-]+$")
    raise GrammarError(f"there is no style {style!r} of a JSON schema")


def _tagged(before: str, after: str, close: str, mark: str, names: str) -> Layout:
    return Layout('""', '""', "", before, after, close, True, '""', re.escape(mark), names)
