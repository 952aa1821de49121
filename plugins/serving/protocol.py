"""HTTP that no application ever sees: what cannot be parsed is answered in JSON too."""

from __future__ import annotations

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from camshaft.errors import RequestError

from .errors import error_answer


class Protocol(HttpToolsProtocol):
    """uvicorn's protocol, but for the body of its own answers."""

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that is not HTTP, and close the connection."""
        body = msgspec.json.encode(error_answer(RequestError(msg)))
        head = (
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
