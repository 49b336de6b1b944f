"""The flags of `tandem up`, and how they, the pair and the other settings become three services' settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from basics.machine import available_cores
from basics.names import LOOKUP
from config.pairs import BUNDLED_DRAFT, Pair, full_id, is_bundled, pair_for
from config.roles import ROLES, DraftSettings, Role, ServeSettings, TargetSettings
from config.settings import Loaded, SettingsError, load
from tandem.addresses import service_url
from tandem.options import Flag
from tandem.processes import DRAIN_SECONDS

S = TypeVar("S", bound=BaseModel)


def _flag(name: str, *sets: tuple[Role, str], default: str | None = None) -> Flag:
    role, field = sets[0]
    return Flag(name, sets, ROLES[role].model_fields[field], default=default)


UP_FLAGS = [
    _flag("--target", ("target", "model")),
    _flag("--draft", ("draft", "model"), default="the target's pair, else lookup"),
    _flag("--draft-tokens", ("serve", "draft_tokens"), default="the pair's, else 5"),
    _flag("--strategy", ("target", "strategy")),
    _flag("--engine", ("target", "engine"), ("draft", "engine")),
    _flag("--device", ("target", "device"), ("draft", "device")),
    _flag("--dtype", ("target", "dtype"), ("draft", "dtype")),
    _flag("--batch-invariant", ("target", "batch_invariant"), ("draft", "batch_invariant")),
    _flag("--target-threads", ("target", "threads")),
    _flag("--draft-threads", ("draft", "threads"), default="1 for lookup, else half the cores"),
    _flag("--host", ("serve", "host")),
    _flag("--port", ("serve", "port")),
    _flag("--draft-port", ("draft", "port")),
    _flag("--target-port", ("target", "port")),
    _flag("--log-level", ("serve", "log_level"), ("target", "log_level"), ("draft", "log_level")),
]

_PLACES = ("--host", "--port", "--draft-port", "--target-port", "--log-level", "--draft-tokens", "--strategy")
MODEL_FLAGS = [flag for flag in UP_FLAGS if flag.name not in _PLACES]
"""What runs and on what, without where it listens and how it speculates."""


@dataclass(frozen=True, slots=True)
class UpSettings:
    """The three services' settings, and for each the flags that make a child process arrive at the same ones."""

    serve: ServeSettings
    draft: DraftSettings
    target: TargetSettings
    arguments: dict[Role, list[str]]


def settings_for_up(given: Mapping[str, Any], file: Path | None) -> UpSettings:
    """What the three processes are to run with. Raises SettingsError."""
    flags: dict[Role, dict[str, Any]] = {"serve": {}, "draft": {}, "target": {}}
    names: dict[Role, dict[str, str]] = {"serve": {}, "draft": {}, "target": {}}
    for flag in UP_FLAGS:
        for role, field in flag.sets:
            names[role][field] = flag.name
            if flag.parameter in given:
                flags[role][field] = given[flag.parameter]

    def load_role(role: Role, model: type[S]) -> Loaded[S]:
        return load(role, model, flags=flags[role], flag_names=names[role], file=file)

    target = load_role("target", TargetSettings).settings
    flags["target"]["model"] = full_id(target.model)
    target = target.model_copy(update={"model": flags["target"]["model"]})

    pair = pair_for(target.model)
    draft = load_role("draft", DraftSettings)
    named = "model" in draft.origins
    flags["draft"]["model"] = full_id(draft.settings.model) if named else _draft_of(pair, target, draft.settings)
    if "threads" not in draft.origins:
        flags["draft"]["threads"] = str(draft_threads(flags["draft"]["model"]))
    if flags["draft"]["model"] == LOOKUP and "grammar_model" not in draft.origins:
        flags["draft"]["grammar_model"] = target.model
    draft_settings = load_role("draft", DraftSettings).settings

    flags["serve"]["target_urls"] = service_url(target.host, target.port)
    flags["serve"]["draft_urls"] = service_url(draft_settings.host, draft_settings.port)
    origins = load_role("serve", ServeSettings).origins
    if "drain_seconds" not in origins:
        flags["serve"]["drain_seconds"] = str(DRAIN_SECONDS)
    if "draft_tokens" not in origins:
        flags["serve"]["draft_tokens"] = str(pair.draft_tokens)
    serve = load_role("serve", ServeSettings).settings
    _refuse_one_port_for_two(serve, draft_settings, target)
    arguments = {role: _arguments(values) for role, values in flags.items()}
    return UpSettings(serve=serve, draft=draft_settings, target=target, arguments=arguments)


def draft_threads(model: str) -> int:
    """What a draft worker gets beside a target on the same machine."""
    return 1 if model == LOOKUP else max(1, available_cores() // 2)


def _draft_of(pair: Pair, target: TargetSettings, draft: DraftSettings) -> str:
    """The pair's; for the bundled model the draft trained for its weights, which runs on torch.

    On llama.cpp a few rows cost a CPU nearly as much as so many passes, so that it would not pay there anyhow.
    """
    on_torch = {target.engine, draft.engine} <= {"auto", "torch"}
    return BUNDLED_DRAFT if is_bundled(target.model) and on_torch else pair.draft


def _refuse_one_port_for_two(serve: ServeSettings, draft: DraftSettings, target: TargetSettings) -> None:
    listeners = [
        ("--port", serve.host, serve.port),
        ("--draft-port", draft.host, draft.port),
        ("--target-port", target.host, target.port),
    ]
    everywhere = ("0.0.0.0", "::")
    for (flag, host, port), (other_flag, other_host, other_port) in combinations(listeners, 2):
        if port == other_port and (host == other_host or host in everywhere or other_host in everywhere):
            raise SettingsError(f"{other_flag}: {port} is the port of {flag} already: each process needs its own")


def _arguments(values: Mapping[str, Any]) -> list[str]:
    arguments = []
    for field, value in values.items():
        name = field.replace("_", "-")
        if isinstance(value, bool):
            arguments.append(f"--{name}" if value else f"--no-{name}")
        else:
            arguments.extend([f"--{name}", str(value)])
    return arguments
