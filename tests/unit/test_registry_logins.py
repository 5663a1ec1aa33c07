"""Logins go to the registry, and to the server of tokens that it names; nowhere else, and never without TLS."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

oras = pytest.importorskip("oras")

import requests  # noqa: E402
from urllib3.util import Retry  # noqa: E402

from etbuild.errors import EtbuildError, InputError  # noqa: E402
from etbuild.oci import reference, registry  # noqa: E402
from etbuild.oci.access import Access  # noqa: E402
from etbuild.oci.descriptors import Descriptor  # noqa: E402

SECRET = base64.b64encode(b"user:secret").decode()
Answer = tuple[int, dict[str, str], bytes]


class Server:
    """A server on loopback that answers as a function says, and keeps who was told which login."""

    def __init__(self, answer: Callable[[str, str, str], Answer]) -> None:
        seen = self.seen = list[tuple[str, str]]()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *arguments: Any) -> None:
                pass

            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
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
        self._thread = Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

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
    adapter = registry._Adapter("https://registry.test", (1, 1), Retry(total=0))
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
