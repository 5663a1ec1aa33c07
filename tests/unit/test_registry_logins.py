"""Logins go to the registry, and to the server of tokens that it names; nowhere else, and never without TLS."""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import socket
import socketserver
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path

import certifi
import pytest
import requests

from etbuild.errors import BuildError, EtbuildError, InputError
from etkit.registry.oci import attempts, reference, registry
from etkit.registry.oci.connection import Adapter
from etkit.registry.oci.descriptors import Descriptor
from etkit.registry.oci.reference import Access
from tests.helpers.http_server import Answer, Server, serving

SECRET = base64.b64encode(b"user:secret").decode()


@pytest.fixture
def login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Server], str]:
    """Gives a user a login for a server. Returns the server's address."""

    def give(server: Server) -> str:
        address = f"127.0.0.1:{server.port}"
        (tmp_path / "config.json").write_text(json.dumps({"auths": {address: {"auth": SECRET}}}))
        return address

    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    return give


def repository(address: str) -> registry.Repository:
    return registry.Repository(reference.parse(f"{address}/a/b:v1"), Access(stall_seconds=5))


def basic(command: str, path: str, login: str) -> Answer:
    """A registry that wants a name and a password."""
    return (200, {}, b"{}") if login else (401, {"Www-Authenticate": 'Basic realm="x"'}, b"{}")


