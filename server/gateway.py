"""What every endpoint works with."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request

from config.gateway import GatewayConfig
from server.backend import Backend
from server.metrics import Metrics
from server.text.model import TextModels
from serving.background import Background


@dataclass(frozen=True, slots=True)
class Gateway:
    config: GatewayConfig
    backend: Backend
    texts: TextModels
    metrics: Metrics
    background: Background


def gateway_of(request: Request) -> Gateway:
    """A FastAPI dependency."""
    gateway: Gateway = request.app.state.gateway
    return gateway
