"""Loading what runs in this process: the workers' services, and the gateway over them."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import httpx
from fastapi import FastAPI
from pydantic import BaseModel, ValidationError

from basics.names import LOOKUP
from config.gateway import GatewayConfig
from config.workers import DraftWorkerConfig, TargetWorkerConfig
from engines.lent import take_back
from tandem.python.errors import ModelUnavailable
from tandem.python.models import AUTO, Loaded, Model, is_address, pair_of, written

C = TypeVar("C", bound=BaseModel)

TARGET_URL = "http://target.in-process"
DRAFT_URL = "http://draft.in-process"
_DAY = 86_400.0
_GATEWAY: dict[str, Any] = {
    "max_choices": 128,
    "max_body_bytes": 2**28,
    # Nobody is on the other side of a network: who reads slowly is the program itself.
    "write_timeout_seconds": _DAY,
    "request_timeout_seconds": _DAY,
    "keep_alive_seconds": _DAY,
    "verify_timeout_seconds": 600.0,
    "log_level": "warning",
}
_WORKER: dict[str, Any] = {"stall_timeout_ms": 3_600_000, "log_level": "warning"}


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be loaded. The options are settings of the services by name (docs/configuration.md)."""

    target: str | Loaded
    draft: Model = AUTO
    target_options: Mapping[str, Any] = field(default_factory=dict)
    draft_options: Mapping[str, Any] = field(default_factory=dict)
    gateway_options: Mapping[str, Any] = field(default_factory=dict)
    worker_token: str | None = None
    ready_seconds: float = 60.0


class Workers:
    """The services that a plan has in this process, loaded, and the settings of the gateway over them."""

    def __init__(self, plan: Plan) -> None:
        """Takes as long as loading the models takes. Raises ModelUnavailable, ValueError for an option."""
        self.here: dict[str, Any] = {}
        self._folders: list[tempfile.TemporaryDirectory[str]] = []
        self._lent: list[Path] = []
        try:
            self.gateway = self._load(plan)
        except BaseException:
            self.abandon()
            raise

    def _load(self, plan: Plan) -> GatewayConfig:
        target_url = draft_url = None
        if is_address(plan.target):
            target_url, name = str(plan.target), ""
        else:
            options = {**_WORKER, **_of_object(plan.target), **plan.target_options}
            folder, name = self._named(plan.target, options)
            target_config = _checked(TargetWorkerConfig, "target_options", {"model": folder, **options})
            _prepare(target_config)
            target_url = self._serve("target", target_config)
        draft = plan.draft
        if draft == AUTO:
            draft = pair_of(name or _served_by(target_url, plan.worker_token))
        if is_address(draft):
            draft_url = str(draft)
        elif draft is not None:
            options = {**_WORKER, **_of_object(draft)}
            if draft == LOOKUP and not is_address(plan.target):
                options["grammar_model"] = target_config.model
            # What is said of the target's machine and numbers holds for a draft beside it.
            shared = {key: plan.target_options[key] for key in _SHARED if key in plan.target_options}
            options = {**options, **shared, **plan.draft_options}
            options["model"] = LOOKUP if draft == LOOKUP else self._named(draft, options)[0]
            draft_config = _checked(DraftWorkerConfig, "draft_options", options)
            _prepare(draft_config)
            draft_url = self._serve("draft", draft_config)
        return _checked(
            GatewayConfig,
            "gateway_options",
            {
                **_GATEWAY,
                "target_urls": [target_url],
                "draft_urls": [draft_url] if draft_url else [],
                "worker_token": plan.worker_token,
                **plan.gateway_options,
            },
        )

    def _named(self, model: Model, options: Mapping[str, Any]) -> tuple[str, str]:
        """How the workers find the model, and the name that decides its pair. Tensors in memory are shared where the
        settings leave them as they are."""
        if not isinstance(model, Loaded):
            return str(model), str(model)
        folder = tempfile.TemporaryDirectory(prefix="tandem-")
        self._folders.append(folder)
        path = written(model, folder, with_weights=not _can_share(model, options))
        self._lent.append(path)
        return str(path), model.name

    def _serve(self, role: Literal["target", "draft"], config: Any) -> str:
        from engines.errors import ModelError
        from tandem.python.local_worker import LocalWorker

        url = TARGET_URL if role == "target" else DRAFT_URL
        deaths: list[str] = []

        def died(reason: str) -> None:
            deaths.append(reason)
            if url in self.here:
                self.here[url].fail(reason)

        try:
            service = _load_service(role, config, died)
        except ModelError as error:
            raise ModelUnavailable(str(error)) from error
        worker: Any = LocalWorker(url, service, config.drain_timeout_ms / 1000)
        self.here[url] = worker
        for reason in deaths:
            worker.fail(reason)
        return url

    def abandon(self) -> None:
        """Let go of what was loaded, where no event loop will do so."""
        for worker in self.here.values():
            if worker.service.engine is not None:
                worker.service.engine.model.close(0.0)
        self.here.clear()
        self.remove_folders()

    def remove_folders(self) -> None:
        for path in self._lent:
            take_back(path)
        self._lent.clear()
        for folder in self._folders:
            folder.cleanup()
        self._folders.clear()


