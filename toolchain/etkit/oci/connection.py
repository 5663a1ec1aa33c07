"""The connections to a registry: TLS, redirects, repeated requests, limits, and who gets which login.

The package `oras` has the session and asks for tokens. All requests pass an adapter that adds what it lacks: requests
are repeated as `urllib3.util.Retry` says, also as Retry-After says; a login goes only where it belongs; and an answer
that is no document, such as an error or a token, has a largest size.
"""

from __future__ import annotations

import functools
import io
import logging
import re
import socket
import threading
import time
from contextlib import closing, suppress
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakSet

from etbuild.errors import BuildError, InputError
from etbuild.foreign_errors import wrap_library_errors
from etkit.oci import attempts, logins
from etkit.oci.access import Access
from etkit.oci.attempts import Broken
from etkit.oci.logins import Login
from etkit.oci.reference import Reference

try:
    import oras.provider
    import requests
    from oras.auth.token import TokenAuth
    from oras.auth.utils import get_basic_auth
    from oras.logger import setup_logger
    from requests.adapters import HTTPAdapter
    from requests.utils import parse_list_header
    from urllib3 import HTTPResponse
    from urllib3.exceptions import HTTPError, InvalidHeader, MaxRetryError
    from urllib3.util import Retry
except ImportError:
    raise InputError.of(
        "packages of a registry need the package `oras`",
        "pip install 'etbuild[registry]'; in Bazel: the extra `registry`",
    ) from None

ERRORS = (requests.RequestException, HTTPError, OSError, ValueError, OverflowError)
"""What the libraries raise if a request fails; the last two for a damaged address or date."""

PASSING = (429, 500, 502, 503, 504)
"""The statuses of errors that pass."""

_CONNECT_SECONDS = 10.0
_LOGINS = 3  # tokens to try for a request
_BLOCK = 1 << 20  # bytes of a step; urllib3's own are 16 kB, which costs a tenth of the speed
_SHORT_BYTES = 1 << 20  # of an answer that is no document
_IDEMPOTENT = frozenset({"GET", "HEAD", "PUT", "POST", "DELETE"})  # an upload that is begun twice does no harm


def base_address(reference: Reference, access: Access) -> str:
    """The address of the registry of a reference, without a path. TLS is the default for another machine."""
    insecure = access.plain_http or (reference.is_loopback and access.ca_file is None)
    return f"{'http' if insecure else 'https'}://{logins.api_host(reference.registry)}"


def origin(url: str) -> str:
    """The scheme, host and port of an address; empty if it is not one."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return ""
    return f"{parts.scheme}://{parts.hostname}:{port}"


class _Downgraded(requests.RequestException):  # type: ignore[misc]
    """A registry with TLS leads to an address without it."""


class _Stopped(OSError):
    """The transfers of this process end."""

    def __init__(self) -> None:
        super().__init__("stopped")


class _Retry(Retry):
    """urllib3's rules for repeated requests. An event ends their pauses."""

    stop = threading.Event()

    def new(self, **changes: Any) -> _Retry:
        """The same rules with some changes."""
        made = super().new(**changes)
        made.stop = self.stop
        return made

    def sleep(self, response: Any = None) -> None:
        """Waits as long as the answer says, or else longer each time. Raises `_Stopped` at the event."""
        asked = None
        if response and self.respect_retry_after_header:
            with suppress(InvalidHeader):  # it is neither a number of seconds nor a date
                asked = self.get_retry_after(response)
        if self.stop.wait(asked or self.get_backoff_time()):
            raise _Stopped


class _OpenConnections:
    """The connections of a session, which can be broken off while other threads wait for them. After the event `stop`,
    no new connection is used."""

    def __init__(self, stop: threading.Event) -> None:
        self._open: WeakSet[Any] = WeakSet()
        self._lock, self._stop = threading.Lock(), stop

    def add(self, connection: Any) -> None:
        """Adds a new connection. Raises `_Stopped` if the transfers end."""
        with self._lock:
            self._open.add(connection)
        if self._stop.is_set():
            raise _Stopped

    def break_off(self) -> None:
        """Breaks off all connections. Threads that wait for them get an error."""
        with self._lock:
            for connection in self._open:
                if connection.sock is not None:
                    with suppress(OSError):
                        connection.sock.shutdown(socket.SHUT_RDWR)


