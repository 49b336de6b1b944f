"""Where settings come from: flags, then TANDEM_… variables, then a YAML file, then defaults; and clear errors.

The file has shared keys at its top and one section for each service::

    log_level: warning
    target: {model: Qwen/Qwen2.5-3B-Instruct, device: cuda}
    draft: {threads: 2}
    serve: {port: 8080}
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, EnvSettingsSource

from config.roles import ROLES, Role, shared_fields, shared_variable, variable
from config.variables import ALSO_KEY_VARIABLE, API_KEY_VARIABLE, CACHE_VARIABLE, CONFIG_VARIABLE, LIFELINE_VARIABLE

M = TypeVar("M", bound=BaseModel)

# Short forms of TANDEM_TARGET_MODEL and TANDEM_DRAFT_MODEL, as `tandem up` has --target and --draft.
_MODEL_VARIABLES: dict[Role, str] = {"target": "TANDEM_TARGET", "draft": "TANDEM_DRAFT"}
_OTHER_VARIABLES = frozenset(
    {
        CONFIG_VARIABLE,
        LIFELINE_VARIABLE,
        CACHE_VARIABLE,
        API_KEY_VARIABLE,
        ALSO_KEY_VARIABLE,
        *_MODEL_VARIABLES.values(),
    }
)


class SettingsError(Exception):
    """Wrong settings: one line for each, naming it and where it came from."""


class UnusableFile(Exception):
    """The file named by `setting` cannot be used, which only shows when the service starts; the message says why."""

    def __init__(self, setting: str, reason: str) -> None:
        super().__init__(reason)
        self.setting = setting


@dataclass(frozen=True, slots=True)
class Layer:
    """Values from one kind of source, and for each the name under which its user set it."""

    values: dict[str, Any]
    origins: dict[str, str]


@dataclass(frozen=True, slots=True)
class Loaded(Generic[M]):
    """A service's settings. `origins` names the flag, variable or key behind each that was set; defaults have none."""

    settings: M
    origins: dict[str, str]


class _Variables(EnvSettingsSource):
    """The variables under one prefix. A list may be written as JSON or separated by commas."""

    def __init__(self, model: type[BaseModel], prefix: str) -> None:
        super().__init__(
            cast(type[BaseSettings], model), case_sensitive=False, env_prefix=prefix.lower(), env_ignore_empty=True
        )

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        return _decode(str(value), field)


