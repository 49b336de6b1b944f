"""uvicorn's HTTP protocol, with a way to cut a connection: pass it as `http=` to uvicorn.Config."""

from __future__ import annotations

import json
from typing import Any, cast

import httptools
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_ABORT = "tandem.abort"
MOST_HEAD_BYTES = 64 * 2**10
"""Of a request's line and headers, as in h11 and Node.js or a little more."""


def abort(scope: Scope) -> bool:
    """Cuts the connection of a request at once; False if another server than this one runs the app."""
    cut = scope.get(_ABORT)
    if cut is None:
        return False
    cut()
    return True


class _HeadTooLarge(Exception):
    """Ends the parser."""


class HttpConnection(HttpToolsProtocol):
    """Lets `abort` end the connection at once, ignores upgrades, and refuses heads of any size.

    Closing it, as uvicorn does, first waits for the client to read what was written, which may be for ever.

    A server may ignore `Upgrade` (RFC 9110, section 7.8), and Java's HttpClient sends it (h2c) with every first
    request. httptools stops at the end of such a head and leaves the body unread, so the head is read again without
    the header.
    """

    _in_head = True
    _head_bytes = 0
    """Of the head that is being read; of what came in the same piece as its end, in part."""
    _too_large = False

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self._in_head:
            self._head_bytes += len(data)
        while True:
            try:
                self.parser.feed_data(data)
                if self._in_head and self._head_bytes > MOST_HEAD_BYTES:
                    self._refuse_head()
            except httptools.HttpParserUpgrade as upgrade:
                if not self._upgrade_ignored():
                    return
                data = self._head_without_upgrade() + data[upgrade.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as in uvicorn's own parser
            except httptools.HttpParserError:
                if self._too_large:
                    self._refuse_head()
                else:
                    self.send_400_response("Invalid HTTP request received.")
                return
            else:
                return

    def send_400_response(self, msg: str) -> None:
        """Input that is not HTTP gets an error in OpenAI's form, which has every field of the workers' own form."""
        self._answer("400 Bad Request", msg, "invalid_http")

    def _refuse_head(self) -> None:
        message = f"The request's line and headers take over {MOST_HEAD_BYTES} bytes."
        self._answer("431 Request Header Fields Too Large", message, "headers_too_large")

    def _answer(self, status: str, message: str, code: str) -> None:
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
        body = json.dumps({"error": error}).encode()
        head = [f"HTTP/1.1 {status}", "content-type: application/json", f"content-length: {len(body)}"]
        head += [f"{name.decode()}: {value.decode()}" for name, value in self.server_state.default_headers]
        self.transport.write("\r\n".join([*head, "connection: close", "", ""]).encode() + body)
        self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        cast("dict[str, Any]", self.scope)[_ABORT] = self.transport.abort

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes = False, 0
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > MOST_HEAD_BYTES:
            self._too_large = True
            raise _HeadTooLarge
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
