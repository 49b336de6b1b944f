"""uvicorn's HTTP protocol, with a way to cut a connection: pass it as `http=` to uvicorn.Config."""

from __future__ import annotations

from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class Connection(HttpToolsProtocol):
    """Tells the app, under "tandem.abort" in the scope, how to end the connection at once.

    Closing it, as uvicorn does, first waits for the client to read what was written, which may be for ever.
    """

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast("dict[str, Any]", self.scope)["tandem.abort"] = self.transport.abort
