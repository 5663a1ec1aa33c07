"""A server on loopback that answers as a test says."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

Answer = tuple[int, dict[str, str], bytes]


class Server:
    """A server on loopback.

    Args:
        answer: Returns the answer to a request, from its method, path and login.

    Attributes:
        seen: The paths and logins of the requests so far.
        bodies: Their paths and bodies.
        port: Its port.
    """

    def __init__(self, answer: Callable[[str, str, str], Answer]) -> None:
        seen = self.seen = list[tuple[str, str]]()
        bodies = self.bodies = list[tuple[str, bytes]]()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *arguments: Any) -> None:
                pass

            def answer(self) -> None:
                bodies.append((self.path, self.rfile.read(int(self.headers.get("Content-Length") or 0))))
                login = self.headers.get("Authorization", "")
                seen.append((self.path, login))
                status, headers, body = answer(self.command, self.path, login)
                self.send_response_only(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(b"" if self.command == "HEAD" else body)

            do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = answer  # noqa: N815

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def wrap(self, context: ssl.SSLContext) -> None:
        """Lets it speak TLS from now on."""
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

    def end(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def logins(self) -> set[str]:
        return {login for _, login in self.seen}


@contextmanager
def serving(answer: Callable[[str, str, str], Answer]) -> Iterator[Server]:
    server = Server(answer)
    try:
        yield server
    finally:
        server.end()
