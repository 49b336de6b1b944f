"""Is the text the same whatever speculates? A covering array of settings, each cell compared with plain decoding."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from basics.names import AUTO, MAX_UNDER_WAY
from config.pairs import BUNDLED_DRAFT
from testing.client import Answer, Client
from testing.models import bundled
from testing.processes import Stack
from testing.prompts import REPEAT, SHORT
from testing.proxy import Proxy
from testing.stacks import BITWISE, Services, speculative, start

MAX_TOKENS = 32
PROMPTS = [REPEAT, *SHORT[:4]]
SEED = 20_221
TRIES = 40
"""How often a prompt is asked at most, until its answer shows what the cell is to show. On a starved machine a drafter
may take longer to read a prompt than the target to answer, and what it prepares may come too late."""
FACTORS: dict[str, tuple[Any, ...]] = {
    "temperature": (0.0, 0.3, 0.7, 1.0, 1.5),
    "top_p": (1.0, 0.9),
    "penalties": (False, True),
    "drafter": ("none", "lookup", "model", "scripted", "partly_right", AUTO),
    "draft_tokens": (1, 3, 8),
    "candidates": (1, 3),
    "adaptive": (False, True),
}
LOOKS_AHEAD = ("model", AUTO)
AHEAD = {"prepared": "tandem_lookahead_tokens_total", "ahead": 'tandem_verifications_ahead_total{outcome="used"}'}
"""Counters of the gateway: prepared tokens that were used, and verifications that were sent before the last verdict."""
PENALTIES = {"presence_penalty": 0.4, "frequency_penalty": 0.3, "repetition_penalty": 1.1}


@dataclass(frozen=True, slots=True)
class Cell:
    temperature: float
    top_p: float
    penalties: bool
    drafter: str
    draft_tokens: int
    candidates: int
    adaptive: bool

    @property
    def sampling(self) -> dict[str, Any]:
        penalties = PENALTIES if self.penalties else {}
        return {"temperature": self.temperature, "top_p": self.top_p, "seed": SEED, **penalties}

    @property
    def speculative(self) -> dict[str, Any]:
        return speculative(self.drafter, self.draft_tokens, self.candidates, self.adaptive)

    @property
    def name(self) -> str:
        return " ".join(f"{key}={value}" for key, value in asdict(self).items())


Pair = tuple[tuple[str, Any], tuple[str, Any]]
_ONLY_WITH_DRAFTS = ("draft_tokens", "candidates", "adaptive")


def covering_array(seed: int = 0) -> list[Cell]:
    """Cells in which every pair of values of every two factors occurs, chosen greedily; the same list for one seed.

    A cell without a drafter covers no pair with γ, N or adaptation, since they mean nothing there. `partly_right`,
    whose drafts are the ones to be accepted, meets every γ with every N, fixed and adaptive; the drafters with
    lookahead meet every γ with one candidate (several are never prepared), fixed and adaptive.
    """
    choose = random.Random(seed)
    uncovered = set().union(*(_pairs(dict(zip(FACTORS, v, strict=True))) for v in itertools.product(*FACTORS.values())))
    cells: list[Cell] = []
    while uncovered:
        first = dict(min(uncovered, key=repr))
        settings = max(
            (_complete(first, uncovered, choose) for _ in range(60)), key=lambda s: len(_pairs(s) & uncovered)
        )
        uncovered -= _pairs(settings)
        cells.append(Cell(**settings))
    shapes = [
        {"drafter": drafter, **dict(zip(_ONLY_WITH_DRAFTS, values, strict=True))}
        for drafter in ("partly_right", *LOOKS_AHEAD)
        for values in itertools.product(*(FACTORS[name] for name in _ONLY_WITH_DRAFTS))
    ]
    for wanted in shapes:
        if wanted["drafter"] in LOOKS_AHEAD and wanted["candidates"] > 1:
            continue
        if not any(wanted.items() <= asdict(cell).items() for cell in cells):
            cells.append(Cell(**_complete(wanted, uncovered, choose)))
    return cells


def _complete(settings: dict[str, Any], uncovered: set[Pair], choose: random.Random) -> dict[str, Any]:
    """Choose the other factors one by one, in a random order, each to cover the most pairs."""
    settings = dict(settings)
    for name in choose.sample(list(FACTORS), len(FACTORS)):
        if name not in settings:
            gains = {value: len(_pairs({**settings, name: value}) & uncovered) for value in FACTORS[name]}
            settings[name] = choose.choice([value for value, gain in gains.items() if gain == max(gains.values())])
    return settings


def _pairs(settings: dict[str, Any]) -> set[Pair]:
    """The pairs that these settings (of some of the factors) cover."""
    idle = _ONLY_WITH_DRAFTS if settings.get("drafter") == "none" else ()
    named = [(name, settings[name]) for name in FACTORS if name in settings and name not in idle]
    return set(itertools.combinations(named, 2))


def drawn(cells: Sequence[Cell], count: int, seed: int = 9) -> list[Cell]:
    """A random selection of the cells, taking drafters in turn."""
    turns = dict.fromkeys(FACTORS["drafter"], 0)
    ranked: list[tuple[int, int]] = []
    for index in random.Random(seed).sample(range(len(cells)), len(cells)):
        ranked.append((turns[cells[index].drafter], index))
        turns[cells[index].drafter] += 1
    return [cells[index] for _, index in sorted(ranked, key=lambda turn: turn[0])[:count]]


@contextmanager
def running() -> Iterator[Services]:
    """The bundled pair in bitwise mode, and a gateway that has each drafter under its name in FACTORS.

    It has `lookahead: on`, and the target is 20 ms away, so that verifications are in flight, several if that pays:
    none of that may change the text of any cell. Its draft worker's model is one that is often right: what is prepared
    for a draft that never is, is never used.
    """
    model = bundled()
    with Stack() as stack, ExitStack() as links:

        def link(url: str) -> str:
            return links.enter_context(Proxy(url, 0.01)).url

        workers = {**BITWISE, "slots": 8, "context_length": 1024}
        drafters = ["model", "lookup", "scripted", "partly_right"]  # the first is that of `auto`
        ahead = {"lookahead": "on", "verifications_in_flight": MAX_UNDER_WAY}
        yield start(stack, model, BUNDLED_DRAFT, drafters=drafters, worker_settings=workers, link=link, **ahead)


def ask(client: Client, cell: Cell, prompt: str, max_tokens: int) -> Answer:
    return client.chat(
        prompt, max_tokens=max_tokens, logprobs=True, speculative=cell.speculative, **cell.sampling, ignore_eos=True
    )


def teach(client: Client, cell: Cell, prompt: str, max_tokens: int) -> None:
    """Have a `partly_right` drafter see what is right: an answer as long as this, and what it draws from next."""
    slowly = Cell(**{**asdict(cell), "draft_tokens": 1, "candidates": 1, "adaptive": False})
    ask(client, slowly, prompt, max_tokens + 2)  # it never sees a last round's tokens, two at most


class Reference:
    """Plain decoding's answers, asked for once for each prompt and sampling parameters."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[tuple[str, str, int], Answer] = {}

    def answer(self, cell: Cell, prompt: str, max_tokens: int) -> Answer:
        key = (repr(cell.sampling), prompt, max_tokens)
        if key not in self._known:
            plain = Cell(**{**asdict(cell), "drafter": "none"})
            self._known[key] = ask(self._client, plain, prompt, max_tokens)
        return self._known[key]


