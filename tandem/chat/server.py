"""The gateway that is talked to: what it serves, and its answers as they stream; failures in words for people."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

_CONNECT_SECONDS = 5.0
_SILENCE_SECONDS = 60.0  # the gateway sends a comment every few seconds, whatever it waits for


class ChatError(Exception):
    """Why there is no answer, or no more of it."""


class ChatServer:
    """One gateway. Every method raises ChatError; a call that is interrupted closes its connection."""

    def __init__(self, url: str, api_key: str | None = None, *, silence: float = _SILENCE_SECONDS) -> None:
        """`silence`: the seconds after which a server that sends nothing is given up."""
        self.url = url.rstrip("/").removesuffix("/v1")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        timeout = httpx.Timeout(silence, connect=_CONNECT_SECONDS)
        try:
            address = httpx.URL(self.url)
            self._http = httpx.Client(base_url=address, headers=headers, timeout=timeout, trust_env=False)
        except (httpx.InvalidURL, ValueError) as error:  # a key that is no text of a header, too
            raise ChatError(f"the address or the API key can't be used: {error}") from None
        if address.scheme not in ("http", "https") or not address.host:
            raise ChatError(f"{url} is no address such as http://127.0.0.1:8000")

    def close(self) -> None:
        self._http.close()

    def models(self) -> list[str]:
        """The names of the served model."""
        with self._told():
            answer = self._http.get("/v1/models")
            if answer.status_code != 200:
                raise self._worker() or self._refusal(answer)
            try:
                return [str(model["id"]) for model in answer.json()["data"]]
            except (ValueError, KeyError, TypeError):
                raise ChatError(f"what answers at {self.url} is no Tandem") from None

    def stream(self, body: dict[str, Any]) -> Generator[dict[str, Any], None, None]:
        """The chunks of an answer. Raises ChatError in the middle, too, where the answer ends before its time."""
        with self._told(), self._http.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as answer:
            if answer.status_code != 200:
                answer.read()
                raise self._refusal(answer)
            for line in answer.iter_lines():
                if not line.startswith("data: "):
                    continue
                if line == "data: [DONE]":
                    return
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    raise ChatError(f"the answer ended with an error: {chunk['error'].get('message', '')}")
                yield chunk
        raise ChatError("the server ended the answer before it was complete")

    def _worker(self) -> ChatError | None:
        """What to say if a worker answers here."""
        from tandem.probes import worker_of  # when it is wanted: the chat starts without it

        try:
            role = worker_of(self._http.get("/metrics").text)
        except httpx.HTTPError:
            return None
        return ChatError(f"{self.url} is a {role} worker: --url is for the gateway's address") if role else None

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout):
            raise ChatError(
                f"no server answers at {self.url}: start one with `tandem up`, or give --url its address"
            ) from None
        except httpx.TimeoutException:
            raise ChatError(f"{self.url} has been silent for too long") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ChatError(f"the connection to {self.url} broke: {error or type(error).__name__}") from None
        except ValueError:
            raise ChatError(f"{self.url} sent something that is no chunk of an answer") from None

    def _refusal(self, answer: httpx.Response) -> ChatError:
        try:
            told = answer.json()["error"]
            message, param = str(told["message"]), told.get("param")
        except (ValueError, KeyError, TypeError, AttributeError):
            message, param = answer.text[:200] or answer.reason_phrase, None
        if answer.status_code == 401:
            return ChatError(f"{message} Give one with --api-key, or in TANDEM_API_KEY.")
        where = f" [{param}]" if param and param not in message else ""
        retry = answer.headers.get("retry-after")
        later = f" (try again in {retry} s)" if retry else ""
        return ChatError(f"the server refused ({answer.status_code}): {message}{where}{later}")
