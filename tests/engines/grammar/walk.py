"""Whether an automaton takes a text, character by character."""

from __future__ import annotations

from engines.grammar.automata import Automaton
from engines.grammar.charsets import contains


def accepts(automaton: Automaton, text: str) -> bool:
    state: int | None = 0 if automaton.edges else None
    for character in text:
        if state is None:
            return False
        edges = automaton.edges[state].items()
        state = next((target for target, charset in edges if contains(charset, ord(character))), None)
    return state in automaton.accepting
