"""The set-ups that tests and benchmarks run: one target, some drafters, a gateway that knows each by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from testing.client import Client
from testing.patience import PATIENCE
from testing.processes import Process, Stack

BITWISE = {"batch_invariant": True, "dtype": "float32"}
SCRIPTED = {"scripted": "wrong", "partly_right": "partly_right"}
"""Drafters that are testing/scripted_draft.py, and its mode at first."""


@dataclass
class Services:
    """Running processes; `client` talks to the gateway."""

    target: Process
    drafters: dict[str, Process]
    gateway: Process
    client: Client


def start(
    stack: Stack,
    model: Path | str,
    draft_model: Path | str | None = None,
    *,
    drafters: Iterable[str] = ("lookup", "model", "scripted"),
    worker_settings: dict[str, Any] | None = None,
    link: Callable[[str], str] = lambda url: url,
    **gateway_settings: Any,
) -> Services:
    """Start and await everything. `drafters` may name lookup, model (`draft_model`) and two scripted ones: `scripted`,
    wrong by default, and `partly_right`.

    The first of them is the default one. Worker settings go to the target and the draft model alike. `link` turns the
    target's address into the one that the gateway is told.
    """
    shared = worker_settings or {}
    target = stack.target(model, **shared)
    running: dict[str, Process] = {}
    for name in drafters:
        if name == "model":
            assert draft_model is not None, "the drafter `model` needs a draft_model"
            running[name] = stack.draft(draft_model, "draft-model", **shared)
        elif name == "lookup":
            running[name] = stack.draft("lookup", "draft-lookup")
        else:
            running[name] = stack.module(f"draft-{name}", "testing.scripted_draft", "--mode", SCRIPTED[name])
    default = next(iter(running), None)
    gateway = stack.gateway(
        [link(target.url)],
        [running[default].url] if default else [],
        draft_pools={name: [process.url] for name, process in running.items()},
        **gateway_settings,
    )
    stack.wait_ready()
    for name in SCRIPTED.keys() & running.keys():  # their wrong tokens must be tokens
        size = httpx.get(f"{target.url}/v1/model", trust_env=False, timeout=PATIENCE).json()["vocabulary"]["size"]
        httpx.post(
            f"{running[name].url}/behave", json={"vocabulary": size}, trust_env=False, timeout=PATIENCE
        ).raise_for_status()
    return Services(target, running, gateway, Client(gateway.url))


def speculative(drafter: str, draft_tokens: int = 5, candidates: int = 1, adaptive: bool = False) -> dict[str, Any]:
    """The request's block for one of these drafters; `none` is plain decoding."""
    if drafter == "none":
        return {"enabled": False}
    return {
        "draft_model": drafter,
        "draft_tokens": draft_tokens,
        "num_candidates": candidates,
        "adaptive_speculation": adaptive,
    }
