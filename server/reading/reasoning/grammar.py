"""A grammar for the answer of a model that thinks first: the thought is free."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from protocol.messages import Grammar
from server.reading.reasoning.formats import ReasoningFormat, Start
from server.reading.structural_tags import as_format


def after_reasoning(grammar: Grammar, form: ReasoningFormat, start: Start, special_ids: Mapping[str, int]) -> Grammar:
    """The same grammar from the end of the thought on, as a structural tag; before it, any text.

    Outside of a thought the model may open one or answer at once. `special_ids` are the vocabulary's special tokens.
    """
    if start == "closed":
        return grammar
    thought: dict[str, Any] = {
        "type": "tag",
        "begin": "" if start == "inside" else _mark(form.opener, special_ids),
        "content": {"type": "any_text"},
        "end": _mark(form.closer, special_ids),
    }
    space = {"type": "regex", "pattern": r"\n{0,2}"}
    thinking: dict[str, Any] = {"type": "sequence", "elements": [thought, space]}
    if start == "outside":
        thinking = {"type": "optional", "content": thinking}
    whole = {"type": "sequence", "elements": [thinking, as_format(grammar)]}
    value = json.dumps({"type": "structural_tag", "format": whole})
    return Grammar(type="structural_tag", value=value, start=grammar.start)


def _mark(tag: str, special_ids: Mapping[str, int]) -> str | dict[str, Any]:
    return {"type": "token", "token": special_ids[tag]} if tag in special_ids else tag