class _Known:
    """Makes a class of connections tell of each connection, and gives up headers that do not end in time."""

    connections: _OpenConnections
    timeout: float
    sock: socket.socket | None

    def connect(self) -> None:
        super().connect()  # type: ignore[misc]
        self.connections.add(self)

    def getresponse(self) -> Any:
        """The answer to the request that was sent, with its headers and without its body. They must have ended in time:
        the timeout of the socket begins again with each byte."""
        late = threading.Event()
        timer = threading.Timer(self.timeout, self._give_up, [late])
        timer.daemon = True
        timer.start()
        try:
            return super().getresponse()  # type: ignore[misc]
        finally:
            timer.cancel()
            if late.is_set():  # what was read by then may look like a whole answer
                raise TimeoutError

    def _give_up(self, late: threading.Event) -> None:
        late.set()
        if self.sock is not None:
            with suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)


class Adapter(HTTPAdapter):  # type: ignore[misc]
    """Connections of one registry. All requests pass here: those of `oras` too, and those after a redirect.

    A login is sent only to the registry, and to the server of tokens that the registry itself names. A registry with
    TLS cannot lead to addresses without it.

    Args:
        base: The address of the registry.
        timeout: The seconds to wait for a connection and for an answer, for requests that do not say it.
        stop: Ends the pauses between repeated requests. `break_off` ends the requests.
    """

    def __init__(self, base: str, timeout: tuple[float, float], stop: threading.Event) -> None:
        retries = _retries(stop)
        self._connections = _OpenConnections(stop)
        # urllib3 would read the whole body of an answer before it repeats a request. So it repeats only after errors of
        # the connection, and `send` after answers.
        super().__init__(
            max_retries=retries.new(status_forcelist=(), respect_retry_after_header=False), pool_maxsize=16
        )
        self.base, self.timeout, self._retries = base, timeout, retries
        self.tokens: str | None = None
        """The origin of the server of tokens, while it is asked for one."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """Makes the connections, which send large blocks."""
        super().init_poolmanager(*args, blocksize=_BLOCK, **kwargs)

    def get_connection_with_tls_context(self, *args: Any, **kwargs: Any) -> Any:
        """The pool of connections for a request."""
        pool = super().get_connection_with_tls_context(*args, **kwargs)
        if not issubclass(pool.ConnectionCls, _Known):
            kind = pool.ConnectionCls
            pool.ConnectionCls = type(kind.__name__, (_Known, kind), {"connections": self._connections})
        return pool

    def break_off(self) -> None:
        """Breaks off the connections that other threads use."""
        self._connections.break_off()

    def send(
        self, request: requests.PreparedRequest, stream: bool = False, timeout: Any = None, **kwargs: Any
    ) -> requests.Response:
        """Sends a request, and repeats it after errors that pass. Arguments and errors: as in the base class."""
        url = request.url or ""
        if self.base.startswith("https:") and not url.lower().startswith("https:"):
            raise _Downgraded(f"it leads to {url[:100]}, without TLS", request=request)
        if origin(url) not in (origin(self.base), self.tokens):
            request.headers.pop("Authorization", None)
        retries = self._retries
        while True:
            response = super().send(request, stream=True, timeout=timeout or self.timeout, **kwargs)
            retry_after = "Retry-After" in response.headers
            if not retries.is_retry(request.method or "", response.status_code, retry_after):
                break
            try:
                retries = retries.increment(request.method, url, response=response.raw)
            except MaxRetryError:
                break
            response.raw.close()
            retries.sleep(response.raw)
        return response if stream and response.status_code < HTTPStatus.MULTIPLE_CHOICES else self._short(response)

    def _short(self, response: requests.Response) -> requests.Response:
        """An answer whose body is read. What is above the limit, or comes too late, is left out."""
        data, until = bytearray(), time.monotonic() + self.timeout[1]
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


class _Tokens(TokenAuth):  # type: ignore[misc]
    """oras's requests for tokens, and what it lacks: identity tokens, and tokens for several repositories."""

    identity_token: str | None = None

    def give(self, challenge: str) -> str | None:
        """Asks for a token with the challenge of a registry. None if the server of tokens gives none."""
        refused = requests.Response()
        refused.headers["Www-Authenticate"] = challenge
        given = self.authenticate_request(refused, {}, refresh=True)[1]
        token = str(self.token) if given and self.token else None
        if token is not None:
            token.encode("ascii")  # it becomes a header
        return token

    def request_anonymous_token(self, h: Any) -> Any:
        return None if self.identity_token else super().request_anonymous_token(_with_scopes(h))

    def request_token(self, h: Any) -> Any:
        if not self.identity_token:
            return super().request_token(_with_scopes(h))
        # https://distribution.github.io/distribution/spec/auth/oauth/
        form = {"grant_type": "refresh_token", "refresh_token": self.identity_token, "client_id": "etbuild"}
        form |= {key: value for key, value in (("service", h.service), ("scope", h.scope)) if value}
        answer = self.session.post(h.realm, data=form, verify=self._tls_verify, allow_redirects=False)
        if answer.status_code != HTTPStatus.OK:
            return None
        content = answer.json()
        return content.get("access_token") or content.get("token")


