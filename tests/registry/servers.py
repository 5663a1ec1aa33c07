"""A real registry (Debian's docker-registry), and a relay in front of it that counts bytes and makes faults."""

from __future__ import annotations

import base64
import contextlib
import functools
import http.client
import json
import os
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

START_SECONDS = 30
USER, PASSWORD = "builder", "open sesame"
# bcrypt of PASSWORD, as `htpasswd -B` writes it
LOGIN = f"{USER}:$2b$05$Kjfeq0kVqtzgwTdBfOkeRO5zV6evjyh8mlxVnFm4l/g6QBAX/LFdS\n"


def find(command: str) -> str:
    """The path of a command of the tests. Skips the test if it is not installed."""
    found = os.environ.get(command.upper().replace("-", "_")) or shutil.which(command)
    if not found:
        pytest.skip(f"{command} is not installed: tools/find_registry.sh {command}")
    return found


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Registry:
    """Debian's docker-registry with its store in a directory.

    Args:
        directory: Its directory.
        certificate: A certificate and its key, in PEM format; None for plain HTTP.
        login: Whether it wants a login.
    """

    def __init__(self, directory: Path, certificate: tuple[Path, Path] | None = None, login: bool = False) -> None:
        self.directory, self.store, self.port = directory, directory / "store", free_port()
        self.address = f"127.0.0.1:{self.port}"
        directory.mkdir(parents=True, exist_ok=True)
        lines = [
            "version: 0.1",
            f"storage: {{filesystem: {{rootdirectory: {self.store}}}, delete: {{enabled: true}}}}",
            f"http: {{addr: '{self.address}', secret: fixed{self._tls(certificate)}}}",
            "log: {level: warn}",
        ]
        if login:
            (directory / "users").write_text(LOGIN)
            lines.append(f"auth: {{htpasswd: {{realm: tests, path: {directory / 'users'}}}}}")
        (directory / "registry.yml").write_text("\n".join(lines) + "\n")
        self.process: subprocess.Popen[bytes] | None = None

    @staticmethod
    def _tls(certificate: tuple[Path, Path] | None) -> str:
        return f", tls: {{certificate: {certificate[0]}, key: {certificate[1]}}}" if certificate else ""

    def start(self) -> None:
        """Starts the registry and waits until it answers."""
        command = [find("docker-registry"), "serve", str(self.directory / "registry.yml")]
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        until = time.monotonic() + START_SECONDS
        while True:
            assert self.process.poll() is None, (self.directory / "log").read_text()
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                assert time.monotonic() < until, (self.directory / "log").read_text()
                time.sleep(0.02)

    def kill(self) -> None:
        """Kills the registry, as a crash would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def blob(self, sha256: str) -> Path:
        """The path of a blob in the store."""
        return self.store / "docker/registry/v2/blobs/sha256" / sha256[:2] / sha256 / "data"


@functools.cache
def make_certificate(directory: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1, signed by itself, and its key."""
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    names = "subjectAltName=IP:127.0.0.1,DNS:localhost"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=tests", "-addext", names, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


def docker_config(directory: Path, registry: str, password: str = PASSWORD) -> Path:
    """A directory with the config.json that `docker login` writes."""
    directory.mkdir()
    auth = base64.b64encode(f"{USER}:{password}".encode()).decode()
    (directory / "config.json").write_text(f'{{"auths": {{"{registry}": {{"auth": "{auth}"}}}}}}')
    return directory


@dataclass
class Fault:
    """What the relay does with a request in place of relaying it, or with its answer.

    Attributes:
        method: The method of the requests that it concerns.
        path: A part of their path.
        times: How often it happens.
        status: The status to answer with, without asking the registry.
        headers: The headers of that answer.
        cut_request: Relay so many bytes of the request's body, then break the connection.
        cut: Send so many bytes of the body of the answer, then break the connection.
        change: Changes the body of the answer.
        drip: Send the body of the answer a byte at a time, with pauses of so many seconds.
        whole: Send the whole body, even if the client asks for a part.
        before: Is called before the request is relayed.
    """

    method: str
    path: str
    times: int = 1_000_000
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    cut_request: int | None = None
    cut: int | None = None
    change: Callable[[bytes], bytes] | None = None
    drip: float | None = None
    whole: bool = False
    before: Callable[[], object] | None = None


