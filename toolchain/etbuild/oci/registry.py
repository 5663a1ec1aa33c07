"""A repository of a registry. The package `oras` speaks its protocol: addresses, logins, tokens and lists of tags.

Around it are the parts that it lacks. Each request is repeated after errors that pass; `urllib3.util.Retry` does that,
and obeys Retry-After. A transfer continues where it was broken off, a body has a lowest speed, and every document is
compared with its digest.

https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md describes the protocol.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from http import HTTPStatus
from io import RawIOBase
from pathlib import Path
from types import TracebackType
from typing import IO, Any, BinaryIO
from urllib.parse import urljoin, urlsplit

from etbuild.errors import BuildError, InputError
from etbuild.files import json_file
from etbuild.foreign_errors import wrap_library_errors
from etbuild.oci.access import Access
from etbuild.oci.descriptors import INDEX, MANIFEST, Descriptor, document
from etbuild.oci.package import DOCUMENT_BYTES
from etbuild.oci.reference import Reference

try:
    import oras.provider
    import requests
    from oras.container import Container
    from oras.logger import setup_logger
    from requests.adapters import HTTPAdapter
    from urllib3.exceptions import HTTPError
    from urllib3.util import Retry
except ImportError:
    raise InputError.of(
        "packages of a registry need the package `oras`",
        "pip install 'etbuild[registry]'; in Bazel: the extra `registry`",
    ) from None

ATTEMPTS = 5
BACKOFF_SECONDS = 0.5  # before the second attempt; it doubles with each further one
_LONGEST_WAIT_SECONDS = 60  # also if the registry asks for more
_CONNECT_SECONDS = 10.0
_LOGINS = 3  # tokens to try for a request
_SLOWEST = 1000  # bytes in a second
_BLOCK = 1 << 20
_PASSING = (429, 500, 502, 503, 504)
_IDEMPOTENT = frozenset({"GET", "HEAD", "PUT", "POST", "DELETE"})  # an upload that is begun twice does no harm
_ERRORS = (requests.RequestException, HTTPError, OSError)

Told = Callable[[int], None]
"""Called with a number of bytes that were transferred; with a negative one if they are transferred again."""


class Broken(Exception):
    """A transfer was broken off. It can go on."""


class _Downgraded(requests.RequestException):  # type: ignore[misc]
    """A registry with TLS leads to an address without it."""


class _Adapter(HTTPAdapter):  # type: ignore[misc]
    """Connections of one registry. All requests pass here: those of `oras` too, and those after a redirect.

    A login is sent only to the registry, and to the server of tokens that the registry itself names. A registry with
    TLS cannot lead to addresses without it. The connections send large blocks: urllib3's own size is 16 kB, which costs
    a tenth of the speed.

    Args:
        base: The address of the registry.
        timeout: The seconds to wait for a connection and for an answer, for requests that do not say it.
        retries: When a request is repeated.
    """

    def __init__(self, base: str, timeout: tuple[float, float], retries: Retry) -> None:
        super().__init__(max_retries=retries, pool_maxsize=16)
        self.base, self.timeout = base, timeout
        self.tokens: str | None = None
        """The origin of the server of tokens, while it is asked for one."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, blocksize=_BLOCK, **kwargs)

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        url = request.url or ""
        if self.base.startswith("https:") and not url.lower().startswith("https:"):
            raise _Downgraded(f"it leads to {url[:100]}, without TLS", request=request)
        if _origin(url) not in (_origin(self.base), self.tokens):
            request.headers.pop("Authorization", None)
        kwargs["timeout"] = kwargs.get("timeout") or self.timeout
        return super().send(request, *args, **kwargs)