def _with_scopes(challenge: Any) -> Any:
    """A challenge whose scopes become a parameter each.

    https://distribution.github.io/distribution/spec/auth/token/ wants that.
    """
    if isinstance(challenge.scope, str):
        challenge.scope = challenge.scope.split(" ")
    return challenge


class Client(oras.provider.Registry):  # type: ignore[misc]
    """oras's client with our policy for logins, in place of its own, which repeats refused logins.

    A registry may give a token for each kind of access: to read, to write, to mount from another repository. Each kind
    keeps its own token, so that threads that need different ones do not replace each other's.

    Args:
        reference: The registry.
        access: How to reach it.
        stop: Ends requests of other threads, together with `break_off`.

    Raises:
        InputError: The registry wants a login, and there is none.
        requests.RequestException: It cannot be reached.
    """

    def __init__(self, reference: Reference, access: Access, stop: threading.Event) -> None:
        setup_logger(quiet=True)
        logging.getLogger("oras.logger").setLevel(logging.CRITICAL)  # it tells what our errors tell
        logging.getLogger("urllib3").setLevel(logging.ERROR)  # it tells each attempt
        base = base_address(reference, access)
        self._verify: bool | str = str(access.ca_file) if access.ca_file else True
        super().__init__(reference.registry, insecure=base.startswith("http:"), tls_verify=self._verify)
        self._registry, self._lock = reference.registry, threading.Lock()
        self._basic: str | None = None
        """The name and the password of the user, for a registry that wants them."""
        self._tokens: dict[str, str] = {}
        self._challenges: dict[str, str] = {}
        """The last challenge by the kind of access. It says where to get a token."""
        self._doubtful: set[str] = set()
        """The kinds of access whose token may have ended: an upload broke without an answer."""
        self.auth = _Tokens()
        self.auth.session, self.auth._tls_verify = self.session, self._verify
        self._adapter = Adapter(base, (_CONNECT_SECONDS, access.stall_seconds), stop)
        self.break_off = self._adapter.break_off
        for scheme in ("http://", "https://"):
            self.session.mount(scheme, self._adapter)
        self.session.auth = lambda request: request  # or else a login of ~/.netrc would replace that of Docker
        try:
            self._greet(base)
        except BaseException:  # an interrupt as well
            self.session.close()
            raise

    def _greet(self, base: str) -> None:
        """Takes the user's login if the registry wants one."""
        greeting = self.session.get(f"{base}/v2/", verify=self._verify)
        if greeting.status_code == HTTPStatus.UNAUTHORIZED and not self._can_log_in(greeting):
            hint = f"log in with `docker login {self._registry}`"
            raise InputError.of(f"{self._registry}: the registry wants a login, and there is none for it", hint)

    def _can_log_in(self, refused: requests.Response) -> bool:
        """Takes the user's login. Returns whether there is one; a registry with tokens may give one to anybody."""
        login = self._login
        if _challenge(refused)[0] != "basic":
            return True
        if login is not None and login.identity_token is None:
            self._basic = get_basic_auth(login.user, login.password)
        return self._basic is not None

    @functools.cached_property
    def _login(self) -> Login | None:
        """The user's login, which the part that asks for tokens gets too."""
        login = logins.find(self._registry)
        if login is not None and login.identity_token:
            self.auth.identity_token = login.identity_token
        elif login is not None:
            self.auth.set_basic_auth(login.user, login.password)
        return login

    def do_request(
        self,
        url: str,
        method: str = "GET",
        data: Any = None,
        headers: dict[str, str] | None = None,
        json: Any = None,
        stream: bool = False,
        kind: str = "",
    ) -> requests.Response:
        """Sends a request with the login that it needs: the one for its `kind` of access. Errors: as in the base class.

        If the body is no bytes, and the login has ended, it raises `Broken`, and the next request has a new login.
        """
        own, streamed = dict(headers or {}), not (data is None or isinstance(data, bytes))
        if streamed:
            self._renew_doubtful(kind)
        for _ in range(_LOGINS):
            used = self._authorization(kind)
            own.update(used)
            try:
                response = self.session.request(
                    method, url, data=data, json=json, headers=own, stream=stream, verify=self._verify
                )
            except ERRORS:
                if streamed:  # some registries refuse a token by closing the connection
                    self._doubtful.add(kind)
                raise
            if response.status_code != HTTPStatus.UNAUTHORIZED or not self._log_in_again(response, kind, used):
                break
            response.close()
            if streamed:
                raise Broken("the login has ended")
        return response

    def _log_in_again(self, refused: requests.Response, kind: str, used: dict[str, str]) -> bool:
        """Asks for another token after a refused answer, for a kind of access. Returns whether there is one: a name and
        a password would be refused again. `used` is the header of the refused login.

        Only the registry itself may name the server of tokens, not one to which it has led. If it names none, the one
        of its last challenge is asked."""
        with self._lock:
            if self._authorization(kind) != used:  # another thread has a new one
                return True
            if self._basic or origin(refused.url) != origin(self._adapter.base) or not self._can_log_in(refused):
                return False
            _, challenge = _challenge(refused)
            if _realm(challenge):
                self._challenges[kind] = challenge
            return bool(self._basic) or self._renew(kind)

    def _renew_doubtful(self, kind: str) -> None:
        """Asks for another token before a body is sent that cannot be sent again, if the last one may have ended."""
        with self._lock:
            if kind in self._doubtful:
                self._doubtful.discard(kind)
                self._renew(kind)

    def _renew(self, kind: str) -> bool:
        """Asks for a token for a kind of access, as its last challenge says. Returns whether there is one."""
        challenge = self._challenges.get(kind)
        if challenge is None:
            return False
        self._adapter.tokens = origin(_realm(challenge))
        try:
            with wrap_library_errors(BuildError, None, "the server of tokens does not answer as it should"):
                token = self.auth.give(challenge)
        finally:
            self._adapter.tokens = None
        if token is None:
            return False
        self._tokens[kind] = token
        return True

    def _authorization(self, kind: str) -> dict[str, str]:
        """The header of a login that is known: a name and a password, or the token for a kind of access."""
        if self._basic:
            return {"Authorization": f"Basic {self._basic}"}
        return {"Authorization": f"Bearer {self._tokens[kind]}"} if kind in self._tokens else {}


