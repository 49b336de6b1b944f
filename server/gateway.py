"""What every endpoint works with."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Event

from fastapi import Request

from config.gateway import GatewayConfig
from server.backend import Backend
from server.metrics import GatewayMetrics
from server.text.model import TextModels
from serving.tasks import TaskOwner


@dataclass(frozen=True, slots=True)
class Gateway:
    config: GatewayConfig
    backend: Backend
    texts: TextModels
    metrics: GatewayMetrics
    background: TaskOwner
    draining: Event = field(default_factory=Event)
    """Set once the process is to end: what is running may finish, nothing new begins."""


def gateway_of(request: Request) -> Gateway:
    """A FastAPI dependency."""
    gateway: Gateway = request.app.state.gateway
    return gateway