def _origin(url: str) -> str:
    """The scheme, host and port of an address; empty if it is not one."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return ""
    return f"{parts.scheme}://{parts.hostname}:{port}"


class _Client(oras.provider.Registry):  # type: ignore[misc]
    """oras's client with our policy for repeating a request, in place of its own, which repeats refused logins."""

    seconds: float
    lock: threading.Lock
    adapter: _Adapter

    def do_request(
        self,
        url: str,
        method: str = "GET",
        data: Any = None,
        headers: dict[str, str] | None = None,
        json: Any = None,
        stream: bool = False,
    ) -> requests.Response:
        own = dict(headers or {})

        def send() -> requests.Response:
            return self.session.request(
                method,
                url,
                data=data,
                json=json,
                headers=own,
                stream=stream,
                verify=self._tls_verify,
                timeout=(_CONNECT_SECONDS, self.seconds),
            )

        # A token is for some kinds of access: one for reading does not allow writing. It may also end, and another
        # thread may have got a new one.
        for _ in range(_LOGINS):
            used = self._authorization()
            own.update(used)
            response = send()
            if response.status_code != HTTPStatus.UNAUTHORIZED or not (data is None or isinstance(data, bytes)):
                break
            with self.lock:
                if self._authorization() == used and not self._log_in_again(response, own):
                    break
            response.close()
        return response

    def _log_in_again(self, refused: requests.Response, headers: dict[str, str]) -> bool:
        """Asks for another token. Returns whether there is one: a name and a password would be refused again.

        Only the registry itself may name the server of tokens, not one to which it has led.
        """
        if isinstance(self.auth, oras.auth.BasicAuth) or _origin(refused.url) != _origin(self.adapter.base):
            return False
        challenge = refused.headers.get("Www-Authenticate", "")
        realm = re.search(r'realm="([^"]*)"', challenge)
        if realm is None:
            return False
        self.adapter.tokens = _origin(realm[1])
        try:
            with wrap_library_errors(BuildError, None, "the server of tokens does not answer as it should"):
                given = bool(self.auth.authenticate_request(refused, headers, refresh=True)[1])
                if given:
                    self.auth.token.encode("ascii")
                return given
        finally:
            self.adapter.tokens = None

    def _authorization(self) -> dict[str, str]:
        """The header of a login that is known: a token that was given, or a name and a password."""
        basic = isinstance(self.auth, oras.auth.BasicAuth)
        known = getattr(self.auth, "_basic_auth" if basic else "token", None)
        return dict(self.auth.get_auth_header()) if known else {}


