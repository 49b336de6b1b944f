"""Names and bounds that settings, wire, gateway and workers agree on. Each is defined here and nowhere else."""

from __future__ import annotations

from typing import Literal, get_args

LOOKUP = "lookup"
"""The drafter that needs no model. Every draft worker has it, whatever its own model."""

MODEL = "model"
"""The source of what a draft model draws."""

CACHE = "cache"
"""The source of tokens that a draft model had drawn before it was asked for a draft."""

AUTO = "auto"
"""Names no drafter: the draft worker uses the one that is worth most, round by round."""

Strategy = Literal["deterministic", "probabilistic", "threshold", "greedy"]
"""How a target decides which drafted tokens it accepts; what each of them needs and promises is part of a target's
capabilities (protocol.worker_info.StrategyFacts)."""
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)

OnOffAuto = Literal["auto", "on", "off"]

MAX_DRAFT_TOKENS = 32
"""The largest γ: draft tokens a round."""
MAX_UNDER_WAY = 5
"""Verifications of a session at a time: one that is judged, and those that are held for its verdict."""
MAX_CANDIDATES = 8
"""The largest N: candidates a round."""

GREEDY_TEMPERATURE = 1e-5
"""Below this temperature one token is left: the likeliest, the lowest id on ties. vLLM has the same threshold."""