def load(
    role: Role,
    model: type[M],
    flags: Mapping[str, Any] | None = None,
    flag_names: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Loaded[M]:
    """One service's settings. `flags` holds what was given, by field; `flag_names` has flags not named --the-field.

    Without `file`, the one that TANDEM_CONFIG names is read, if any. Raises SettingsError.
    """
    named = {name: f"--{name.replace('_', '-')}" for name in model.model_fields} | dict(flag_names or {})
    given = {name: _flag_value(model.model_fields[name], named[name], value) for name, value in (flags or {}).items()}
    faults: list[str] = []
    layers = [
        *_file_layers(role, file, faults),
        _variable_layer(model, "TANDEM_", shared_fields() & model.model_fields.keys()),
        _short_model_variable(role),
        _variable_layer(model, variable(role, ""), model.model_fields.keys()),
        Layer(given, {name: named[name] for name in given}),
    ]
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer in layers:
        values |= layer.values
        origins |= layer.origins
    try:
        settings = model.model_validate(values)
    except ValidationError as error:
        faults += [_explain(model, role, origins, details) for details in error.errors()]
        raise SettingsError("\n".join(dict.fromkeys(faults))) from None
    if faults:
        raise SettingsError("\n".join(faults))
    return Loaded(settings, origins)


def unknown_variables(environ: Iterable[str] | None = None) -> Iterator[str]:
    """A warning for each TANDEM_… variable that sets nothing."""
    known = {variable(role, name) for role, model in ROLES.items() for name in model.model_fields}
    known |= {shared_variable(name) for name in shared_fields()} | _OTHER_VARIABLES
    for name in sorted(os.environ if environ is None else environ):
        if name.upper().startswith("TANDEM_") and name.upper() not in known:
            yield f"{name}: no such variable{_did_you_mean(name.upper(), known)}"


def _variable_layer(model: type[BaseModel], prefix: str, fields: Iterable[str]) -> Layer:
    wanted = set(fields)
    try:
        found = _Variables(model, prefix)()
    except ValueError as error:
        # pydantic-settings names the field alone; the variable is the prefix and that field.
        name = next((name for name in model.model_fields if f'"{name}"' in str(error)), "")
        raise SettingsError(f"{(prefix + name).upper()}: is not valid JSON") from None
    values = {name: value for name, value in found.items() if name in wanted}
    return Layer(values, {name: f"{prefix}{name}".upper() for name in values})


def _short_model_variable(role: Role) -> Layer:
    name = _MODEL_VARIABLES.get(role, "")
    value = os.environ.get(name)
    return Layer({"model": value}, {"model": name}) if value else Layer({}, {})


def _file_layers(role: Role, file: Path | None, faults: list[str]) -> list[Layer]:
    """The file's shared keys, then the role's section. The other sections' keys are checked too.

    Unknown keys are added to `faults`. Raises SettingsError if the file does not have the form of settings.
    """
    source = "--config"
    if file is None:
        source = CONFIG_VARIABLE
        if not (named := os.environ.get(CONFIG_VARIABLE)):
            return []
        file = Path(named)
    content = _read(file, source)
    fields = ROLES[role].model_fields
    shared = {name: value for name, value in content.items() if name not in ROLES}
    faults += _unknown(f"{file}: ", shared, shared_fields() | ROLES.keys())
    section: dict[str, Any] = {}
    for name, model in ROLES.items():
        keys = content.get(name) or {}
        if not isinstance(keys, dict):
            raise SettingsError(f"{file}: {name}: must be a section of settings, not {keys!r}")
        faults += _unknown(f"{file}: {name}.", keys, model.model_fields.keys())
        if name == role:
            section = {key: value for key, value in keys.items() if key in model.model_fields}
    shared = {name: value for name, value in shared.items() if name in fields}
    return [
        Layer(shared, {name: f"{file}: {name}" for name in shared}),
        Layer(section, {name: f"{file}: {role}.{name}" for name in section}),
    ]


_BOOLEAN = "tag:yaml.org,2002:bool"


class _Loader(yaml.SafeLoader):
    """As YAML 1.2 has it, true and false alone are booleans: `on` and `off` are values that many settings have."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOLEAN]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOLEAN, re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))


def _read(file: Path, source: str) -> dict[str, Any]:
    try:
        content = yaml.load(file.read_text(encoding="utf-8"), _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" at line {mark.line + 1}" if mark else ""
        raise SettingsError(f"{file}: is not valid YAML{line}: {getattr(error, 'problem', error)}") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SettingsError(f"{source}: cannot read {file}: {reason}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError(f"{file}: must hold settings (key: value), not {type(content).__name__}")
    return content


def _unknown(prefix: str, keys: Mapping[Any, Any], known: Iterable[str]) -> Iterator[str]:
    names = set(known)
    for key in keys:
        if key not in names:
            yield f"{prefix}{key}: no such setting{_did_you_mean(str(key), names)}"


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _flag_value(field: FieldInfo, flag: str, value: Any) -> Any:
    if not (isinstance(value, str) and str(field.annotation).startswith(("list[", "dict["))):
        return value
    try:
        return _decode(value, field)
    except ValueError:
        raise SettingsError(f"{flag}: is not valid JSON") from None


def _decode(text: str, field: FieldInfo) -> Any:
    """A list or mapping from JSON; a list may also be written with commas between. Raises ValueError."""
    if text.strip().startswith(("[", "{")) or str(field.annotation).startswith("dict["):
        return json.loads(text)
    return [part.strip() for part in text.split(",") if part.strip()]


def _explain(model: type[BaseModel], role: Role, origins: Mapping[str, str], details: ErrorDetails) -> str:
    name = str(details["loc"][0]) if details["loc"] else ""
    message = details["msg"].removeprefix("Value error, ")
    if not name:  # a check over several settings begins its message with the name of the one at fault
        named, _, rest = message.partition(": ")
        name, message = (named, rest) if named in model.model_fields else (name, message)
    where = origins.get(name) or (f"{role}.{name}" if name else f"settings of {role}")
    message = message[:1].lower() + message[1:]
    field = model.model_fields.get(name)
    is_secret = field is None or "Secret" in str(field.annotation)
    is_said = details["type"] in ("value_error", "missing")
    return f"{where}: {message}" + ("" if is_secret or is_said else f", not {details['input']!r}")
