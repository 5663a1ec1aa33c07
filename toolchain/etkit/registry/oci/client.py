"""Requests to one repository of a registry: their logins, errors and attempts, and limits of answers.

A registry may give a token for each kind of access: to read, to write, to mount from another repository. Each kind
keeps its own token, so that threads that need different ones do not replace each other's.

https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md describes the protocol.
"""

from __future__ import annotations

import base64
import functools
import logging
import re
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

import requests
from requests.utils import parse_dict_header, parse_list_header
from urllib3.exceptions import InvalidHeader, MaxRetryError
from urllib3.util import Retry

from etbuild.errors import BuildError, InputError
from etbuild.exception_text import chain
from etbuild.foreign_errors import wrap_library_errors
from etkit.registry.oci import attempts, logins
from etkit.registry.oci.attempts import Attempt, Broken, Count
from etkit.registry.oci.connection import BLOCK, ERRORS, Adapter, answer, origin, reason
from etkit.registry.oci.logins import Login
from etkit.registry.oci.reference import Access, Reference

if TYPE_CHECKING:
    from typing import Self

PASSING = (429, 500, 502, 503, 504)
"""The statuses of temporary errors."""

_LOGINS = 3  # how many tokens are tried for a request
_SLOWEST = 1000  # bytes in a second
_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST")  # OpenSSL's reasons for an answer that is not TLS
_UNKNOWN_AUTHORITY = (18, 19, 20, 21)  # OpenSSL's codes of certificates that no known authority has signed


class NoAccess(InputError):
    """The registry wants a login, or the login does not have a right."""


@dataclass(frozen=True)
class Answer:
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