class Repository:
    """A repository of a registry. A `with` statement closes its connections.

    Args:
        reference: The repository.
        access: How to reach the registry.

    Raises:
        BuildError: The registry cannot be reached.
        InputError: It asks for a login.
    """

    def __init__(self, reference: Reference, access: Access) -> None:
        self.reference = reference
        self._access = access
        insecure = access.plain_http or (reference.is_loopback and access.ca_file is None)
        self._base = f"{'http' if insecure else 'https'}://{reference.registry}"
        self._stop = threading.Event()
        with self._errors("cannot be reached"):
            self._client = _client(reference, access, insecure, self._base)

    def __str__(self) -> str:
        return f"{self.reference.registry}/{self.reference.repository}"

    def __enter__(self) -> Repository:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.session.close()

    def stop(self) -> None:
        """Ends transfers of other threads soon."""
        self._stop.set()

    def resolve(self, wanted: str) -> Descriptor:
        """The descriptor of the manifest or image index that a tag or digest names now.

        Raises:
            InputError: There is none.
            BuildError: The registry does not answer, or it sends other content than the digest says.
        """
        return self.document(wanted)[0]

    def document(self, wanted: str) -> tuple[Descriptor, bytes]:
        """The manifest or image index of a tag or digest, with its descriptor. Arguments and errors: as `resolve`."""
        headers = {"Accept": f"{INDEX}, {MANIFEST}"}
        status, media_type, data = self._whole(f"manifests/{wanted}", headers, DOCUMENT_BYTES, HTTPStatus.NOT_FOUND)
        if status == HTTPStatus.NOT_FOUND:
            raise InputError.of(f"{self.reference.at(wanted)}: there is no such package")
        if wanted.startswith("sha256:") and f"sha256:{hashlib.sha256(data).hexdigest()}" != wanted:
            raise BuildError.of(f"{self}: the registry sent other content than the digest {wanted[7:23]}")
        return Descriptor.of(media_type, data), data

    def load(self, blob: Descriptor, limit: int) -> bytes:
        """The content of a small blob or a manifest.

        Raises:
            BuildError: It is too large, is missing, or has other content than its digest says.
        """
        if blob.size > limit:
            raise BuildError.of(f"{self}: {blob.digest[7:23]} has {blob.size} bytes, and at most {limit} are read")
        kind = "manifests" if blob.media_type in (INDEX, MANIFEST) else "blobs"
        accept = {"Accept": blob.media_type} if kind == "manifests" else {}
        _, _, data = self._whole(f"{kind}/{blob.digest}", accept, blob.size)
        if not blob.describes(data):
            raise self._damaged(blob)
        return data

    def fetch(self, blob: Descriptor, target: BinaryIO | RawIOBase, told: Told) -> None:
        """Writes a blob to a file. Continues where a connection broke.

        Args:
            blob: The blob.
            target: An empty file, open for reading and writing.
            told: Is called with the bytes that have arrived.

        Raises:
            BuildError: The registry does not send it, or sends other content than its digest says.
            OSError: The file cannot be written.
        """
        state, count = hashlib.sha256(), _Count(told)
        for again in self._attempts(count, f"{blob.digest[7:23]} cannot be fetched"):
            with again:
                part = {"Range": f"bytes={count.done}-"} if count.done else {}
                with self._request("GET", f"blobs/{blob.digest}", part, stream=True) as response:
                    if count.done and response.status_code == HTTPStatus.OK:  # the registry sends no parts
                        count.reach(0)
                        state = hashlib.sha256()
                        target.seek(0)
                        target.truncate()
                    self._expect(response, HTTPStatus.PARTIAL_CONTENT if count.done else HTTPStatus.OK)
                    if not response.headers.get("Content-Range", f"bytes {count.done}-").startswith(
                        f"bytes {count.done}-"
                    ):
                        raise BuildError.of(f"{self}: the registry sent another part of {blob.digest[7:23]}")
                    for block in self._body(response, blob.size - count.done):
                        target.write(block)
                        state.update(block)
                        count.reach(count.done + len(block))
                if count.done < blob.size:
                    raise Broken("the body ends early")
        if state.hexdigest() != blob.sha256:
            raise self._damaged(blob)

    def has(self, blob: Descriptor) -> bool:
        """Whether the repository has a blob.

        Raises:
            BuildError: The registry does not answer.
        """
        with self._request("HEAD", f"blobs/{blob.digest}") as response:
            if response.status_code == HTTPStatus.NOT_FOUND:
                return False
            self._expect(response, HTTPStatus.OK)
            return True

    def mount(self, blob: Descriptor, other: str) -> bool:
        """Takes a blob from another repository of the registry, without sending it.

        Returns:
            Whether the repository has the blob now.
        """
        place = f"blobs/uploads/?mount={blob.digest}&from={other}"
        with self._request("POST", place) as response:
            if response.status_code == HTTPStatus.CREATED:
                return True
            begun = response.headers.get("Location")
        if response.status_code == HTTPStatus.ACCEPTED and begun:  # an upload was begun instead
            with suppress(BuildError, InputError), self._request("DELETE", self._address(begun)):
                pass  # the registry ends it by itself, too
        return False

    def upload(self, blob: Descriptor, source: Path, told: Told) -> None:
        """Sends a file as a blob. Continues where a connection broke.

        Raises:
            BuildError: The registry does not take it.
            OSError: The file cannot be read.
        """
        place, count = "", _Count(told)
        for again in self._attempts(count, f"{blob.digest[7:23]} cannot be sent"):
            with again, source.open("rb") as file:
                if place:
                    place, taken = self._taken(place)
                    count.reach(taken)
                if not place:
                    with self._request("POST", "blobs/uploads/") as begun:
                        self._expect(begun, HTTPStatus.ACCEPTED)
                        place = self._address(begun.headers.get("Location", ""))
                if count.done < blob.size:
                    place = self._send(place, _Sent(file, count, blob.size, self._stop))
                joint = "&" if "?" in place else "?"
                with self._request("PUT", f"{place}{joint}digest={blob.digest}") as response:
                    if response.status_code in (HTTPStatus.NOT_FOUND, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE):
                        raise Broken("the registry has forgotten the upload")
                    self._expect(response, HTTPStatus.CREATED)

    def _send(self, place: str, body: _Sent) -> str:
        """Sends the rest of a blob. Returns the address of the next request."""
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Range": f"{body.start}-{body.start + body.len - 1}",
        }
        with self._request("PATCH", place, headers, data=body) as response:
            if response.status_code in _PASSING:
                raise Broken(_answer(response))
            self._expect(response, HTTPStatus.ACCEPTED, HTTPStatus.NO_CONTENT)
            return self._address(response.headers.get("Location", ""))

    def _taken(self, place: str) -> tuple[str, int]:
        """Where an upload goes on, and how many bytes of it have arrived; `""` if the registry has forgotten it."""
        with self._request("GET", place) as response:
            if response.status_code != HTTPStatus.NO_CONTENT:
                return "", 0
            _, _, last = response.headers.get("Range", "").partition("-")
            # 0-0 says that nothing has arrived, or one byte: begin again then.
            taken = int(last) + 1 if last.isdecimal() and last != "0" and len(last) < 20 else 0
            return (self._address(response.headers.get("Location", place)), taken) if taken else ("", 0)

    def put_document(self, name: str, blob: Descriptor, data: bytes) -> None:
        """Stores a manifest or an image index under a tag or its digest.

        Raises:
            BuildError: The registry does not take it.
        """
        self._put(name, blob, data)

    def _put(self, name: str, blob: Descriptor, data: bytes) -> bool:
        """Stores a manifest. Returns whether the registry knows about referrers, if the manifest has a subject."""
        for again in self._attempts(_Count(lambda _: None), f"the manifest {blob.digest[7:23]} cannot be stored"):
            with (
                again,
                self._request("PUT", f"manifests/{name}", {"Content-Type": blob.media_type}, data=data) as response,
            ):
                if response.status_code == HTTPStatus.BAD_REQUEST:
                    # While another push writes the same blob again, a registry may not see it for a moment.
                    raise Broken(_answer(response))
                self._expect(response, HTTPStatus.CREATED)
        stored = response.headers.get("Docker-Content-Digest", blob.digest)
        knows_referrers = "OCI-Subject" in response.headers
        if stored != blob.digest:
            raise BuildError.of(f"{self}: the registry stored {stored[:80]} in place of {blob.digest}")
        return knows_referrers

    def put_referrer(self, subject: Descriptor, blob: Descriptor, data: bytes, artifact_type: str) -> None:
        """Stores a manifest that refers to another one, so that tools find it from there.

        A registry that does not know about referrers gets a list of them under the tag `sha256-DIGEST`, as the
        specification says.

        Raises:
            BuildError: The registry does not take it.
        """
        if self._put(blob.digest, blob, data):
            return
        tag = f"sha256-{subject.sha256}"
        status, _, listed = self._whole(f"manifests/{tag}", {"Accept": INDEX}, DOCUMENT_BYTES, HTTPStatus.NOT_FOUND)
        try:
            known = json_file.parse(listed)["manifests"] if status == HTTPStatus.OK else []
            others = [each for each in known if each["digest"] != blob.digest]  # the newest stands last
        except (ValueError, KeyError, TypeError) as error:
            raise BuildError.of(f"{self}: the tag {tag} does not hold a list of referrers: {error}") from None
        manifests = [*others, {**blob.json(), "artifactType": artifact_type}]
        if manifests == known:
            return
        index = document({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests})
        self._put(tag, Descriptor.of(INDEX, index), index)

    def tags(self) -> list[str]:
        """The tags of the repository, sorted.

        Raises:
            InputError: There is no such repository.
            BuildError: The registry does not answer.
        """
        status, _, _ = self._whole("tags/list?n=1", {}, DOCUMENT_BYTES, HTTPStatus.NOT_FOUND)
        if status == HTTPStatus.NOT_FOUND:
            raise InputError.of(f"{self}: there is no such repository")
        with wrap_library_errors(BuildError, None, f"{self}: the tags cannot be listed"):
            listed = self._client.get_tags(_container(self.reference))
        return sorted(tag for tag in listed if isinstance(tag, str))

    @contextmanager
    def _request(
        self,
        method: str,
        place: str,
        headers: dict[str, str] | None = None,
        data: Any = None,
        stream: bool = False,
    ) -> Iterator[requests.Response]:
        """Sends a request. `place` is relative to the repository, or a whole address."""
        url = place if "://" in place else f"{self._base}/v2/{self.reference.repository}/{place}"
        # A body that is compressed on the way has no ranges.
        own = {"Accept-Encoding": "identity", **(headers or {})}
        with self._errors("the registry does not answer", broken=data is not None and not isinstance(data, bytes)):
            response = self._client.do_request(url, method, data=data, headers=own, stream=stream)
        with closing(response):
            if response.status_code == HTTPStatus.UNAUTHORIZED:
                if data is not None and not isinstance(data, bytes):
                    raise Broken("the login is no longer valid")  # the next request renews it
                hint = f"log in with `docker login {self.reference.registry}`, or check the name and the password"
                raise InputError.of(f"{self}: the registry wants a login", hint)
            if response.status_code == HTTPStatus.FORBIDDEN:
                message = f"{self}: the registry does not allow this: {_answer(response)}"
                raise InputError.of(message, "does this login have the right to do it?")
            yield response

    def _whole(self, place: str, headers: dict[str, str], limit: int, *also: HTTPStatus) -> tuple[int, str, bytes]:
        """The status, media type and content of a small document.

        Args:
            place: Its address, relative to the repository.
            headers: The headers of the request.
            limit: Its largest size in bytes.
            also: Answers that are expected besides `OK`.
        """
        for again in self._attempts(_Count(lambda _: None), f"{place} cannot be fetched"):
            with again, self._request("GET", place, headers, stream=True) as response:
                self._expect(response, HTTPStatus.OK, *also)
                data = b"".join(self._body(response, limit))
        return response.status_code, response.headers.get("Content-Type", "").partition(";")[0], data

    def _body(self, response: requests.Response, limit: int) -> Iterator[bytes]:
        """The blocks of a body.

        Raises:
            Broken: The connection broke, or is too slow.
            BuildError: There are more bytes than the limit.
        """
        begun, total = time.monotonic(), 0
        while True:
            if self._stop.is_set():
                raise BuildError.of(f"{self}: stopped")
            try:
                block = response.raw.read1(_BLOCK, decode_content=False)
            except _ERRORS as error:
                raise Broken(_reason(error)) from error
            if not block:
                return
            total += len(block)
            if total > limit:
                raise BuildError.of(f"{self}: the registry sent more than the {limit} bytes that were promised")
            yield block
            passed = time.monotonic() - begun
            if passed > self._access.stall_seconds and total < _SLOWEST * passed:
                raise Broken(f"only {total} bytes came in {passed:.0f} seconds")

    def _attempts(self, count: _Count, failed: str) -> Iterator[_Attempt]:
        """Attempts at a transfer until one succeeds.

        Raises:
            BuildError: Some attempts in a row have failed, and none of them transferred a megabyte.
        """
        failures, before = 0, 0
        while True:
            attempt = _Attempt(self._stop)
            yield attempt
            if attempt.error is None:
                return
            failures = 1 if count.done >= before + _BLOCK else failures + 1
            before = max(before, count.done)
            if failures >= ATTEMPTS:
                hint = "try again: what has arrived is not sent again" if "sent" in failed else None
                raise BuildError.of(f"{self}: {failed}: {attempt.error}", hint) from attempt.error
            self._stop.wait(min(BACKOFF_SECONDS * 2 ** (failures - 1), _LONGEST_WAIT_SECONDS))

    @contextmanager
    def _errors(self, what: str, broken: bool = False) -> Iterator[None]:
        """Converts errors of the network. With `broken`, the caller can go on after those that pass."""
        try:
            yield
        except requests.exceptions.SSLError as error:
            hint = "name the certificates of your authority with --ca-file, or use --plain-http if it has no TLS"
            raise BuildError.of(f"{self}: {what}: {_reason(error)}", hint) from error
        except _ERRORS as error:
            if broken:
                raise Broken(_reason(error)) from error
            raise BuildError.of(f"{self}: {what}: {_reason(error)}") from error

    def _expect(self, response: requests.Response, *wanted: HTTPStatus) -> None:
        if response.status_code not in wanted:
            raise BuildError.of(f"{self}: {response.request.method}: {_answer(response)}")

    def _address(self, location: str) -> str:
        """The whole address of a Location, which may be relative."""
        if not location:
            raise BuildError.of(f"{self}: the registry does not say where to send the blob")
        try:
            return urljoin(f"{self._base}/", location)
        except ValueError as error:
            raise BuildError.of(f"{self}: {location[:100]!r} is no address: {error}") from None

    def _damaged(self, blob: Descriptor) -> BuildError:
        return BuildError.of(f"{self}: the registry sent other content than the digest {blob.sha256[:16]} says")


