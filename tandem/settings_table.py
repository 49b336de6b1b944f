"""Writes the tables of docs/configuration.md from the settings themselves: `python -m tandem.settings_table FILE`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from config.roles import ROLES, Role, shared_fields
from tandem.options import default_text, is_secret, limits, metavar, ordered_fields

_TABLE = re.compile(r"(<!-- settings: (\w+) -->\n).*?(\n<!-- end -->)", re.DOTALL)


def table(role: Role) -> str:
    """One row for each of a service's settings; † marks those that one shared variable or top-level key may set."""
    rows = ["| setting | values | default | meaning |", "|---|---|---|---|"]
    for name, field in ordered_fields(ROLES[role]):
        mark = " †" if name in shared_fields() else ""
        mark += " (no flag)" if is_secret(field) else ""
        values = ", ".join(filter(None, (metavar(field).replace("|", " \\| "), limits(field))))
        description = (field.description or "").replace("|", "\\|")
        rows.append(f"| `{name}`{mark} | {values} | `{default_text(field)}` | {description} |")
    return "\n".join(rows)


def with_tables(text: str) -> str:
    """The text with whatever stands between its markers replaced."""
    return _TABLE.sub(lambda match: match[1] + table(_role(match[2])) + match[3], text)


def _role(name: str) -> Role:
    return next(role for role in ROLES if role == name)


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(with_tables(file.read_text(encoding="utf-8")), encoding="utf-8")