class Client:
    """Requests to a repository. Errors name it. TLS is the default for a registry on another machine. A `with`
    statement closes the connections.

    Args:
        reference: The repository.
        access: How to reach the registry.

    Attributes:
        reference: The repository.
        root: The address of the repository.
        stop: Ends the requests of all threads, and their pauses.

    Raises:
        BuildError: The registry cannot be reached.
        InputError: It asks for a login, and there is none.
    """

    def __init__(self, reference: Reference, access: Access) -> None:
        insecure = access.plain_http or (reference.is_loopback and access.ca_file is None)
        base = f"{'http' if insecure else 'https'}://{logins.api_host(reference.registry)}"
        self.reference = reference
        self.root = f"{base}/v2/{reference.repository}/"
        self.stop = threading.Event()
        self._origin, self._stall_seconds = origin(base), access.stall_seconds
        self._lock = threading.Lock()
        self._basic: Login | None = None
        """The user's login, if the registry wants a name and a password."""
        self._tokens: dict[str, str] = {}
        self._challenges: dict[str, dict[str, str | None]] = {}
        """The last challenge by the kind of access. It says where to get a token."""
        self._adapter = Adapter(base, access.stall_seconds, self.stop)
        logging.getLogger("urllib3").setLevel(logging.ERROR)  # its warning: more threads than connections
        self._session = requests.Session()
        self._verify: bool | str = str(access.ca_file) if access.ca_file else True
        self._session.auth = lambda request: request  # otherwise a login of ~/.netrc would replace that of Docker
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, self._adapter)
        try:
            with self._errors("cannot be reached"):
                greeting = self._send("GET", f"{base}/v2/")
                if greeting.status_code == HTTPStatus.UNAUTHORIZED and not self._can_log_in(_challenge(greeting)[0]):
                    hint = f"log in with `docker login {self.reference.registry}`"
                    raise InputError.of(
                        f"{self.reference.registry}: the registry wants a login, and there is none for it", hint
                    )
        except BaseException:  # an interrupt as well
            self.close()
            raise

    def __str__(self) -> str:
        return f"{self.reference.registry}/{self.reference.repository}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the requests of other threads, and closes the connections."""
        self.stop.set()
        self._session.close()

    @contextmanager
    def request(
        self,
        method: str,
        address: str,
        headers: dict[str, str] | None = None,
        data: Any = None,
        stream: bool = False,
        kind: str | None = None,
    ) -> Iterator[requests.Response]:
        """Sends a request.

        Args:
            method: The method.
            address: The address, relative to the repository or whole.
            headers: The headers.
            data: The body: bytes, or an object with `read` and `len`.
            stream: Whether the caller reads the body, with `body`. Else it is cut after a megabyte.
            kind: The kind of access that it needs, for registries that give a token for each. Default: to read, or to
                write, as the method says.

        Raises:
            Broken: The body is not bytes, and it was not sent whole, or its login has expired.
            InputError: The registry wants a login, or does not allow this.
            BuildError: The registry does not answer.
        """
        url = address if "://" in address else f"{self.root}{address}"
        kind = kind or ("read" if method in ("GET", "HEAD") else "write")
        options = {"headers": {"Accept-Encoding": "identity", **(headers or {})}, "data": data, "stream": stream}
        with self._errors("the registry does not answer", broken=_is_stream(data)):
            response = self._send_with_login(kind, method, url, options)
        with closing(response):
            if response.status_code == HTTPStatus.UNAUTHORIZED:
                hint = f"log in with `docker login {self.reference.registry}`, or check the name and the password"
                raise NoAccess.of(f"{self}: the registry wants a login", hint)
            if response.status_code == HTTPStatus.FORBIDDEN:
                message = f"{self}: the registry does not allow this: {answer(response)}"
                raise NoAccess.of(message, "does this login have the right to do it?")
            yield response

    def small(self, address: str, headers: dict[str, str], limit: int, *also: HTTPStatus) -> Answer:
        """Fetches a small document.

        Args:
            address: Its address, relative to the repository or whole.
            headers: The headers of the request.
            limit: Its largest size in bytes.
            also: Statuses that are expected besides `OK`.

        Raises:
            EtbuildError: The registry does not send it, or it is too large.
        """
        for again in self.attempts(Count(), f"{address} cannot be fetched"):
            with again, self.request("GET", address, headers, stream=True) as response:
                self.expect(response, HTTPStatus.OK, *also)
                data = b"".join(self.body(response, limit))
        link = _next(response.headers.get("Link", ""))
        following = self.address(link, response.url) if link else None
        return Answer(response.status_code, response.headers, data, following)

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
                block = response.raw.read1(BLOCK, decode_content=False)
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
        return attempts.attempts(self.stop, count, f"{self}: {failed}", hint)

    def expect(self, response: requests.Response, *expected: HTTPStatus) -> None:
        """Checks the status of an answer.

        Raises:
            BuildError: It is another one.
        """
        if response.status_code not in expected:
            raise BuildError.of(f"{self}: {response.request.method}: {answer(response)}")

    def address(self, location: str, base: str | None = None) -> str:
        """The whole address in a header. It may be relative to `base`, or if there is none, to the repository.

        Raises:
            BuildError: It is not an address.
        """
        try:
            return urljoin(base or self.root, location)
        except ValueError as error:
            raise BuildError.of(f"{self}: {location[:100]!r} is not an address: {error}") from None

    @contextmanager
    def _errors(self, what: str, broken: bool = False) -> Iterator[None]:
        """Converts errors of the network. With `broken`, temporary errors become `Broken`: the caller can go on."""
        try:
            yield
        except ERRORS as error:
            is_tls = isinstance(error, requests.exceptions.SSLError)
            if broken and not is_tls:
                raise Broken(reason(error)) from error
            raise BuildError.of(f"{self}: {what}: {reason(error)}", _tls_hint(error) if is_tls else None) from error

    def _send(self, method: str, url: str, **options: Any) -> requests.Response:
        """Sends a request, and repeats it after temporary errors, unless its body is a stream."""
        failures = attempts.ATTEMPTS if _is_stream(options.get("data")) else 1
        while True:
            asked = 0.0
            try:
                # As an argument: over an attribute of the session, $REQUESTS_CA_BUNDLE would take precedence.
                response = self._session.request(method, url, verify=self._verify, **options)
                if response.status_code not in PASSING or failures >= attempts.ATTEMPTS:
                    return response
                response.close()
                with suppress(InvalidHeader, ValueError, OverflowError):  # not seconds, nor a date
                    asked = Retry().get_retry_after(response) or 0
            except (requests.ConnectionError, requests.Timeout) as error:
                if failures >= attempts.ATTEMPTS or isinstance(error, requests.exceptions.SSLError):
                    raise
            if attempts.pause(self.stop, failures, asked):
                raise OSError("stopped")
            failures += 1

    def _send_with_login(self, kind: str, method: str, url: str, options: dict[str, Any]) -> requests.Response:
        """Sends a request with the login for its kind of access.

        If the body is a stream, and the login has expired, it raises `Broken`. The next request has a new login.
        """
        with self._lock:
            if kind in self._challenges and kind not in self._tokens:
                self._renew(kind)
        for _ in range(_LOGINS):
            login = self._authorization(kind) if origin(url) == self._origin else {}
            try:
                response = self._send(method, url, **{**options, "headers": {**options["headers"], **login}})
            except ERRORS:
                if _is_stream(options["data"]):  # some registries refuse a token by closing the connection
                    self._tokens.pop(kind, None)
                raise
            if response.status_code != HTTPStatus.UNAUTHORIZED or not self._log_in_again(response, kind, login):
                break
            response.close()
            if _is_stream(options["data"]):
                raise Broken("the login has ended")
        return response

    def _authorization(self, kind: str) -> dict[str, str]:
        """The header of a known login: a name and a password, or the token for a kind of access."""
        if self._basic:
            return _basic(self._basic)
        token = self._tokens.get(kind)
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _log_in_again(self, refused: requests.Response, kind: str, login: dict[str, str]) -> bool:
        """Gets another login for a kind of access after a refusal. Returns whether there is one: a name and a password
        would be refused again. `login` is the refused header.

        Only the registry itself may name the token server, not a server to which it has redirected. If it names none,
        the one of its last challenge is asked."""
        if origin(refused.url) != self._origin:
            return False
        with self._lock:
            if self._authorization(kind) != login:  # another thread has got a new login
                return True
            if self._basic:
                return False
            scheme, challenge = _challenge(refused)
            if not self._can_log_in(scheme):
                return False
            if challenge.get("realm"):
                self._challenges[kind] = challenge
            return bool(self._basic) or self._renew(kind)

    def _can_log_in(self, scheme: str) -> bool:
        """Takes the user's login. Returns whether a login is possible: a registry may give tokens to anybody."""
        login = self._login
        if scheme != "basic":
            return True
        if login is not None and login.identity_token is None:
            self._basic = login
        return self._basic is not None

    @functools.cached_property
    def _login(self) -> Login | None:
        """The user's login. It is read only if the registry wants one."""
        return logins.find(self.reference.registry)

    def _renew(self, kind: str) -> bool:
        """Asks for a token for a kind of access, as the last challenge says. Returns whether there is a token."""
        challenge = self._challenges.get(kind)
        if challenge is None:
            return False
        self._tokens.pop(kind, None)
        with wrap_library_errors(BuildError, None, "the server of tokens gives a wrong answer"):
            token = self._token(challenge)
        if token:
            self._tokens[kind] = token
        return bool(token)

    def _token(self, challenge: dict[str, str | None]) -> str | None:
        """Asks for a token; None if the token server gives none.

        https://distribution.github.io/distribution/spec/auth/token/ and .../oauth/ describe the requests."""
        realm = challenge["realm"] or ""
        self._adapter.trusted.add(origin(realm))
        wanted = {key: challenge[key] for key in ("service", "scope") if challenge.get(key)}
        if self._login and self._login.identity_token:
            form = {"grant_type": "refresh_token", "refresh_token": self._login.identity_token, "client_id": "etbuild"}
            response = self._send("POST", realm, data=form | wanted, allow_redirects=False)
        else:
            parameters = [("service", wanted.get("service"))]
            parameters += [("scope", scope) for scope in (wanted.get("scope") or "").split()]
            response = self._send("GET", realm, params=parameters, headers=_basic(self._login) if self._login else {})
        if response.status_code != HTTPStatus.OK:
            return None
        content = response.json()
        token: str | None = content.get("token") or content.get("access_token")
        if token:
            token.encode("ascii")  # the token becomes a header
        return token