def test_an_upload_at_another_host_gets_no_login(login: Callable[[Server], str], tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(b"content")
    with serving(lambda *asked: (201, {}, b"")) as other:

        def answer(command: str, path: str, login: str) -> Answer:
            away = {"Location": f"http://localhost:{other.port}/upload"}
            return (202, away, b"") if command == "POST" and login else basic(command, path, login)

        with serving(answer) as server, repository(login(server)) as one, pytest.raises(EtbuildError):
            one.upload(Descriptor.of("x/y", b"content"), tmp_path / "blob", lambda count: None)
    assert f"Basic {SECRET}" in server.logins
    assert other.seen
    assert other.logins == {""}


def test_the_server_of_tokens_gets_no_token(login: Callable[[Server], str], tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(b"content")
    with serving(lambda command, *asked: (200 if command == "GET" else 201, {}, b'{"token": "good"}')) as tokens:

        def answer(command: str, path: str, login: str) -> Answer:
            if login != "Bearer good":
                asked = f'Bearer realm="http://127.0.0.1:{tokens.port}/token",service="s"'
                return 401, {"Www-Authenticate": asked}, b"{}"
            away = {"Location": f"http://127.0.0.1:{tokens.port}/upload"}
            return (202, away, b"") if command == "POST" else (404, {}, b"")

        with serving(answer) as server, repository(login(server)) as one, pytest.raises(EtbuildError):
            one.upload(Descriptor.of("x/y", b"content"), tmp_path / "blob", lambda count: None)
    assert "Bearer good" in server.logins
    assert "Bearer good" not in tokens.logins
    assert len(tokens.seen) > 1


def test_only_the_registry_names_the_server_of_tokens(login: Callable[[Server], str]) -> None:
    with serving(lambda *asked: (200, {}, b'{"token": "t"}')) as thief:
        elsewhere = {"Www-Authenticate": f'Bearer realm="http://127.0.0.1:{thief.port}/token",service="s"'}
        with serving(lambda *asked: (401, elsewhere, b"{}")) as content:

            def answer(command: str, path: str, login: str) -> Answer:
                if path.startswith("/token"):
                    return 200, {}, b'{"token": "good"}'
                if login != "Bearer good":
                    own = f'Bearer realm="http://127.0.0.1:{server.port}/token",service="s"'
                    return 401, {"Www-Authenticate": own}, b"{}"
                return 307, {"Location": f"http://localhost:{content.port}/blob"}, b""

            with serving(answer) as server, repository(login(server)) as one, pytest.raises(InputError):
                one.load(Descriptor.of("x/y", b"content"), 100)
    assert f"Basic {SECRET}" in server.logins
    assert content.logins == {""}
    assert not thief.seen


def test_a_registry_with_tls_does_not_lead_to_addresses_without() -> None:
    adapter = Adapter("https://registry.test", 1, threading.Event())
    request = requests.Request("GET", "http://registry.test/v2/").prepare()
    with pytest.raises(requests.RequestException, match="without TLS"):
        adapter.send(request)


def test_a_login_of_netrc_does_not_replace_that_of_docker(login: Callable[[Server], str], tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login someone password else\n")
    (tmp_path / ".netrc").chmod(0o600)
    with serving(basic) as server, repository(login(server)) as one:
        assert one.has(Descriptor.of("x/y", b"content"))
    assert server.logins <= {"", f"Basic {SECRET}"}


@pytest.mark.parametrize(
    ("challenge", "token"),
    [
        ('Bearer service="x"', b"{}"),
        ("token", b"[1]"),
        ("token", b"[" * 100_000),
        ("token", b"<html>"),
        ("token", '{"token": "\u20ac"}'.encode()),
    ],
)
def test_a_login_that_cannot_work_is_an_error_for_users(
    challenge: str, token: bytes, login: Callable[[Server], str]
) -> None:
    def answer(command: str, path: str, login: str) -> Answer:
        if path.startswith("/token"):
            return 200, {}, token
        own = f'Bearer realm="http://127.0.0.1:{server.port}/token",service="s"'
        return 401, {"Www-Authenticate": own if challenge == "token" else challenge}, b"{}"

    with serving(answer) as server, pytest.raises(EtbuildError), repository(login(server)) as one:
        one.has(Descriptor.of("x/y", b"content"))


CHALLENGES = [
    ('Digest realm="{thief}", nonce="x"', None),
    ('NTLM realm="{thief}"', None),
    ("Negotiate", None),
    ('Negotiate, Basic realm="{thief}"', "Basic"),
    ('Digest realm="{thief}", nonce="Bearer ", Bearer realm="{own}", service="s"', "Bearer"),
]


@pytest.mark.parametrize(("challenge", "taken"), CHALLENGES)
def test_only_basic_and_bearer_challenges_are_met(
    challenge: str, taken: str | None, login: Callable[[Server], str]
) -> None:
    with serving(lambda *asked: (200, {}, b'{"token": "t"}')) as thief:

        def answer(command: str, path: str, login: str) -> Answer:
            if path.startswith("/token"):
                return 200, {}, b'{"token": "good"}'
            if login in ("Bearer good", f"Basic {SECRET}"):
                return 200, {}, b"{}"
            places = {"thief": f"http://127.0.0.1:{thief.port}/t", "own": f"http://127.0.0.1:{server.port}/token"}
            return 401, {"Www-Authenticate": challenge.format(**places)}, b"{}"

        with serving(answer) as server:
            refused = pytest.raises(
                InputError, match=r"wants a login by (Digest|NTLM|Negotiate); etbuild has only Basic"
            )
            with refused if taken is None else nullcontext(), repository(login(server)) as one:
                assert one.has(Descriptor.of("x/y", b"content"))
    assert not thief.seen
    assert (taken == "Basic" or taken == "Bearer") == (f"Basic {SECRET}" in server.logins)


def tokens(server: Callable[[], Server], given: Callable[[str], bytes]) -> Callable[[str, str, str], Answer]:
    """A registry that wants a token, which its own server gives at any path of tokens."""

    def answer(command: str, path: str, login: str) -> Answer:
        if path.startswith("/token"):
            return 200, {}, given(login)
        own = f'Bearer realm="http://127.0.0.1:{server().port}/token",service="s",scope="repository:a/b:pull"'
        return (200, {}, b"") if login == "Bearer good" else (401, {"Www-Authenticate": own}, b"{}")

    return answer


def test_an_identity_token_is_exchanged_for_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with serving(tokens(lambda: server, lambda login: b'{"access_token": "good"}')) as server:
        auths = {f"127.0.0.1:{server.port}": {"auth": SECRET, "identitytoken": "refresh me"}}
        (tmp_path / "config.json").write_text(json.dumps({"auths": auths}))
        with repository(f"127.0.0.1:{server.port}") as one:
            assert one.has(Descriptor.of("x/y", b"content"))
    [form] = [body for path, body in server.bodies if path == "/token"]
    assert form == (
        b"grant_type=refresh_token&refresh_token=refresh+me&client_id=etbuild&service=s&scope=repository%3Aa%2Fb%3Apull"
    )
    assert server.logins == {"", "Bearer good"}


@pytest.mark.parametrize("place", ["/token", "/v2/"])
def test_an_answer_without_end_is_cut(place: str, login: Callable[[Server], str]) -> None:
    """A token, and the text of an error. The server writes until the client has enough."""

    def answer(command: str, path: str, login: str) -> Answer:
        if path.startswith(place) and path != "/v2/":
            return (200 if place == "/token" else 404), {"Content-Length": str(1 << 40)}, b"x" * (1 << 22)
        own = f'Bearer realm="http://127.0.0.1:{server.port}/token",service="s"'
        return 401, {"Www-Authenticate": own}, b"{}"

    with serving(answer) as server, repository(login(server)) as one, pytest.raises(EtbuildError) as told:
        one.load(Descriptor.of("x/y", b"content"), 100)
    assert ("server of tokens" if place == "/token" else "status 404") in str(told.value)


def test_an_error_that_passes_is_not_read_to_its_end(
    login: Callable[[Server], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "BACKOFF_SECONDS", 0.001)
    failures = [503] * 3

    def answer(command: str, path: str, login: str) -> Answer:
        if path.endswith("/manifests/v1") and failures:
            return failures.pop(), {"Content-Length": str(1 << 40)}, b"x"
        return 200, {"Content-Type": "x/y"}, b"{}"

    with serving(answer) as server, repository(login(server)) as one:
        assert one.document("v1")[1] == b"{}"
    assert not failures


def test_an_open_registry_asks_for_no_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("damaged")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with serving(lambda *asked: (200, {}, b"")) as server, repository(f"127.0.0.1:{server.port}") as one:
        assert one.has(Descriptor.of("x/y", b"content"))


@pytest.mark.parametrize(
    ("begin", "more"), [(b"HTTP/1.1 200 OK\r\nX: ", b"x"), (b"", b"H"), (b"", b"HTTP/1.1 100 Continue\r\n\r\n")]
)
def test_headers_that_never_end_are_given_up(begin: bytes, more: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes keep coming, so that no single wait for the registry takes long."""
    monkeypatch.setattr(attempts, "BACKOFF_SECONDS", 0.001)
    ended = threading.Event()

    class Dripping(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                self.request.sendall(begin)
                while not ended.wait(0.02):
                    self.request.sendall(more)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Dripping) as server:
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        wanted = reference.parse(f"127.0.0.1:{server.server_address[1]}/a/b:v1")
        with pytest.raises(BuildError, match="Read timed out"):
            registry.Repository(wanted, Access(stall_seconds=0.2))
        ended.set()
        server.shutdown()


HANDSHAKE = b"\x16\x03\x03\x3f\xff\x02"  # the beginning of a record of TLS with 16383 bytes


@pytest.mark.parametrize("tls", [True, False])
@pytest.mark.parametrize("server", ["does not accept", "says nothing", "drips"])
def test_a_connection_that_is_never_made_is_given_up(tls: bool, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "ATTEMPTS", 1)
    ended = threading.Event()

    class Silent(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                self.request.sendall(HANDSHAKE if server == "drips" else b"")
                while not ended.wait(0.02):
                    self.request.sendall(b"x" if server == "drips" else b"")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Silent) as listening, contextlib.ExitStack() as held:
        if server == "does not accept":  # those that wait are full
            listening.socket.listen(0)
            for _ in range(3):
                waiting = held.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(listening.server_address)
        else:
            threading.Thread(target=listening.serve_forever, args=[0.01], daemon=True).start()
        wanted = reference.parse(f"127.0.0.1:{listening.server_address[1]}/a/b:v1")
        access = Access(stall_seconds=0.4, ca_file=Path(certifi.where()) if tls else None)
        begun = time.monotonic()
        with pytest.raises(BuildError, match=r"cannot be reached: .*timed out"):
            registry.Repository(wanted, access)
        assert time.monotonic() - begun < 4
        ended.set()
        if server != "does not accept":
            listening.shutdown()


@pytest.mark.parametrize("when", ["soon", "1.5", "-5", ""])
def test_a_time_that_cannot_be_read_does_not_end_the_attempts(
    when: str, login: Callable[[Server], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "BACKOFF_SECONDS", 0.001)
    failures = [503, 429, 503]

    def answer(command: str, path: str, login: str) -> Answer:
        if path.endswith("/manifests/v1") and failures:
            return failures.pop(), {"Retry-After": when}, b""
        return 200, {"Content-Type": "x/y"}, b"{}"

    with serving(answer) as server, repository(login(server)) as one:
        assert one.document("v1")[1] == b"{}"
    assert not failures


def certificate(directory: Path, days: int) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1, signed by itself, and its key."""
    directory.mkdir()
    made, key, request = (directory / name for name in ("certificate.pem", "key.pem", "request.pem"))
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=tests"]
    name = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(["openssl", "req", "-new", *curve, *name, "-keyout", key, "-out", request], check=True)
    sign = ["-signkey", key, "-copy_extensions", "copy", "-days", str(days)]
    subprocess.run(["openssl", "x509", "-req", "-in", str(request), *map(str, sign), "-out", str(made)], check=True)
    return made, key


@pytest.mark.skipif(shutil.which("openssl") is None, reason="it makes certificates")
@pytest.mark.parametrize(
    ("trusted", "served", "advised"),
    [
        ("valid", "valid", None),
        ("other", "valid", "--ca-file"),
        ("expired", "expired", None),
        ("other", None, "--plain-http"),
    ],
)
def test_what_an_error_of_tls_advises(trusted: str, served: str | None, advised: str | None, tmp_path: Path) -> None:
    """A certificate that has expired needs neither another authority nor a connection without TLS."""
    made = {name: certificate(tmp_path / name, -1 if name == "expired" else 2) for name in {trusted, served or trusted}}
    with serving(lambda *asked: (404, {}, b"{}")) as server:
        if served is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*made[served])
            server.wrap(context)
        access = Access(stall_seconds=5, ca_file=made[trusted][0])
        address = reference.parse(f"127.0.0.1:{server.port}/a/b:v1")
        with pytest.raises(EtbuildError) as raised, registry.Repository(address, access) as one:
            one.tags()
    hints = raised.value.problems[0].hint or ""
    assert [word for word in ("--ca-file", "--plain-http") if word in hints] == ([advised] if advised else [])