@dataclass
class Tokens:
    """A service that gives tokens, as those of large registries do: each is for some repositories and actions.

    Attributes:
        anonymous: Whether anybody gets a token for reading.
        uses: How many requests a token allows.
        closed: Repositories for which nobody gets a token.
        given: The scopes of the tokens so far.
        left: How often each token can still be used.
    """

    anonymous: bool = False
    uses: int = 1_000_000
    closed: set[str] = field(default_factory=set)
    given: list[str] = field(default_factory=list)
    left: dict[str, int] = field(default_factory=dict)

    def give(self, query: str, authorization: str | None) -> str | None:
        """A token for the scopes that a request asks for; None if it is refused."""
        scopes = urllib.parse.parse_qs(query)["scope"]
        assert not any(" " in scope for scope in scopes), "each scope is a parameter of its own"
        login = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        reads = all(scope.endswith(":pull") for scope in scopes)
        if authorization != login and not (self.anonymous and authorization is None and reads):
            return None
        self.given.append(" ".join(scopes))
        allowed = [scope for scope in scopes if scope.split(":")[1] not in self.closed]
        token = f"{len(self.given)}-{'+'.join(allowed)}"
        self.left[token] = self.uses
        return token

    @staticmethod
    def needed(method: str, path: str) -> str:
        """The scopes that a request needs; empty for a request that needs only a login."""
        address, _, query = path.partition("?")
        repository = address.removeprefix("/v2/").rpartition("/blobs/")[0] or "/".join(address.split("/")[2:-2])
        if not repository:
            return ""
        actions = {"GET": "pull", "HEAD": "pull", "DELETE": "delete"}.get(method, "pull,push")
        others = urllib.parse.parse_qs(query).get("from", [])
        return " ".join([f"repository:{repository}:{actions}", *(f"repository:{other}:pull" for other in others)])

    def allows(self, needed: str, authorization: str | None) -> bool:
        """Whether a request has a token that allows it. Uses the token."""
        token = (authorization or "").removeprefix("Bearer ")
        if not self.left.get(token):
            return False
        self.left[token] -= 1
        granted = {
            scope.rpartition(":")[0]: scope.rpartition(":")[2].split(",")
            for scope in token.partition("-")[2].split("+")
        }
        wanted = [scope.rpartition(":") for scope in needed.split()]
        return all(set(actions.split(",")) <= set(granted.get(where, ())) for where, _, actions in wanted)