def _tls_hint(error: Exception) -> str | None:
    """The hint for an error of TLS, from OpenSSL's reason."""
    inner = [each.reason for each in error.args if isinstance(each, MaxRetryError)]
    found = [each for one in [error, *inner] if one is not None for each in [*chain(one), *one.args]]
    of_tls = next((each for each in found if isinstance(each, ssl.SSLError)), None)
    if isinstance(of_tls, ssl.SSLCertVerificationError):
        unknown = of_tls.verify_code in _UNKNOWN_AUTHORITY
        return "name the certificates of your authority with --ca-file" if unknown else None
    return "use --plain-http if it has no TLS" if of_tls is not None and of_tls.reason in _NO_TLS else None


def _is_stream(body: Any) -> bool:
    """Whether the body of a request cannot be sent twice."""
    return not (body is None or isinstance(body, (bytes, dict)))


def _basic(login: Login) -> dict[str, str]:
    """The header of a name and a password."""
    return {"Authorization": f"Basic {base64.b64encode(f'{login.user}:{login.password}'.encode()).decode()}"}


def _challenge(refused: requests.Response) -> tuple[str, dict[str, str | None]]:
    """The scheme and the parameters of the first challenge that this client can answer. Both may be empty.

    https://www.rfc-editor.org/rfc/rfc9110#name-www-authenticate describes the header, which may list several. Refuses a
    header with only other schemes, such as Digest: their `realm` is not an address."""
    items = parse_list_header(refused.headers.get("Www-Authenticate", ""))
    for number, item in enumerate(items):
        scheme, _, first = item.partition(" ")
        if scheme.lower() in ("basic", "bearer"):
            return scheme.lower(), parse_dict_header(", ".join([first, *items[number + 1 :]]))
    if items:
        host, scheme = urlsplit(refused.url).netloc, items[0].partition(" ")[0][:100]
        raise InputError.of(f"{host}: the registry wants a login by {scheme}; etbuild has only Basic and Bearer")
    return "", {}


_LINK = re.compile(r'<([^<>]*)>((?:[^,"<]|"[^"]*")*)')
_RELATION = re.compile(r""";\s*rel\s*=\s*["']?([^"';]*)""", re.IGNORECASE)


def _next(header: str) -> str | None:
    """The address of the next part that a header `Link` names; None if there is none.

    `requests` overlooks links with several relations, with a semicolon in the address, or with `REL`. With it, a list
    would be cut without an error.
    """
    for address, parameters in _LINK.findall(header):
        relation = _RELATION.search(parameters)
        if relation and "next" in relation[1].lower().split():
            return str(address).strip() or None
    return None
