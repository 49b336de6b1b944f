"""Grammars as parts of structural tags, so that they can stand beside calls and after thoughts."""

from __future__ import annotations

import json
from typing import Any

from protocol.messages import Grammar


def as_format(grammar: Grammar) -> dict[str, Any]:
    """The grammar as a part of a structural tag (https://xgrammar.mlc.ai/docs/tutorials/structural_tag.html)."""
    match grammar.type:
        case "json_object":
            return {"type": "json_schema", "json_schema": {"type": "object", "additionalProperties": True}}
        case "json_schema":
            return {"type": "json_schema", "json_schema": json.loads(grammar.value)}
        case "regex":
            return {"type": "regex", "pattern": grammar.value}
        case "choice":
            options = [{"type": "const_string", "value": text} for text in json.loads(grammar.value)]
            return {"type": "or", "elements": options}
        case "grammar":
            return {"type": "grammar", "grammar": grammar.value}
        case "structural_tag":
            inner: dict[str, Any] = json.loads(grammar.value)["format"]
            return inner
