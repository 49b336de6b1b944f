"""Command-line options made from settings: their names, ranges, defaults and the variables beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, SecretStr

from config.roles import TargetSettings
from tandem.options import Flag, default_text, describe, env_name, flags_of, limits, metavar

Narrow = Annotated[int, Field(ge=0, le=100)]


class Settings(BaseModel):
    name: str = Field(default="x", description="what it is called")
    count: Narrow = Field(default=5, ge=1)
    share: float | None = Field(default=None, gt=0.0, le=1.0)
    least: int = Field(default=3, ge=2)
    most: int = Field(default=3, le=9)
    switch: bool = False
    kind: Literal["a", "b"] | None = None
    urls: list[str] = []
    pools: dict[str, list[str]] = {}
    file: Path | None = None
    token: SecretStr | None = None
    host: str = "127.0.0.1"


FIELDS = Settings.model_fields


@pytest.mark.parametrize(
    ("name", "kind", "range_", "default"),
    [
        ("name", "TEXT", "", "x"),
        ("count", "INTEGER", "1 to 100", "5"),  # the narrower of two
        ("share", "NUMBER", "above 0, to 1.0", "none"),
        ("least", "INTEGER", "at least 2", "3"),
        ("most", "INTEGER", "at most 9", "3"),
        ("switch", "on|off", "", "off"),
        ("kind", "a|b", "", "none"),
        ("urls", "A,B,…", "", "none"),
        ("pools", "JSON", "", "none"),
        ("file", "FILE", "", "none"),
    ],
)
def test_an_option_is_described_by_its_field(name: str, kind: str, range_: str, default: str) -> None:
    field = FIELDS[name]
    assert (metavar(field), limits(field), default_text(field)) == (kind, range_, default)


def test_a_list_has_the_form_in_which_it_is_given() -> None:
    field: Any = Field(default=["a", "b"])
    field.annotation = list[str]
    assert default_text(field) == "a,b"


def test_secrets_are_no_options_and_the_address_comes_first() -> None:
    names = [flag.name for flag in flags_of("target", Settings, {"count": ("-c",)})]
    assert names[0] == "--host"
    assert "--token" not in names
    assert set(names) == {f"--{name}" for name in FIELDS.keys() - {"token"}}
    [count] = [flag for flag in flags_of("target", Settings, {"count": ("-c",)}) if flag.name == "--count"]
    assert (count.aliases, count.parameter) == (("-c",), "count")


def test_its_help_names_range_variable_and_default() -> None:
    assert describe(Flag("--share", (("target", "share"),), FIELDS["share"])) == (
        ". (above 0, to 1.0, env TANDEM_TARGET_SHARE, default none)"
    )
    named = Flag("--name", (("draft", "name"),), FIELDS["name"], default="the same")
    assert describe(named) == "what it is called. (env TANDEM_DRAFT_NAME, default the same)"


def test_an_option_of_several_services_has_the_variable_that_they_share() -> None:
    field = TargetSettings.model_fields["threads"]
    assert env_name(Flag("--threads", (("target", "threads"), ("draft", "threads")), field)) == "TANDEM_THREADS"
    assert env_name(Flag("--target-threads", (("target", "threads"),), field)) == "TANDEM_TARGET_THREADS"
