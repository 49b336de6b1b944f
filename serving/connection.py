"""uvicorn's HTTP protocol, with a way to cut a connection: pass it as `http=` to uvicorn.Config."""

from __future__ import annotations

import json
from typing import Any, cast

import httptools
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_ABORT = "tandem.abort"


def abort(scope: Scope) -> bool:
    """Cuts the connection of a request at once; False if another server than this one runs the app."""
    cut = scope.get(_ABORT)
    if cut is None:
        return False
    cut()
    return True


class HttpConnection(HttpToolsProtocol):
    """Lets `abort` end the connection at once, and ignores upgrades.

    Closing it, as uvicorn does, first waits for the client to read what was written, which may be for ever.

    A server may ignore `Upgrade` (RFC 9110, section 7.8), and Java's HttpClient sends it (h2c) with every first
    request. httptools stops at the end of such a head and leaves the body unread, so the head is read again without
    the header.
    """

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                if not self._upgrade_ignored():
                    return
                data = self._head_without_upgrade() + data[upgrade.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as in uvicorn's own parser
            except httptools.HttpParserError:
                self.send_400_response("Invalid HTTP request received.")
                return
            else:
                return

    def send_400_response(self, msg: str) -> None:
        """Input that is not HTTP gets an error in OpenAI's form, which has every field of the workers' own form."""
        error = {"message": msg, "type": "invalid_request_error", "param": None, "code": "invalid_http"}
        body = json.dumps({"error": error}).encode()
        head = ["HTTP/1.1 400 Bad Request", "content-type: application/json", f"content-length: {len(body)}"]
        head += [f"{name.decode()}: {value.decode()}" for name, value in self.server_state.default_headers]
        self.transport.write("\r\n".join([*head, "connection: close", "", ""]).encode() + body)
        self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast("dict[str, Any]", self.scope)[_ABORT] = self.transport.abort

    def on_headers_complete(self) -> None:
        if not self._upgrade_ignored():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self._upgrade_ignored():
            super().on_message_complete()

    def _should_upgrade(self) -> bool:
        return False

    def _upgrade_ignored(self) -> bool:
        """httptools takes CONNECT for an upgrade, whatever its headers: reading it again would never end."""
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"

    def _head_without_upgrade(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [self.parser.get_method() + b" " + self.url + b" HTTP/" + version]
        lines += [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])