def compare(
    client: Client, reference: Reference, cell: Cell, prompts: Sequence[str], max_tokens: int = MAX_TOKENS
) -> dict[str, Any]:
    """One cell: what differed (nothing, ideally), and how much speculation there was."""
    differences: list[dict[str, str]] = []
    found: dict[str, Any] = {"differences": differences, "accepted": 0, "drafted": 0}
    before = client.metrics()
    again = itertools.chain.from_iterable(itertools.repeat(prompts, TRIES))
    for number, prompt in enumerate(again):
        if number >= len(prompts) and (cell.drafter in ("none", "lookup") or not unproven_alone(cell, found)):
            break
        expected = reference.answer(cell, prompt, max_tokens)
        if cell.drafter == "partly_right":
            teach(client, cell, prompt, max_tokens)
        answer = ask(client, cell, prompt, max_tokens)
        if answer.identity != expected.identity:
            differences.append({"prompt": prompt, "expected": expected.text, "found": answer.text})
        found["accepted"] += (answer.speculation or {}).get("num_accepted_draft_tokens", 0)
        found["drafted"] += (answer.speculation or {}).get("num_draft_tokens", 0)
        page = client.metrics()
        found |= {name: int(page[counter] - before[counter]) for name, counter in AHEAD.items()}
    return found


def unproven_alone(cell: Cell, result: Mapping[str, Any]) -> str | None:
    """What one cell should have shown and did not. Adaptation may choose not to draft, lookup may find nothing."""
    if cell.drafter == "partly_right" and not result["accepted"]:
        return f"no token accepted: {cell.name}"
    if cell.drafter in ("model", "scripted") and not cell.adaptive and not result["drafted"]:
        return f"no token drafted: {cell.name}"
    if cell.drafter == "model" and cell.candidates == 1 and not cell.adaptive and not result["prepared"]:
        return f"no prepared token used: {cell.name}"
    return None


def unproven(results: Mapping[Cell, Mapping[str, Any]]) -> list[str]:
    """What these cells should have shown, alone or together, and did not.

    No drafter but `partly_right`, whose cells are judged alone, must draft in adaptive cells: where its drafts are
    hardly ever right, adaptation on a busy machine rightly stops asking for them.
    """
    found = [line for cell, result in results.items() if (line := unproven_alone(cell, result)) is not None]
    drafted: dict[str, int] = {}
    for cell, result in results.items():
        if cell.drafter != "none":
            drafted[cell.drafter] = drafted.get(cell.drafter, 0) + result["drafted"]
    found += [f"no token drafted: any cell of {drafter}" for drafter, count in drafted.items() if not count]
    looked_up = [result["accepted"] for cell, result in results.items() if cell.drafter == "lookup"]
    return [*found, "no token accepted: any cell of lookup"] if looked_up and not sum(looked_up) else found
