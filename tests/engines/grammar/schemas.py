"""JSON schemas at random, of the kinds that can be enforced, for a seed."""

from __future__ import annotations

import random
from typing import Any

FORMATS = ["date", "time", "date-time", "duration", "uuid", "ipv4", "ipv6", "email", "hostname", "uri", "json-pointer"]
NAMES = ["a", "b", "name", "the key", 'quo"te', "é", "back\\slash", "x_1"]


def schema(rng: random.Random, depth: int = 2) -> dict[str, Any]:
    kinds = [_string, _number, _integer, _enum, _const, _boolean, _null]
    if depth > 0:
        kinds += [_object, _object, _array, _array, _any_of, _one_of]
    return rng.choice(kinds)(rng, depth)


def _string(rng: random.Random, depth: int) -> dict[str, Any]:
    low = rng.randrange(3)
    return rng.choice(
        [
            {"type": "string"},
            {"type": "string", "minLength": low, "maxLength": low + rng.randrange(4)},
            {"type": "string", "maxLength": 3},
            {"type": "string", "pattern": rng.choice(["^[a-z]+$", "^a.*", r"^\d{3}-\d{2}$", "^(yes|no)$", "^b"])},
            {"type": "string", "format": rng.choice(FORMATS)},
            {"type": ["string", "null"], "minLength": 1},
        ]
    )


def _number(rng: random.Random, depth: int) -> dict[str, Any]:
    low = rng.choice([-1.5, 0, 2, -100])
    return rng.choice(
        [{"type": "number"}, {"type": "number", "minimum": low, "maximum": low + rng.choice([1, 0.5, 50])}]
    )


def _integer(rng: random.Random, depth: int) -> dict[str, Any]:
    low = rng.randrange(-200, 200)
    return rng.choice(
        [
            {"type": "integer"},
            {"type": "integer", "minimum": low, "maximum": low + rng.randrange(500)},
            {"type": "integer", "exclusiveMinimum": low},
            {"type": "integer", "maximum": low},
            {"type": "integer", "multipleOf": rng.randrange(1, 20)},
        ]
    )


def _enum(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"enum": rng.sample(["x", 'a"b', "é\n", 1, 2.5, None, True, [1, "a"], {"k": 1}], rng.randrange(1, 4))}


def _const(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"const": rng.choice(["x", "tab\t", 1, False, None, {"a": [1]}])}


def _boolean(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"type": "boolean"}


def _null(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"type": "null"}


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(NAMES, rng.randrange(1, 4))
    result: dict[str, Any] = {
        "type": "object",
        "properties": {name: schema(rng, depth - 1) for name in names},
        "required": [name for name in names if rng.random() < 0.6],
    }
    extra = rng.randrange(4)
    if extra == 0:
        result["additionalProperties"] = False
    elif extra == 1:
        result["additionalProperties"] = {"type": "integer"}
    return rng.choice([result, result, result, {"type": "object"}, {"type": "object", "additionalProperties": True}])


def _array(rng: random.Random, depth: int) -> dict[str, Any]:
    low = rng.randrange(3)
    return rng.choice(
        [
            {"type": "array", "items": schema(rng, depth - 1), "minItems": low, "maxItems": low + rng.randrange(3)},
            {"type": "array", "items": schema(rng, depth - 1)},
            {"type": "array", "prefixItems": [schema(rng, 0), schema(rng, 0)], "items": False, "minItems": 2},
        ]
    )


def _any_of(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [schema(rng, depth - 1) for _ in range(rng.randrange(1, 4))]}


def _one_of(rng: random.Random, depth: int) -> dict[str, Any]:
    """A union distinguished by a constant, as pydantic writes it."""
    branches = [
        {"type": "object", "properties": {"kind": {"const": kind}, "value": schema(rng, 0)}, "required": ["kind"]}
        for kind in ("cat", "dog")
    ]
    return {"oneOf": branches}


def recursive() -> dict[str, Any]:
    node = {
        "type": "object",
        "properties": {"value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
        "required": ["value", "next"],
        "additionalProperties": False,
    }
    return {"$defs": {"node": node}, "$ref": "#/$defs/node"}
