"""Tool calls with long arguments: tokens/s as drafted by default, against plain decoding.

    python -m benchmarks.tool_calls [--target MODEL] [--draft MODEL] [--repeats 3] [--cases …] [--choices …]
        [--formats …]

Each case is a turn in an agent's conversation, after a call of another kind: the prompt is in the cache, as it usually
is there. It is asked plainly and with drafts in turn, each repetition under a salt of its own, so that no earlier
answer is remembered. Medians of the ratios are shown, by form, case and `tool_choice`; the texts must be the same. Aim:
1.5 times over all cases together in which something is called. `accepted` counts tokens by drafter, in the last
repetition. With `auto` the question asks for the call's JSON, or a small model calls nothing. `--formats` names how
calls are written (the setting `tool_call_parser`); a format that is not the model's own is described to it in words.
"""

from __future__ import annotations

import argparse
import json
import time
import uuid
from typing import Any

import httpx

from basics.names import LOOKUP
from benchmarks import report
from server.reading.tools.formats import FORMATS
from testing.models import BUNDLED, bundled
from testing.processes import Stack

Body = dict[str, Any]
CHOICES = ("required", "named", "auto")
_TO_READ = 4
"""Requests until a draft model, which nothing waits for long, has surely read the prompt."""

_FILE = '''import csv
from pathlib import Path


def load_orders(path: Path) -> list[dict[str, str]]:
    """Read every order of a CSV file."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def total_by_customer(orders: list[dict[str, str]]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for order in orders:
        customer = order["customer"]
        totals[customer] = totals.get(customer, 0.0) + float(order["amount"])
    return totals
'''


def _tool(name: str, description: str, properties: Body) -> Body:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


_TEXT: Body = {"type": "string"}
TOOLS = [
    _tool("read_file", "Reads a file", {"path": _TEXT}),
    _tool("write_file", "Writes a whole file", {"path": _TEXT, "content": _TEXT}),
    _tool(
        "register_customer",
        "Registers a customer",
        {
            "first_name": _TEXT,
            "last_name": _TEXT,
            "date_of_birth": {"type": "string", "format": "date"},
            "street_and_number": _TEXT,
            "postal_code": _TEXT,
            "city_name": _TEXT,
            "country_code": {"type": "string", "pattern": "^[A-Z]{2}$"},
            "telephone_number": _TEXT,
            "preferred_contact_method": {"enum": ["telephone", "letter", "electronic_mail"]},
            "newsletter_subscription": {"type": "boolean"},
        },
    ),
    _tool(
        "create_events",
        "Puts events into a calendar",
        {
            "events": {
                "type": "array",
                "minItems": 4,
                "maxItems": 4,
                "items": {
                    "type": "object",
                    "properties": {
                        "event_title": _TEXT,
                        "start_date": {"type": "string", "format": "date"},
                        "duration_in_minutes": {"type": "integer", "minimum": 15, "maximum": 240},
                        "meeting_room": {"enum": ["Amber", "Birch", "Cedar"]},
                    },
                    "required": ["event_title", "start_date", "duration_in_minutes", "meeting_room"],
                    "additionalProperties": False,
                },
            }
        },
    ),
]
CASES = {
    "file": (
        "write_file",
        f"Copy this file to backup/orders.py, word for word, with the function write_file:\n\n{_FILE}",
    ),
    "form": (
        "register_customer",
        "Register Johanna Lindqvist, born on 1987-04-23. She lives at 14 Harbour Street, 11152 Stockholm, SE. Her "
        "telephone number is +46 8 123 456. She wants letters, and no newsletter.",
    ),
    "list": (
        "create_events",
        "Create these events: Budget review on 2026-03-02 for 60 minutes in Amber, Design workshop on 2026-03-04 for "
        "120 minutes in Birch, Customer interview on 2026-03-05 for 45 minutes in Cedar, Release planning on "
        "2026-03-09 for 90 minutes in Amber.",
    ),
}


_BEFORE: list[Body] = [
    {"role": "system", "content": "You only ever answer with a function call."},
    {
        "role": "user",
        "content": "Write a note to notes/today.txt: The printer works again. Ask Ada about the invoices.",
    },
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {
                    "name": "write_file",
                    "arguments": json.dumps(
                        {
                            "path": "notes/today.txt",
                            "content": "The printer works again. Ask Ada about the invoices.",
                        }
                    ),
                },
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "Written."},
    {"role": "assistant", "content": "The note is written."},
]


