"""The three services as the command line starts them: a worker's or the gateway's settings, and where it listens."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from config.gateway import GatewayConfig
from config.workers import DraftWorkerConfig, TargetWorkerConfig

Role = Literal["serve", "draft", "target"]
Host = Annotated[str, Field(min_length=1, description="address to listen on; loopback unless you say otherwise")]
Port = Annotated[int, Field(ge=1, le=65535, description="port to listen on")]


class ServeSettings(GatewayConfig):
    """`tandem serve`."""

    host: Host = "127.0.0.1"
    port: Port = 8000


class DraftSettings(DraftWorkerConfig):
    """`tandem draft`."""

    host: Host = "127.0.0.1"
    port: Port = 8001


class TargetSettings(TargetWorkerConfig):
    """`tandem target`."""

    host: Host = "127.0.0.1"
    port: Port = 8002


ROLES: dict[Role, type[BaseModel]] = {"serve": ServeSettings, "draft": DraftSettings, "target": TargetSettings}

# Settings that differ from service to service though the name is the same: no TANDEM_PORT for all three at once.
_ROLE_ONLY = frozenset({"host", "port", "model", "draft_model"})


def shared_fields() -> frozenset[str]:
    """Settings that two services or more have and that one TANDEM_… variable or top-level key may set for all."""
    names = [name for model in ROLES.values() for name in model.model_fields]
    return frozenset(name for name in names if names.count(name) > 1) - _ROLE_ONLY


def variable(role: Role, field: str) -> str:
    """The environment variable that sets a field for one service."""
    return f"TANDEM_{role}_{field}".upper()


def shared_variable(field: str) -> str:
    """The environment variable that sets a shared field for every service that has it."""
    return f"TANDEM_{field}".upper()