def _challenge(refused: requests.Response) -> tuple[str, str]:
    """The scheme of the first challenge that can be met, and the header from there on. Both may be empty.

    https://www.rfc-editor.org/rfc/rfc9110#name-www-authenticate describes the header, which may list several. Refuses
    other logins only, such as Digest: their `realm` is no address."""
    items = parse_list_header(refused.headers.get("Www-Authenticate", ""))
    for number, item in enumerate(items):
        if (scheme := item.partition(" ")[0].lower()) in ("basic", "bearer"):
            return scheme, ", ".join(items[number:])
    if items:
        host, wanted = urlsplit(refused.url).netloc, items[0].partition(" ")[0][:100]
        raise InputError.of(f"{host}: the registry wants a login by {wanted}; etbuild has only Basic and Bearer")
    return "", ""


def _realm(challenge: str) -> str:
    """The address of the server of tokens that a challenge names; empty if it names none."""
    found = re.search(r'realm="([^"]*)"', challenge)
    return found[1] if found else ""


def _retries(stop: threading.Event) -> Retry:
    made = _Retry(
        total=attempts.ATTEMPTS - 1,
        redirect=10,
        allowed_methods=_IDEMPOTENT,
        status_forcelist=PASSING,
        backoff_factor=attempts.BACKOFF_SECONDS,
        backoff_jitter=attempts.BACKOFF_SECONDS,
        backoff_max=attempts.LONGEST_WAIT_SECONDS,
        retry_after_max=attempts.LONGEST_WAIT_SECONDS,
        raise_on_status=False,
    )
    made.stop = stop
    return made


def reason(error: BaseException) -> str:
    """The innermost cause of a network error, without the objects that the libraries print."""
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
        said = "; ".join(str(each["message"]) for each in response.json()["errors"])
    except (ValueError, KeyError, TypeError, RecursionError, *ERRORS):
        said = ""
    return f"status {response.status_code} {said or response.reason}"[:300]
