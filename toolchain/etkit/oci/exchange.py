"""Requests to one repository of a registry, with our errors, and the limits of what comes back.

https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md describes the protocol.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urljoin

import requests

from etbuild.errors import BuildError, InputError
from etkit.oci.access import Access
from etkit.oci.attempts import Attempt, Broken, Count, attempts
from etkit.oci.connection import ERRORS, Client, answer, base_address, reason
from etkit.oci.reference import Reference

_SLOWEST = 1000  # bytes in a second
_BLOCK = 1 << 20


class NoAccess(InputError):
    """The registry wants a login, or does not allow this one to do something."""


@dataclass(frozen=True)
class Whole:
    """The answer to a request for a small document.

    Attributes:
        status: Its status.
        headers: Its headers.
        data: Its body.
        next: The address of the next part of a list; None if there is none.
    """

    status: int
    headers: Mapping[str, str]
    data: bytes
    next: str | None

    @property
    def media_type(self) -> str:
        """The kind of the body."""
        return self.headers.get("Content-Type", "").partition(";")[0]


class Exchange:
    """Requests to a repository. Errors name it.

    Args:
        reference: The repository.
        access: How to reach the registry.

    Raises:
        BuildError: The registry cannot be reached.
        InputError: It asks for a login.
    """

    def __init__(self, reference: Reference, access: Access) -> None:
        self.reference = reference
        self.stop = threading.Event()
        """Is set when the transfers of all threads end."""
        self._stall_seconds = access.stall_seconds
        self.root = f"{base_address(reference, access)}/v2/{reference.repository}/"
        """The address of the repository."""
        with self._errors("cannot be reached"):
            self._client = Client(reference, access, self.stop)

    def __str__(self) -> str:
        return f"{self.reference.registry}/{self.reference.repository}"

    def close(self) -> None:
        """Closes the connections."""
        self._client.session.close()

    def end(self) -> None:
        """Ends the requests of other threads, and their pauses."""
        self.stop.set()
        self._client.break_off()

    @contextmanager
    def request(
        self,
        method: str,
        place: str,
        headers: dict[str, str] | None = None,
        data: Any = None,
        stream: bool = False,
        kind: str | None = None,
    ) -> Iterator[requests.Response]:
        """Sends a request.

        Args:
            method: The method.
            place: The address, relative to the repository or whole.
            headers: The headers.
            data: The body: bytes, or an object with `read` and `len`.
            stream: Whether the caller reads the body, with `body`. Else it is cut after a megabyte.
            kind: The kind of access that it needs, for registries that give a token for each. Default: to read, or to
                write, as the method says.

        Raises:
            Broken: The body is no bytes, and was not sent whole or with a login that has ended.
            InputError: The registry wants a login, or does not allow this.
            BuildError: The registry does not answer.
        """
        url = place if "://" in place else f"{self.root}{place}"
        streamed = data is not None and not isinstance(data, bytes)
        # A body that is compressed on the way has no ranges.
        own = {"Accept-Encoding": "identity", **(headers or {})}
        kind = kind or ("read" if method in ("GET", "HEAD") else "write")
        with self._errors("the registry does not answer", broken=streamed):
            response = self._client.do_request(url, method, data=data, headers=own, stream=stream, kind=kind)
        with closing(response):
            if response.status_code == HTTPStatus.UNAUTHORIZED:
                hint = f"log in with `docker login {self.reference.registry}`, or check the name and the password"
                raise NoAccess.of(f"{self}: the registry wants a login", hint)
            if response.status_code == HTTPStatus.FORBIDDEN:
                message = f"{self}: the registry does not allow this: {answer(response)}"
                raise NoAccess.of(message, "does this login have the right to do it?")
            yield response

    def whole(self, place: str, headers: dict[str, str], limit: int, *also: HTTPStatus) -> Whole:
        """Fetches a small document.

        Args:
            place: Its address, relative to the repository or whole.
            headers: The headers of the request.
            limit: Its largest size in bytes.
            also: Answers that are expected besides `OK`.

        Raises:
            EtbuildError: It does not come, or is larger.
        """
        for again in self.attempts(Count(), f"{place} cannot be fetched"):
            with again, self.request("GET", place, headers, stream=True) as response:
                self.expect(response, HTTPStatus.OK, *also)
                data = b"".join(self.body(response, limit))
        link = _next(response.headers.get("Link", ""))
        return Whole(response.status_code, response.headers, data, self._joined(response.url, link) if link else None)

    def body(self, response: requests.Response, limit: int) -> Iterator[bytes]:
        """The blocks of a body.

        Raises:
            Broken: The connection broke, or is too slow.
            BuildError: There are more bytes than the limit.
        """
        begun, total = time.monotonic(), 0
        while True:
            if self.stop.is_set():
                raise BuildError.of(f"{self}: stopped")
            try:
                block = response.raw.read1(_BLOCK, decode_content=False)
            except ERRORS as error:
                raise Broken(reason(error)) from error
            if not block:
                return
            total += len(block)
            if total > limit:
                raise BuildError.of(f"{self}: the registry sent more than the {limit} bytes that were promised")
            yield block
            passed = time.monotonic() - begun
            if passed > self._stall_seconds and total < _SLOWEST * passed:
                raise Broken(f"only {total} bytes came in {passed:.0f} seconds")

    def attempts(self, count: Count, failed: str, hint: str | None = None) -> Iterator[Attempt]:
        """Attempts at a transfer, as `attempts.attempts` describes."""
        return attempts(self.stop, count, f"{self}: {failed}", hint)

    def expect(self, response: requests.Response, *wanted: HTTPStatus) -> None:
        """Checks the status of an answer.

        Raises:
            BuildError: It is another one.
        """
        if response.status_code not in wanted:
            raise BuildError.of(f"{self}: {response.request.method}: {answer(response)}")

    def address(self, location: str) -> str:
        """The whole address of a Location, which may be relative.

        Raises:
            BuildError: There is none.
        """
        if not location:
            raise BuildError.of(f"{self}: the registry does not say where to send the blob")
        return self._joined(self.root, location)

    def _joined(self, base: str, location: str) -> str:
        try:
            return urljoin(base, location)
        except ValueError as error:
            raise BuildError.of(f"{self}: {location[:100]!r} is no address: {error}") from None

    @contextmanager
    def _errors(self, what: str, broken: bool = False) -> Iterator[None]:
        """Converts errors of the network. With `broken`, the caller can go on after those that pass."""
        try:
            yield
        except requests.exceptions.SSLError as error:
            hint = "name the certificates of your authority with --ca-file, or use --plain-http if it has no TLS"
            raise BuildError.of(f"{self}: {what}: {reason(error)}", hint) from error
        except ERRORS as error:
            if broken:
                raise Broken(reason(error)) from error
            raise BuildError.of(f"{self}: {what}: {reason(error)}") from error


_LINK = re.compile(r'<([^<>]*)>((?:[^,"<]|"[^"]*")*)')
_RELATION = re.compile(r""";\s*rel\s*=\s*["']?([^"';]*)""", re.IGNORECASE)


def _next(header: str) -> str | None:
    """The address of the next part that a header `Link` names; None if there is none.

    `requests` overlooks links with several relations, with a semicolon in the address, or with `REL`. A list would be
    read in part then, without an error.
    """
    for address, parameters in _LINK.findall(header):
        relation = _RELATION.search(parameters)
        if relation and "next" in relation[1].lower().split():
            return str(address).strip() or None
    return None
