"""Schemas as zod and pydantic write them: enforced, or refused by name."""

from __future__ import annotations

import datetime
import decimal
import enum
import ipaddress
import json
import uuid
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import pytest
from tokenizers import Tokenizer

from engines.grammar.compiler import GrammarCompiler
from engines.grammar.errors import GrammarError
from tests.engines.grammar import judge
from tests.engines.grammar.schema_table import takes
from tests.engines.grammar.test_schema_ebnf import write

# What z.toJSONSchema of zod 4.6.7 returned, without $schema.
ZOD: dict[str, Any] = json.loads((Path(__file__).parent / "zod_schemas.json").read_text())
# 253 characters with labels of up to 63: some 16,000 states, unless a slow machine gives up before.
ZOD_REFUSED = {"hostname": "automaton|takes more than"}
ZOD_VALUES: dict[str, tuple[list[Any], list[Any]]] = {
    "email": (["a@b.co"], ["a..b@b.co", ".a@b.co", "nope", "a@b"]),
    "email_max": (["a@b.co"], ["a" * 64 + "@b.co"]),
    "uuid": (["123e4567-e89b-12d3-a456-426614174000"], ["123e4567-e89b-02d3-a456-426614174000"]),
    "iso_date": (["2024-02-29"], ["2023-02-29"]),
    "iso_datetime": (["2024-02-29T12:00:00Z"], ["2024-02-29T12:00:00+01:00"]),
    "duration": (["P1DT2H", "P3W"], ["P", "P1DT", "P1W2D"]),
    "emoji": (["😀"], ["a", "1"]),
    "trim": (["abc", "abbc"], ["ac", "abbbbc", "bbc"]),
    "step": ([0.01, 3, -1.25, 0.29], [0.001]),
    "intstep": ([0, 5, 9007199254740990], [3, -5, 9007199254740995]),
    "record": ([{}, {"x": 1}], [{"x": "a"}]),
    "record_enum": ([{"a": 1, "b": 2}], [{"a": 1}, {"a": 1, "b": 2, "c": 3}]),
    "partial": ([{}, {"b": 2}], [{"c": 3}]),
    "record_re": ([{"ab": True}], [{"A": True}, {"a": 1}]),
    "tuple": ([["a", 1]], [["a"], [1, "a"], ["a", 1, 1]]),
    "tuple (draft-7)": ([["a", 1]], [["a"], [1, "a"], ["a", 1, 1]]),
    "tuple_rest (draft-7)": ([["a"], ["a", 1, 2]], [[], ["a", "b"]]),
    "disc": ([{"t": "a", "x": 1}], [{"t": "a", "y": "b"}]),
    "catchall": ([{"a": 1}, {"b": "x", "a": 1}], [{"a": "x"}, {"a": 1, "b": 2}]),
    "xor": ([{"a": 1}, {"b": 1}], [{}, {"a": 1, "b": 1}]),
    "never": ([{}], [{"a": 1}]),
    "tmpl": (["v1", "v-1.5"], ["v", "x1"]),
    "json": ([{"a": [1, None, "x", {"b": True}]}], []),
}


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]
    lives: Annotated[int, pydantic.Field(ge=1, le=9)]


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]
    age: float | None = None


class Everything(pydantic.BaseModel):
    price: decimal.Decimal
    cents: Annotated[decimal.Decimal, pydantic.Field(max_digits=4, decimal_places=2)]
    step: Annotated[float, pydantic.Field(multiple_of=0.5, ge=0, lt=10)]
    code: Annotated[str, pydantic.Field(pattern=r"^[A-Z]\d+$", min_length=2, max_length=5)]
    day: datetime.date
    at: datetime.time
    when: datetime.datetime
    id: uuid.UUID
    address: ipaddress.IPv4Address
    colour: Colour
    pair: tuple[int, str]
    counts: dict[str, int]
    pet: Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]
    raw: bytes
    link: Annotated[pydantic.AnyUrl, pydantic.Field(max_length=60)]
    children: list[Everything] = pydantic.Field(default_factory=list, max_length=2)


def _keeps(compiler: GrammarCompiler, tokenizer: Tokenizer, schema: Any, seeds: int) -> None:
    finished = 0
    for seed in range(seeds):
        text = write(compiler, tokenizer, schema, seed, most=1500)
        if text is not None:
            finished += 1
            assert judge.valid(schema, text), text
    assert finished


@pytest.mark.parametrize("name", ZOD)
def test_what_zod_writes(compiler: GrammarCompiler, tokenizer: Tokenizer, name: str) -> None:
    schema = ZOD[name]
    good, bad = ZOD_VALUES.get(name, ([], []))
    texts = [json.dumps(value, ensure_ascii=False) for value in (*good, *bad)]
    if name in ZOD_REFUSED:
        with pytest.raises(GrammarError, match=ZOD_REFUSED[name]):
            takes(compiler, tokenizer, schema, texts)
        return
    assert takes(compiler, tokenizer, schema, texts) == [True] * len(good) + [False] * len(bad)
    _keeps(compiler, tokenizer, schema, 3)


@pytest.mark.parametrize("mode", ["validation", "serialization"])
def test_what_pydantic_writes(
    compiler: GrammarCompiler, tokenizer: Tokenizer, mode: Literal["validation", "serialization"]
) -> None:
    schema = Everything.model_json_schema(mode=mode)
    finished = 0
    for seed in range(12):
        text = write(compiler, tokenizer, schema, seed, most=2500)
        if text is not None:
            finished += 1
            assert judge.valid(schema, text), text
    assert finished
