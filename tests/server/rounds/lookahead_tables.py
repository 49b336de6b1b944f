"""Prints the tables of docs/lookahead_figures.md that are on a virtual clock: minutes on one core.

python -m tests.server.rounds.lookahead_tables [TABLE …]
"""

from __future__ import annotations

import argparse
import asyncio
from statistics import mean

from basics.names import OnOffAuto
from tests.server.rounds.adaptive.test_lookahead import pace, settings
from tests.server.rounds.auto_simulator import tokens_per_second

ROUND_TRIPS = (0.0, 0.005, 0.02, 0.05, 0.08)
PER_TOKEN = {"1/20": 1 / 20, "1/5": 1 / 5, "1/2": 1 / 2}
ACCEPTANCES = (0.5, 0.7, 0.85, 0.95)
TEXTS = {"prose": "prose", "code": "code", "tool calls": "calls", "quotation": "quotation", "mixed": "mixed"}


def row(*cells: str) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def drafting_hidden() -> None:
    """`auto` over `off`."""
    for name, per_token in PER_TOKEN.items():
        for acceptance in ACCEPTANCES:
            asked = [settings(trip, per_token, acceptance) for trip in ROUND_TRIPS]
            row(name, f"{acceptance:g}", *(f"{pace(one, 'auto') / pace(one, 'off'):.2f}" for one in asked))


def in_flight() -> None:
    """`auto` over `off`, with one verification in flight at most, then with several."""
    for name, per_token in PER_TOKEN.items():
        for acceptance in ACCEPTANCES:
            cells = []
            for trip in ROUND_TRIPS[1:]:
                asked = settings(trip, per_token, acceptance)
                off, flying = pace(asked, "off"), {**asked, "flies": True}
                cells.append(f"{pace({**flying, 'most': 2}, 'auto') / off:.2f}, {pace(flying, 'auto') / off:.2f}")
            row(name, f"{acceptance:g}", *cells)


def with_auto() -> None:
    """`draft_model: auto`: tokens a second with `off`, and how many times as fast `auto` is."""

    def speed(text: str, trip: float, lookahead: OnOffAuto, per_token: float, model: bool) -> float:
        return mean(
            asyncio.run(
                tokens_per_second(
                    "auto", text, seed=seed, network=trip, lookahead=lookahead, per_token=per_token, with_model=model
                )
            )
            for seed in (1, 2)
        )

    for name, per_token, model in (
        ("3 ms a token", 0.003, True),
        ("6 ms a token", 0.006, True),
        ("none", 0.003, False),
    ):
        for title, text in TEXTS.items():
            cells = []
            for trip in ROUND_TRIPS:
                off = speed(text, trip, "off", per_token, model)
                cells.append(f"{off:.0f} · {speed(text, trip, 'auto', per_token, model) / off:.2f}")
            row(name, title, *cells)


TABLES = {table.__name__: table for table in (drafting_hidden, in_flight, with_auto)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"only these of {', '.join(TABLES)}")
    for name in parser.parse_args().tables or TABLES:
        if name not in TABLES:
            parser.error(f"there is no table {name}")
        print(f"\n{name}\n")
        TABLES[name]()


if __name__ == "__main__":
    main()