class _Attempt:
    """One attempt of a transfer, as a `with` statement that keeps `Broken`."""

    def __init__(self, stop: threading.Event) -> None:
        self.error: Broken | None = None
        self._stop = stop

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, Broken) and not self._stop.is_set():
            self.error = error
            return True
        return False


class _Count:
    """The bytes of a transfer that are done."""

    def __init__(self, told: Told) -> None:
        self.done = 0
        self._told = told

    def reach(self, done: int) -> None:
        """Sets the number, and reports the difference."""
        self._told(done - self.done)
        self.done = done


class _Sent:
    """The rest of a file as the body of a request. requests asks for `len`."""

    def __init__(self, file: IO[bytes], count: _Count, end: int, stop: threading.Event) -> None:
        self.start, self.len = count.done, end - count.done
        self._file, self._count, self._end, self._stop = file, count, end, stop
        file.seek(count.done)

    def read(self, amount: int = _BLOCK) -> bytes:
        if self._stop.is_set():
            raise OSError("stopped")
        block = self._file.read(min(self._end - self._count.done, amount))
        self._count.reach(self._count.done + len(block))
        return block

    def __iter__(self) -> Iterator[bytes]:
        while block := self.read():
            yield block


def _client(reference: Reference, access: Access, insecure: bool, base: str) -> _Client:
    """A client with the user's login for the registry, if there is one."""
    setup_logger(quiet=True)
    logging.getLogger("oras.logger").setLevel(logging.CRITICAL)  # it tells what our errors tell
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # it tells each attempt
    verify: bool | str = str(access.ca_file) if access.ca_file else True
    client = _Client(reference.registry, insecure=insecure, tls_verify=verify, auth_backend="token")
    retries = Retry(
        total=ATTEMPTS - 1,
        redirect=10,
        allowed_methods=_IDEMPOTENT,
        status_forcelist=_PASSING,
        backoff_factor=BACKOFF_SECONDS,
        backoff_jitter=BACKOFF_SECONDS,
        backoff_max=_LONGEST_WAIT_SECONDS,
        retry_after_max=_LONGEST_WAIT_SECONDS,
        raise_on_status=False,
    )
    client.seconds, client.lock = access.stall_seconds, threading.Lock()
    client.adapter = _Adapter(base, (_CONNECT_SECONDS, client.seconds), retries)
    for scheme in ("http://", "https://"):
        client.session.mount(scheme, client.adapter)
    client.session.auth = lambda request: request  # or else a login of ~/.netrc would replace that of Docker
    try:
        _log_in(client, reference, base)
    except BaseException:  # an interrupt as well
        client.session.close()
        raise
    return client


