"""Command-line options made from the settings' own fields, so that name, range and meaning are written once.

Values stay text here: pydantic parses and checks them, whether they came from a flag, a variable or a file.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, cast

import typer
from annotated_types import Ge, Gt, Le
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from config.roles import Role, shared_fields, shared_variable, variable


@dataclass(frozen=True, slots=True)
class Flag:
    """An option of a command, and the settings it sets."""

    name: str
    sets: tuple[tuple[Role, str], ...]
    field: FieldInfo
    aliases: tuple[str, ...] = ()
    default: str | None = None

    @property
    def parameter(self) -> str:
        return self.name.removeprefix("--").replace("-", "_")


def flags_of(role: Role, model: type[BaseModel], aliases: Mapping[str, tuple[str, ...]]) -> list[Flag]:
    """One flag for every field of a service's settings but its secrets, which a list of processes would show to all."""
    return [
        Flag(f"--{name.replace('_', '-')}", ((role, name),), field, aliases.get(name, ()))
        for name, field in ordered_fields(model)
        if not is_secret(field)
    ]


def ordered_fields(model: type[BaseModel]) -> list[tuple[str, FieldInfo]]:
    """A service's settings by name, host and port first."""
    return sorted(model.model_fields.items(), key=lambda item: item[0] not in ("host", "port"))


def with_flags(flags: list[Flag]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a typer command these options; it receives those that were set as `given`, a dict by parameter name."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for name, p in inspect.signature(command, eval_str=True).parameters.items() if name != "given"]

        def run(**arguments: Any) -> None:
            names = {flag.parameter for flag in flags}
            given = {name: value for name, value in arguments.items() if name in names and value is not None}
            command(given=given, **{name: value for name, value in arguments.items() if name not in names})

        run.__name__, run.__doc__ = command.__name__, command.__doc__
        run.__signature__ = inspect.Signature([*own, *map(_parameter, flags)])  # type: ignore[attr-defined]
        return run

    return decorate


ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", help="YAML file of settings. (env TANDEM_CONFIG)", metavar="FILE", show_default=False),
]


def _parameter(flag: Flag) -> inspect.Parameter:
    is_switch = _members(flag.field.annotation) == [bool]
    names = [flag.name, *flag.aliases]
    if is_switch:
        names = [f"{flag.name}/--no-{flag.name[2:]}", *flag.aliases]
    option = typer.Option(
        *names,
        help=describe(flag),
        metavar=None if is_switch else metavar(flag.field),
        show_default=False,
    )
    annotation = Annotated[(bool if is_switch else str) | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(flag.parameter, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def describe(flag: Flag) -> str:
    """The field's description, its range, the variable that sets it too, and its default."""
    text = (flag.field.description or "").strip()
    notes = [limits(flag.field), f"env {env_name(flag)}", f"default {flag.default or default_text(flag.field)}"]
    return f"{text}. ({', '.join(note for note in notes if note)})"


def is_secret(field: FieldInfo) -> bool:
    return "SecretStr" in str(field.annotation)


def env_name(flag: Flag) -> str:
    role, name = flag.sets[0]
    if len(flag.sets) > 1 and name in shared_fields():
        return shared_variable(name)
    return variable(role, name)


def metavar(field: FieldInfo) -> str:
    members = _members(field.annotation)
    choices = [str(value) for member in members if typing.get_origin(member) is Literal for value in member.__args__]
    if choices:
        return "|".join(choices)
    if any(typing.get_origin(member) is list for member in members):
        return "A,B,…"
    if any(typing.get_origin(member) is dict for member in members):
        return "JSON"
    return {bool: "on|off", int: "INTEGER", float: "NUMBER", Path: "FILE"}.get(members[0], "TEXT")


def limits(field: FieldInfo) -> str:
    """ "1 to 32", "at least 1" or nothing; if a field narrows its type's range, the narrower one."""
    found = _constraints(field)
    least: float | None = max((cast(float, c.ge) for c in found if isinstance(c, Ge)), default=None)
    above: float | None = max((cast(float, c.gt) for c in found if isinstance(c, Gt)), default=None)
    most: float | None = min((cast(float, c.le) for c in found if isinstance(c, Le)), default=None)
    if least is None and above is not None:
        return f"above {above:g}" + (f", to {most}" if most is not None else "")
    if least is not None and most is not None:
        return f"{least} to {most}"
    if least is not None:
        return f"at least {least}"
    return f"at most {most}" if most is not None else ""


def default_text(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True) if not field.is_required() else None
    if value is None or value in ([], {}):
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _members(annotation: Any) -> list[Any]:
    """The types of an annotation, None left out, Annotated unwrapped."""
    if typing.get_origin(annotation) is Annotated:
        return _members(annotation.__origin__)
    if typing.get_origin(annotation) in (Union, types.UnionType):
        return [m for part in annotation.__args__ if part is not type(None) for m in _members(part)]
    return [annotation]


def _constraints(field: FieldInfo) -> list[Any]:
    found = list(field.metadata)
    for part in getattr(field.annotation, "__args__", ()):
        if typing.get_origin(part) is Annotated:
            found.extend(part.__metadata__)
    return found