def body(model: str, case: str, choice: str, tokens: int) -> Body:
    name, question = CASES[case]
    if choice == "auto":
        question = f"Write the JSON that calls {name}. {question}"
    asked: Any = {"type": "function", "function": {"name": name}} if choice == "named" else choice
    return {
        "model": model,
        "messages": [*_BEFORE, {"role": "user", "content": question}],
        "tools": TOOLS,
        "tool_choice": asked,
        "parallel_tool_calls": False,
        "temperature": 0,
        "max_tokens": tokens,
    }


def ask(client: httpx.Client, request: Body) -> tuple[Body, float]:
    """The answer, and the seconds that it took."""
    began = time.perf_counter()
    answer = client.post("/v1/chat/completions", json=request)
    seconds = time.perf_counter() - began
    answer.raise_for_status()
    found: Body = answer.json()
    return found, seconds


def said(answer: Body) -> Any:
    """What must be the same with drafts and without."""
    choice = answer["choices"][0]
    calls = [call["function"] for call in choice["message"].get("tool_calls") or ()]
    return choice["message"]["content"], calls, choice["finish_reason"], answer["usage"]["completion_tokens"]


def measure(client: httpx.Client, request: Body, repeats: int) -> Body:
    """Plain and drafted in turn; both workers have read the prompt before, as an agent's usually have."""
    ratios, speeds, same = [], [], True
    counts: Body = {}
    for repeat in range(repeats):
        salted = {**request, "cache_salt": uuid.uuid4().hex}
        for _ in range(_TO_READ):
            ask(client, {**salted, "max_tokens": 3, "speculative": {"draft_tokens": 1, "adaptive_speculation": False}})
        ways = {"plain": {"speculative": {"enabled": False}}, "drafted": {}}
        found = {name: ask(client, {**salted, **ways[name]}) for name in sorted(ways, reverse=bool(repeat % 2))}
        (plain, plain_seconds), (drafted, seconds) = found["plain"], found["drafted"]
        same &= said(plain) == said(drafted)
        ratios.append(plain_seconds / seconds)
        speeds.append(drafted["usage"]["completion_tokens"] / seconds)
        counts = drafted["metrics"]["speculative_decoding"] | {"tokens": drafted["usage"]["completion_tokens"]}
    return {
        "tokens": counts["tokens"],
        "ratio": report.median(ratios),
        "tokens/s": report.median(speeds),
        "same text": same,
        "rounds": counts["num_spec_steps"],
        "drafted": counts["num_draft_tokens"],
        "accepted": json.dumps(counts["accepted_by_drafter"]),
        "calls": len(drafted["choices"][0]["message"].get("tool_calls") or ()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default=BUNDLED)
    parser.add_argument("--draft", default=LOOKUP, help="a model, or lookup: no model")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--choices", nargs="+", choices=CHOICES, default=list(CHOICES))
    parser.add_argument("--formats", nargs="+", choices=["auto", *FORMATS], default=["auto"])
    parser.add_argument("--verbose", action="store_true", help="print what was said, too")
    options = parser.parse_args()
    model = str(bundled()) if options.target == BUNDLED else options.target
    rows = []
    with Stack() as stack:
        target = stack.target(model)
        draft = stack.draft(options.draft, grammar_model=model)
        gateways = [
            stack.gateway([target.url], [draft.url], name=f"gateway-{form}", tool_call_parser=form)
            for form in options.formats
        ]
        stack.wait_ready()
        for gateway in gateways:
            with httpx.Client(base_url=gateway.url, timeout=900, trust_env=False) as client:
                card = client.get("/v1/models").json()["data"][0]
                for _ in range(3):  # the draft worker reads the vocabulary with the first grammar
                    ask(client, body(card["id"], "form", "named", 24))
                for case in options.cases:
                    for choice in options.choices:
                        request = body(card["id"], case, choice, options.tokens)
                        found = measure(client, request, options.repeats)
                        rows.append({"form": card["tool_call_format"], "case": case, "tool_choice": choice, **found})
                        print(rows[-1], flush=True)
                        if options.verbose:
                            print(said(ask(client, request)[0]))
    called = [row["ratio"] for row in rows if row["calls"]]
    whole = report.median(called) if called else None
    report.show(f"Tool calls, tokens/s over plain decoding's; median of what called something: {whole}", rows)
    print(report.write("tool_calls", {"rows": rows, "median": whole, "options": vars(options)}))


if __name__ == "__main__":
    main()
