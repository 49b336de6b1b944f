"""What a memory of earlier answers brings over lookup alone: agentic repetition, and text never seen.

    python -m benchmarks.memory [--target MODEL] [--draft bundled-draft] [--tokens 96] [--repeats 1]

Two draft workers without a model, one of them with `history_mb` 0, and one as shipped, with the draft model and the
memory, each behind a gateway of its own; one target. Each kind is a run of requests, asked of all in turn, each under a
salt of its own, so that nothing is remembered from another kind or repetition. The first request of a kind has nothing
to go by and is left out, but for the kind `never seen`. Texts must be the same. Aim: 1.5 times lookup alone over the
repetitive kinds together, and no less than lookup on text never seen.
"""

from __future__ import annotations

import argparse
import uuid
from typing import Any

from benchmarks import report
from tandem.up_flags import draft_threads
from testing.client import Answer, Client
from testing.models import BUNDLED, bundled
from testing.processes import Stack
from testing.prompts import KINDS, SHORT

_CHANGES = [
    "",
    " Call the class Store.",
    " Add a docstring to each method.",
    " Add a method clear.",
    " Use type hints.",
]
_CITIES = ["Oslo", "Lima", "Cairo", "Quito", "Hanoi", "Accra"]
_CALL = {
    "type": "object",
    "properties": {
        "tool_name": {"const": "weather_forecast_lookup"},
        "arguments": {
            "type": "object",
            "properties": {
                "city_name": {"type": "string", "maxLength": 20},
                "temperature_unit": {"enum": ["celsius", "fahrenheit"]},
                "number_of_days": {"type": "integer", "minimum": 1, "maximum": 9},
                "include_precipitation": {"type": "boolean"},
            },
            "required": ["city_name", "temperature_unit", "number_of_days", "include_precipitation"],
            "additionalProperties": False,
        },
    },
    "required": ["tool_name", "arguments"],
    "additionalProperties": False,
}


def requests(kind: str) -> list[tuple[Any, dict[str, Any]]]:
    """The messages of each request of a kind, and what else it asks for."""
    if kind == "edits":
        task = "Write a Python class Inventory with the methods add, remove, count and total."
        return [(task + change, {"temperature": 0.0}) for change in _CHANGES]
    if kind == "tool loop":
        form = {"type": "json_schema", "json_schema": {"name": "call", "schema": _CALL}}
        asked = "Call the weather tool for {} and three days. Answer in JSON."
        return [(asked.format(city), {"temperature": 0.0, "response_format": form}) for city in _CITIES]
    if kind == "regenerate":
        return [(KINDS["chat"][0], {"temperature": 0.4, "seed": seed}) for seed in range(4)]
    if kind == "continue":
        half = "To buy a used bicycle, look at"
        begun = [{"role": "user", "content": KINDS["chat"][0]}, {"role": "assistant", "content": half}]
        going_on = {"continue_final_message": True, "add_generation_prompt": False}
        return [(begun, {"temperature": 0.0, **going_on}) for _ in range(3)]
    return [(prompt, {"temperature": 0.0}) for prompt in (*KINDS["code"], *KINDS["chat"], *SHORT[:3])]


KINDS_OF_WORK = ("edits", "tool loop", "regenerate", "continue", "never seen")


def ask(
    clients: dict[str, Client], drafter: str, salt: str, message: Any, options: dict[str, Any], tokens: int
) -> Answer:
    return clients[drafter].chat(
        message,
        stream=True,
        max_tokens=tokens,
        cache_salt=f"{salt}-{drafter}",
        **options,
    )


def measure(clients: dict[str, Client], kind: str, tokens: int, repeats: int) -> dict[str, Any]:
    seconds = dict.fromkeys(clients, 0.0)
    emitted, same, number = dict.fromkeys(seconds, 0), 0, 0
    for repeat in range(repeats):
        salt = uuid.uuid4().hex
        for place, (message, options) in enumerate(requests(kind)):
            answers = {}
            first = (place + repeat) % len(seconds)
            for drafter in [*seconds, *seconds][first : first + len(seconds)]:
                answers[drafter] = answer = ask(clients, drafter, salt, message, options, tokens)
                if place or kind == "never seen":
                    seconds[drafter] += answer.seconds - answer.ttft
                    emitted[drafter] += answer.completion_tokens - 1
            same += len({answer.text for answer in answers.values()}) == 1
            number += 1
    speeds = {drafter: emitted[drafter] / seconds[drafter] for drafter in seconds}
    ratios = {f"{one} / lookup": speeds[one] / speeds["lookup_alone"] for one in speeds if one != "lookup_alone"}
    return {"kind": kind, **speeds, **ratios, "same text": same / number}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default=BUNDLED)
    parser.add_argument("--draft", default="bundled-draft")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--kinds", nargs="+", choices=KINDS_OF_WORK, default=list(KINDS_OF_WORK))
    options = parser.parse_args()
    model = bundled() if options.target == BUNDLED else options.target
    with Stack() as stack:
        target = stack.target(model)
        drafters = {"lookup_alone": stack.draft("lookup", "draft-lookup", history_mb=0)}
        drafters["memory"] = stack.draft("lookup", "draft-memory")
        drafters["shipped"] = stack.draft(options.draft, "draft-shipped", threads=draft_threads(options.draft))
        gateways = {name: stack.gateway([target.url], [one.url], f"gateway-{name}") for name, one in drafters.items()}
        stack.wait_ready()
        clients = {name: Client(gateway.url, timeout=900) for name, gateway in gateways.items()}
        rows = []
        for name in drafters:
            ask(clients, name, "warm", "Hello", {}, 16)
        for kind in options.kinds:
            rows.append(measure(clients, kind, options.tokens, options.repeats))
            print(rows[-1], flush=True)
    report.show("Tokens/s with lookup alone, with a memory of answers too, and as shipped", rows)
    print(report.write("memory", {"rows": rows, "options": {k: str(v) for k, v in vars(options).items()}}))


if __name__ == "__main__":
    main()
