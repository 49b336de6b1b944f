"""Another library's judgement of values: jsonschema, with exact decimals, ECMA's properties and formats switched on."""

from __future__ import annotations

import datetime
import ipaddress
import json
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import regex
from jsonschema import Draft7Validator, Draft202012Validator, FormatChecker, ValidationError
from jsonschema.validators import extend

FORMATS = FormatChecker(formats=[])


def _pattern(validator: Any, pattern: str, value: Any, schema: Any) -> Iterator[ValidationError]:
    # Python's $ also matches before a line end.
    if isinstance(value, str) and not regex.search(pattern.replace("$", r"\Z"), value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


@FORMATS.checks("date", raises=ValueError)
def _date(value: object) -> bool:
    return not isinstance(value, str) or (len(value) == 10 and bool(datetime.date.fromisoformat(value)))


@FORMATS.checks("time", raises=ValueError)
def _time(value: object) -> bool:
    if not isinstance(value, str):
        return True
    whole = regex.fullmatch(r"(\d\d:\d\d:\d\d)(\.\d+)?([Zz]|[+-]\d\d:\d\d)", value)
    return whole is not None and datetime.time.fromisoformat(whole[1] + whole[3].upper()).tzinfo is not None


@FORMATS.checks("date-time", raises=ValueError)
def _date_time(value: object) -> bool:
    return not isinstance(value, str) or (value[10:11] in ("T", "t") and _date(value[:10]) and _time(value[11:]))


@FORMATS.checks("uuid", raises=ValueError)
def _uuid(value: object) -> bool:
    return not isinstance(value, str) or (len(value) == 36 and str(uuid.UUID(value)) == value.lower())


@FORMATS.checks("ipv4", raises=ValueError)
def _ipv4(value: object) -> bool:
    return not isinstance(value, str) or bool(ipaddress.IPv4Address(value))


@FORMATS.checks("ipv6", raises=ValueError)
def _ipv6(value: object) -> bool:
    return not isinstance(value, str) or bool(ipaddress.IPv6Address(value)) or value == "::"


@FORMATS.checks("email")
def _email(value: object) -> bool:
    return not isinstance(value, str) or regex.fullmatch(r"[^@\s]+@[^@\s]+\.[^@\s]+", value) is not None


_Current = extend(Draft202012Validator, {"pattern": _pattern})
_Old = extend(Draft7Validator, {"pattern": _pattern})


def valid(schema: Any, text: str) -> bool:
    """Whether a JSON text is valid under a schema; draft-07 where it has a list in `items`."""
    old = isinstance(schema, dict) and isinstance(schema.get("items"), list)
    value = json.loads(text, parse_float=Decimal)
    exact = json.loads(json.dumps(schema), parse_float=Decimal)
    return bool((_Old if old else _Current)(exact, format_checker=FORMATS).is_valid(value))
