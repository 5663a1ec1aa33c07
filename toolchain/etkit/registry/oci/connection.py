"""The connections to a registry: TLS, redirects, which server gets a login, and limits of size and time."""

from __future__ import annotations

import io
import math
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakSet

import requests
from requests.adapters import HTTPAdapter
from urllib3 import HTTPResponse
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError

ERRORS = (requests.RequestException, HTTPError, OSError, ValueError, OverflowError)
"""The errors of the libraries if a request fails. The last two are for a damaged address or date."""

BLOCK = 1 << 20
"""The bytes of a step. urllib3's default of 16 kB is a tenth slower."""

_CONNECT_SECONDS = 10.0
_SHORT_BYTES = 1 << 20  # the largest answer that is not a document


def origin(url: str) -> str:
    """The scheme, host and port of an address; empty if it is not one."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return ""
    return f"{parts.scheme}://{parts.hostname}:{port}"


class _Watch(threading.Thread):
    """Breaks connections on which other threads wait: late ones, and all of them after the event `stop`.

    The timeout of a socket starts again with each byte, so it never ends a slow handshake or slow headers."""

    def __init__(self, stop: threading.Event, every_seconds: float) -> None:
        super().__init__(daemon=True)
        self._stop_event, self._every_seconds = stop, every_seconds
        self._open: WeakSet[Any] = WeakSet()
        self._lock = threading.Lock()

    def add(self, connection: Any) -> None:
        """Adds a new connection."""
        with self._lock:
            self._open.add(connection)
        if self._stop_event.is_set():
            raise OSError("stopped")

    def run(self) -> None:
        ended = False
        while not ended:
            ended = self._stop_event.wait(self._every_seconds)
            with self._lock:
                late = [each for each in self._open if ended or each.until < time.monotonic()]
            for connection in late:
                with suppress(OSError, AttributeError):  # another thread may just have closed it
                    (connection.handshake or connection.sock).shutdown(socket.SHUT_RDWR)


class _Watched:
    """What a `_Watch` needs of a connection.

    Attributes:
        until: The time from which the handshake or the headers are late.
        handshake: A copy of the socket until the connection is made: TLS takes the descriptor of the socket away.
    """

    timeout: Any

    def __init__(self, *args: Any, watch: _Watch, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._watch, self.until = watch, math.inf
        self.handshake: socket.socket | None = None

    def connect(self) -> None:
        self._watch.add(self)
        try:
            with self._limited():
                super().connect()  # type: ignore[misc]
        finally:
            if self.handshake is not None:
                self.handshake.close()
            self.handshake = None

    def _new_conn(self) -> socket.socket:
        made: socket.socket = super()._new_conn()  # type: ignore[misc]
        self.handshake = made.dup()
        return made

    def getresponse(self) -> Any:
        """The answer to the request that was sent, with its headers and without its body."""
        with self._limited():
            return super().getresponse()  # type: ignore[misc]

    @contextmanager
    def _limited(self) -> Iterator[None]:
        until = self.until = time.monotonic() + self.timeout
        try:
            yield
        finally:
            self.until = math.inf
            if time.monotonic() > until:  # a broken answer may look like a whole one
                raise TimeoutError("timed out")


class _PlainConnection(_Watched, HTTPConnection):
    """A watched connection without TLS."""


class _SecureConnection(_Watched, HTTPSConnection):
    """A watched connection with TLS."""


class Adapter(HTTPAdapter):  # type: ignore[misc]
    """Connections of one registry. All requests pass here, also those after a redirect.

    A login is sent only to the registry, and to the servers of tokens that the registry itself names. A registry with
    TLS cannot lead to addresses without it.

    Args:
        base: The address of the registry.
        seconds: How long to wait for an answer.
        stop: Breaks off all connections.

    Attributes:
        trusted: The origins that get a login.
    """

    def __init__(self, base: str, seconds: float, stop: threading.Event) -> None:
        super().__init__(pool_maxsize=16)
        self.trusted = {origin(base)}
        self._secure, self._seconds = base.startswith("https:"), seconds
        self._watch = _Watch(stop, min(seconds / 5, 1))
        self._watch.start()

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """Makes the connections, which send large blocks."""
        super().init_poolmanager(*args, blocksize=BLOCK, **kwargs)

    def get_connection_with_tls_context(self, *args: Any, **kwargs: Any) -> Any:
        """The pool of connections for a request."""
        pool = super().get_connection_with_tls_context(*args, **kwargs)
        kind = _SecureConnection if pool.scheme == "https" else _PlainConnection
        pool.ConnectionCls = partial(kind, watch=self._watch)
        return pool

    def send(self, request: requests.PreparedRequest, stream: bool = False, **kwargs: Any) -> requests.Response:
        """Sends a request. Arguments and errors: as in the base class."""
        url = request.url or ""
        if self._secure and not url.lower().startswith("https:"):
            raise requests.RequestException(f"it leads to {url[:100]}, without TLS", request=request)
        if origin(url) not in self.trusted:
            request.headers.pop("Authorization", None)
        kwargs["timeout"] = (min(_CONNECT_SECONDS, self._seconds), self._seconds)
        response = super().send(request, stream=True, **kwargs)
        return response if stream and response.status_code < HTTPStatus.MULTIPLE_CHOICES else self._short(response)

    def _short(self, response: requests.Response) -> requests.Response:
        """Reads the body of an answer. Leaves out data beyond the limit, or too late."""
        data, until = bytearray(), time.monotonic() + self._seconds
        with closing(response.raw):
            try:
                while len(data) < _SHORT_BYTES and time.monotonic() < until:
                    block = response.raw.read1(_SHORT_BYTES, decode_content=True)
                    if not block:
                        break
                    data += block
            except (HTTPError, OSError) as error:
                if response.ok:
                    raise requests.ConnectionError(error, request=response.request) from error
        response.raw = HTTPResponse(io.BytesIO(bytes(data[:_SHORT_BYTES])), preload_content=False)
        return response


def reason(error: BaseException) -> str:
    """The text of the innermost cause of a network error, without the objects that the libraries print."""
    while True:
        inner = getattr(error, "reason", None)
        if not isinstance(inner, BaseException):
            inner = next((each for each in error.args if isinstance(each, BaseException)), None)
        if inner is None:
            break
        error = inner
    return re.sub(r"^(<.*>|\w+\(.*\)): |\[Errno -?\d+\] ", "", str(error))[:300]


def answer(response: requests.Response) -> str:
    """The status of an answer, and the registry's own messages."""
    try:
        messages = "; ".join(str(each["message"]) for each in response.json()["errors"])
    except (KeyError, TypeError, RecursionError, *ERRORS):
        messages = ""
    return f"status {response.status_code} {messages or response.reason}"[:300]
