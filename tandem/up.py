"""`tandem up`: gateway, draft worker and target worker on this machine, started, watched and stopped together."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

from rich.console import Console

from config.roles import Role
from tandem import ROOT
from tandem.addresses import is_loopback, service_url
from tandem.supervisor import ChildService, Supervisor
from tandem.up_flags import UpSettings

_MESSAGES = [{"role": "user", "content": "Name the planets of the solar system."}]
_PROMPT = "The planets of the solar system are"
_LABELS: dict[Role, str] = {"target": "target", "draft": "draft", "serve": "gateway"}


def run_up(
    settings: UpSettings, *, config: Path | None, ready_timeout: float, log_dir: Path | None, verbose: bool
) -> int:
    """Run until Ctrl-C, SIGTERM or the death of a process. The exit code: 0 if it was asked to stop."""
    console = Console(stderr=True, highlight=False)
    target, draft = settings.target.model, settings.draft.model
    console.print(f"Tandem: target {target}, draft {draft}, γ {settings.serve.draft_tokens}", markup=False)
    warn_if_public(settings, console)
    supervisor = Supervisor(
        services(settings, config),
        console,
        log_dir=log_dir,
        show_all=verbose,
        drain_seconds=settings.serve.drain_seconds,
    )
    return supervisor.run(ready_timeout, lambda: announce(settings))


def warn_if_public(settings: UpSettings, console: Console) -> None:
    """Loudly, if others can reach a service that asks for no key."""
    serve, draft, target = settings.serve, settings.draft, settings.target
    listeners = [
        ("gateway", serve.host, bool(serve.api_keys or serve.api_key_file), "TANDEM_SERVE_API_KEYS"),
        ("draft worker", draft.host, draft.worker_token is not None, "TANDEM_WORKER_TOKEN"),
        ("target worker", target.host, target.worker_token is not None, "TANDEM_WORKER_TOKEN"),
    ]
    for name, host, has_key, variable in listeners:
        if not has_key and not is_loopback(host):
            console.print(
                f"WARNING: the {name} listens on {host} and asks for no key: whoever can reach it may use it. "
                f"Set {variable}.",
                style="bold red",
                markup=False,
            )


def services(settings: UpSettings, config: Path | None) -> list[ChildService]:
    """The three processes, workers first."""
    file = ["--config", str(config)] if config else []

    def service(role: Role, host: str, port: int, port_flag: str, waits_for: str | None = None) -> ChildService:
        # -P: without the folder of the file, whose modules would be found under their bare names.
        command = (sys.executable, "-P", str(ROOT / "tandem" / "__main__.py"), role, *settings.arguments[role], *file)
        return ChildService(_LABELS[role], host, port, port_flag, command, waits_for)

    return [
        service("target", settings.target.host, settings.target.port, "--target-port"),
        service("draft", settings.draft.host, settings.draft.port, "--draft-port"),
        service("serve", settings.serve.host, settings.serve.port, "--port", "waiting for the target"),
    ]


def announce(settings: UpSettings) -> None:
    """Say where it is and how to try it."""
    gateway = service_url(settings.serve.host, settings.serve.port)
    key = next((key.get_secret_value() for key in settings.serve.api_keys), None)
    has_keys = key is not None or settings.serve.api_key_file is not None
    model = served_model(gateway, key) or settings.target.model
    fault = chat_fault(gateway, model, key)
    if fault is not None:
        print(f"\nNo chats: {fault}.")
    command = curl(gateway, model, has_keys, chats=fault is None)
    print(f"\nTandem is ready: {gateway}/v1\n\n{command}\n\nCtrl-C stops it.", flush=True)


def served_model(gateway: str, key: str | None) -> str | None:
    """The name that clients use for the model; None if the gateway does not answer."""
    import httpx

    try:
        answer = httpx.get(f"{gateway}/v1/models", headers=_headers(key), timeout=5, trust_env=False).raise_for_status()
        return str(answer.json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, LookupError, TypeError):
        return None


def chat_fault(gateway: str, model: str, key: str | None) -> str | None:
    """Why a chat would be refused: the model's template is missing or does not render it; None if it would not be."""
    import httpx

    body = {"model": model, "messages": _MESSAGES}
    try:
        answer = httpx.post(f"{gateway}/tokenize", json=body, headers=_headers(key), timeout=10, trust_env=False)
        return str(answer.json()["error"]["message"]).rstrip(".") if answer.status_code == 400 else None
    except (httpx.HTTPError, ValueError, LookupError, TypeError):
        return None


def _headers(key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


def curl(gateway: str, model: str, has_keys: bool, *, chats: bool = True) -> str:
    """A command that works when pasted: a chat, or for a model that takes none a completion. The key itself is left to
    a variable."""
    path, asked = ("chat/completions", {"messages": _MESSAGES}) if chats else ("completions", {"prompt": _PROMPT})
    body = {"model": model, **asked, "max_tokens": 64}
    key = ' -H "Authorization: Bearer $TANDEM_API_KEY"' if has_keys else ""
    return f"curl {gateway}/v1/{path} -H 'Content-Type: application/json'{key} \\\n  -d {shlex.quote(json.dumps(body))}"
