"""The formats of JSON Schema as regular expressions, each for the whole string.

https://json-schema.org/draft/2020-12/json-schema-validation#section-7.3. Where an expression is narrower than the
format, docs/structured_output.md says so: what it takes is always valid.
"""

from __future__ import annotations

_MONTHS = r"(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))"
_LEAP_YEAR = r"(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = rf"(?:(?!0000)\d{{4}}-{_MONTHS}|{_LEAP_YEAR}-02-29)"
_OFFSET = r"(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_TIME = rf"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{{1,9}})?{_OFFSET}"
_CLOCK = r"(?:\d+H(?:\d+M(?:\d+S)?)?|\d+M(?:\d+S)?|\d+S)"
_DAYS = r"(?:\d+D|\d+M(?:\d+D)?|\d+Y(?:\d+M(?:\d+D)?)?)"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_SHORT_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,28}[A-Za-z0-9])?"
_ATEXT = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
_EMAIL = rf"{_ATEXT}+(?:\.{_ATEXT}+)*@{_LABEL}(?:\.{_LABEL})+"
_BYTE = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
_H = r"[0-9A-Fa-f]{1,4}"
_LS32 = rf"(?:{_H}:{_H}|{_IPV4})"
_IPV6 = (
    rf"(?:(?:{_H}:){{6}}{_LS32}|::(?:{_H}:){{5}}{_LS32}|(?:{_H})?::(?:{_H}:){{4}}{_LS32}"
    rf"|(?:(?:{_H}:){{0,1}}{_H})?::(?:{_H}:){{3}}{_LS32}|(?:(?:{_H}:){{0,2}}{_H})?::(?:{_H}:){{2}}{_LS32}"
    rf"|(?:(?:{_H}:){{0,3}}{_H})?::{_H}:{_LS32}|(?:(?:{_H}:){{0,4}}{_H})?::{_LS32}"
    rf"|(?:(?:{_H}:){{0,5}}{_H})?::{_H}|(?:(?:{_H}:){{0,6}}{_H})?::)"
)
_PERCENT = r"%[0-9A-Fa-f]{2}"
_PCHAR = rf"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|{_PERCENT})"
_USER = rf"(?:[A-Za-z0-9._~!$&'()*+,;=:-]|{_PERCENT})*"
_HOST = rf"(?:[A-Za-z0-9._~!$&'()*+,;=-]|{_PERCENT})*"
_AUTHORITY = rf"//(?:{_USER}@)?{_HOST}(?::\d*)?(?:/{_PCHAR}*)*"
_ABSOLUTE = rf"/(?:{_PCHAR}+(?:/{_PCHAR}*)*)?"
_QUERY = rf"(?:\?(?:{_PCHAR}|[/?])*)?(?:#(?:{_PCHAR}|[/?])*)?"
_URI = rf"[A-Za-z][A-Za-z0-9+.-]*:(?:{_AUTHORITY}|{_ABSOLUTE}|{_PCHAR}+(?:/{_PCHAR}*)*|){_QUERY}"
_NO_COLON = rf"(?:[A-Za-z0-9._~!$&'()*+,;=@-]|{_PERCENT})"
_RELATIVE = rf"(?:{_AUTHORITY}|{_ABSOLUTE}|{_NO_COLON}+(?:/{_PCHAR}*)*|){_QUERY}"
_POINTER = r"(?:/(?:[^/~]|~[01])*)*"
_VARIABLE = rf"(?:[A-Za-z0-9_]|{_PERCENT})(?:\.?(?:[A-Za-z0-9_]|{_PERCENT}))*(?::[1-9]\d{{0,3}}|\*)?"
_LITERALS = rf"(?:[!#$&(-;=?-\[\]_a-z~]|{_PERCENT})"
_TEMPLATE = rf"(?:{_LITERALS}|\{{[+#./;?&]?{_VARIABLE}(?:,{_VARIABLE})*\}})*"

FORMATS: dict[str, str] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": rf"{_DATE}[Tt]{_TIME}",
    "duration": rf"P(?:\d+W|{_DAYS}(?:T{_CLOCK})?|T{_CLOCK})",
    "email": _EMAIL,
    "idn-email": _EMAIL,
    "hostname": rf"{_SHORT_LABEL}(?:\.{_SHORT_LABEL}){{0,7}}",
    "idn-hostname": rf"{_SHORT_LABEL}(?:\.{_SHORT_LABEL}){{0,7}}",
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uri": _URI,
    "iri": _URI,
    "uri-reference": rf"(?:{_URI}|{_RELATIVE})",
    "iri-reference": rf"(?:{_URI}|{_RELATIVE})",
    "uri-template": _TEMPLATE,
    "uuid": r"[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}",
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(?:0|[1-9]\d*)(?:#|{_POINTER})",
}
REFUSED = frozenset({"regex"})
"""Formats that no automaton can hold. All others that are not named here are annotations."""