def _log_in(client: _Client, reference: Reference, base: str) -> None:
    """Finds out what kind of login the registry wants, and takes that of the user."""
    timeout = (_CONNECT_SECONDS, client.seconds)
    greeting = client.session.get(f"{base}/v2/", verify=client._tls_verify, timeout=timeout)
    if greeting.headers.get("Www-Authenticate", "").lower().startswith("basic"):
        insecure = base.startswith("http:")
        client.auth = oras.auth.get_auth_backend("basic", client.session, insecure, tls_verify=client._tls_verify)
    docker = os.environ.get("DOCKER_CONFIG")
    config = Path(docker, "config.json") if docker else None
    with wrap_library_errors(InputError, None, "cannot read the logins of Docker's config.json"):
        client.auth.load_configs(_container(reference), [str(config)] if config and config.exists() else None)
    if greeting.status_code == HTTPStatus.UNAUTHORIZED and not _can_log_in(client):
        hint = f"log in with `docker login {reference.registry}`"
        raise InputError.of(f"{reference.registry}: the registry wants a login, and there is none for it", hint)


def _container(reference: Reference) -> Container:
    """The repository as oras wants it. Its own parser takes a host without a dot for a part of the path."""
    container = Container(f"registry.invalid/{reference.repository}")
    container.registry = reference.registry
    return container


def _can_log_in(client: _Client) -> bool:
    """Whether there is a login. A registry with tokens may give one to anybody."""
    return not isinstance(client.auth, oras.auth.BasicAuth) or bool(getattr(client.auth, "_basic_auth", None))


def _reason(error: BaseException) -> str:
    """The innermost cause of a network error, without the objects that the libraries print."""
    while True:
        inner = getattr(error, "reason", None)
        if not isinstance(inner, BaseException):
            inner = next((each for each in error.args if isinstance(each, BaseException)), None)
        if inner is None:
            break
        error = inner
    return re.sub(r"^(<.*>|\w+\(.*\)): |\[Errno -?\d+\] ", "", str(error))[:300]


def _answer(response: requests.Response) -> str:
    """The status of an answer, and the registry's own message."""
    try:
        said = "; ".join(str(each["message"]) for each in response.json()["errors"])
    except (ValueError, KeyError, TypeError, RecursionError, *_ERRORS):
        said = ""
    return f"status {response.status_code} {said or response.reason}"[:300]