class Running:
    """The gateway's app over `workers`, in the event loop that `start` ran in."""

    def __init__(self, workers: Workers, ready_seconds: float) -> None:
        from server.app import create_app
        from server.fleet_backend import Fleet

        self._workers = workers
        self._ready_seconds = ready_seconds
        self._fleet = Fleet(workers.gateway, workers.here)
        self.app: FastAPI = create_app(workers.gateway, self._fleet)
        self._exits = AsyncExitStack()

    async def start(self) -> None:
        """Returns once requests can be served, drafts included. Raises ModelUnavailable."""
        try:
            await self._exits.enter_async_context(self.app.router.lifespan_context(self.app))
            await self._until_ready()
            gateway = self.app.state.gateway
            await gateway.texts.get(gateway.backend.model().tokenizer)  # else the first request would build it
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Ends what runs, closes the engines and removes what was written."""
        try:
            await self._exits.aclose()
        finally:
            self._workers.remove_folders()

    async def _until_ready(self) -> None:
        give_up = time.monotonic() + self._ready_seconds
        while True:
            refused = [worker for worker in self._fleet.workers if worker.state == "refused"]
            if refused:
                raise ModelUnavailable(f"the {refused[0].role} model can't be used: {refused[0].detail}")
            missing = [worker for worker in self._fleet.workers if worker.state != "ready"]
            if not missing:
                return
            if time.monotonic() > give_up:
                first = missing[0]
                raise ModelUnavailable(f"the {first.role} worker {first.url} is not ready: {first.detail}")
            await asyncio.sleep(0.01)


_SHARED = ("engine", "device", "dtype", "batch_invariant", "threads")


def _load_service(role: Literal["target", "draft"], config: Any, on_death: Callable[[str], None]) -> Any:
    def progress(message: str) -> None:
        pass

    if role == "target":
        from target_worker.metrics import TargetMetrics
        from target_worker.start import load_service

        return load_service(config, TargetMetrics(), progress, on_death)
    from draft_worker.metrics import DraftMetrics
    from draft_worker.start import load_service as load_draft_service

    return load_draft_service(config, DraftMetrics(), progress, on_death)


def _prepare(config: Any) -> None:
    """What torch reads from the environment as it loads; a process that has loaded it has decided already."""
    from engines.torch.environment import prepare_environment

    if "torch" not in sys.modules:
        prepare_environment(config.threads, config.batch_invariant)


def _can_share(loaded: Loaded, options: Mapping[str, Any]) -> bool:
    """Whether the torch engine can use the object's tensors: of the dtype and device asked for, on this engine."""
    same = all(options.get(key) == value for key, value in _of_object(loaded).items())
    quantised = getattr(loaded.model, "hf_quantizer", None) is not None
    return same and not quantised and options.get("engine", "auto") in ("auto", "torch")


def _of_object(model: Model) -> dict[str, Any]:
    """A loaded object's own dtype and device."""
    if not isinstance(model, Loaded):
        return {}
    device = str(model.model.device)
    return {"dtype": str(model.model.dtype).removeprefix("torch."), "device": device}


def _served_by(url: str, token: str | None) -> str:
    """The id of the model that a target worker serves. Raises ModelUnavailable."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        answer = httpx.get(f"{url}/v1/model", headers=headers, timeout=10, trust_env=False).raise_for_status()
        return str(answer.json()["id"])
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise ModelUnavailable(f"the target worker {url} does not say what it serves: {error}") from error


def _checked(model: type[C], name: str, values: Mapping[str, Any]) -> C:
    """Raises ValueError, which names the option."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise ValueError(f"{name}: {where + ': ' if where else ''}{message}") from None