class Relay(ThreadingHTTPServer):
    """A server that relays each request to a registry.

    Attributes:
        faults: What goes wrong.
        requests: The requests so far: method, path.
        sent, received: The bytes of bodies that clients have sent and received.
    """

    daemon_threads = True
    request_queue_size = 50

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = port
        self.address = f"127.0.0.1:{self.server_address[1]}"
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str]] = []
        self.ranges: list[str] = []
        self.sent = self.received = 0
        self.lock = threading.Lock()
        self.tokens: Tokens | None = None

    def handle_error(self, request: object, client_address: object) -> None:
        """A connection that a fault has broken is no news."""

    def find_fault(self, method: str, path: str) -> Fault | None:
        """The fault of a request, which is used up by it."""
        with self.lock:
            self.requests.append((method, path))
            for fault in self.faults:
                if fault.times and fault.method == method and fault.path in path:
                    fault.times -= 1
                    return fault
        return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Relay

    def handle_one_request(self) -> None:
        self.close_connection = True
        self.raw_requestline = self.rfile.readline(65537)
        if self.raw_requestline and self.parse_request():
            self.close_connection = False
            self.relay()
            self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
        pass

    def relay(self) -> None:
        fault = self.server.find_fault(self.command, self.path) or Fault("", "")
        body = self.rfile.read(min(self._length(), fault.cut_request if fault.cut_request is not None else 1 << 40))
        with self.server.lock:
            self.server.sent += len(body)
            if "Range" in self.headers:
                self.server.ranges.append(self.headers["Range"])
        if self.server.tokens and not self._has_token(self.server.tokens):
            return
        if fault.before:
            fault.before()
        if fault.status:
            self._answer(fault.status, fault.headers, b"")
            return
        if fault.cut_request is not None:
            self._break_off(body)
            return
        connection = http.client.HTTPConnection("127.0.0.1", self.server.target)
        try:
            headers = {name: value for name, value in self.headers.items() if not (fault.whole and name == "Range")}
            connection.request(self.command, self.path, body, headers)
            response = connection.getresponse()
            data = response.read()
        except OSError:
            self.close_connection = True
            return
        finally:
            connection.close()
        self._relay_answer(response, data, fault)

    def _has_token(self, tokens: Tokens) -> bool:
        """Whether the request may be relayed. If not, it is answered: with a token, or with where to get one."""
        address, _, query = self.path.partition("?")
        authorization = self.headers.get("Authorization")
        with self.server.lock:
            if address == "/token":
                token = tokens.give(query, authorization)
                self._reply(200 if token else 401, {}, json.dumps({"token": token}).encode())
                return False
            needed = tokens.needed(self.command, self.path)
            if tokens.allows(needed, authorization):
                return True
            scope = f',scope="{needed}"' if needed else ""
            challenge = f'Bearer realm="http://{self.server.address}/token",service="tests"{scope}'
            self._reply(401, {"WWW-Authenticate": challenge}, b"{}")
        return False

    def _relay_answer(self, response: http.client.HTTPResponse, data: bytes, fault: Fault) -> None:
        headers = {name: value for name, value in response.getheaders() if name.lower() != "transfer-encoding"}
        if fault.change:
            data = fault.change(data)
            headers["Content-Length"] = str(len(data))
        if fault.cut is not None or fault.drip is not None:
            self._start(response.status, headers)
            for block in [data[: fault.cut]] if fault.drip is None else _drops(data, fault.drip):
                self.wfile.write(block)
                self.wfile.flush()
            self.close_connection = True
            return
        self._answer(response.status, headers, data)

    def _break_off(self, body: bytes) -> None:
        """Sends the first part of an upload to the registry, and breaks both connections."""
        with socket.create_connection(("127.0.0.1", self.server.target)) as upstream:
            head = f"{self.command} {self.path} HTTP/1.1\r\n{self.headers}".replace("\n", "\r\n").replace("\r\r", "\r")
            upstream.sendall(head.encode() + body)
            time.sleep(0.1)  # the registry writes what it has
        self.close_connection = True

    def _answer(self, status: int, headers: dict[str, str], data: bytes) -> None:
        self._reply(status, headers, data)
        with self.server.lock:
            self.server.received += len(data)

    def _reply(self, status: int, headers: dict[str, str], data: bytes) -> None:
        self._start(status, {"Content-Length": str(len(data)), **headers})
        if self.command != "HEAD":
            self.wfile.write(data)

    def _start(self, status: int, headers: dict[str, str]) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _length(self) -> int:
        return int(self.headers.get("Content-Length") or 0)


def _drops(data: bytes, pause: float) -> Iterator[bytes]:
    for position in range(len(data)):
        yield data[position : position + 1]
        time.sleep(pause)


class Wire:
    """Relays connections to a port, and counts every byte on them, headers included. Use it in a `with` statement."""

    def __init__(self, port: int) -> None:
        self.sent = self.received = 0
        self._target = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown(socket.SHUT_RDWR)  # ends `accept`
        for thread in self._threads:
            thread.join()
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._relay, args=(client,)))
            self._threads[-1].start()

    def _relay(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._target)) as upstream:
            back = threading.Thread(target=self._pump, args=(upstream, client, "received"))
            back.start()
            self._pump(client, upstream, "sent")
            back.join()

    def _pump(self, source: socket.socket, target: socket.socket, name: str) -> None:
        with contextlib.suppress(OSError):
            while block := source.recv(1 << 18):
                target.sendall(block)
                setattr(self, name, getattr(self, name) + len(block))
            target.shutdown(socket.SHUT_WR)


def skopeo(*arguments: object) -> str:
    command = [find("skopeo"), "--insecure-policy", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
