"""A registry for all tests, a relay in front of it for each test, and packages."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from etbuild.cli import main
from etkit.registry.oci import attempts, layout, package
from tests.helpers.builds import write_build

from .servers import Registry, Relay, make_certificate

BACKBONE = bytes(range(256)) * 4096 * 3  # 3 MB, more than a block


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Attempts follow each other quickly, and nobody's own login is used. Each test has its own cache."""
    monkeypatch.setenv("ETBUILD_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr(attempts, "BACKOFF_SECONDS", 0.01)
    monkeypatch.setenv("HOME", "/nonexistent")
    monkeypatch.delenv("DOCKER_CONFIG", raising=False)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A registry with plain HTTP. Each test uses its own repositories."""
    started = Registry(tmp_path_factory.mktemp("registry"))
    started.start()
    yield started
    started.kill()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a host that is not loopback by its name, and leads to this machine in this process."""
    find = socket.getaddrinfo

    def found(host: Any, *arguments: Any, **options: Any) -> Any:
        return find("127.0.0.1" if host == "elsewhere.test" else host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", found)
    return "elsewhere.test"


@pytest.fixture
def relay(server: Registry) -> Iterator[Relay]:
    with Relay(server.port) as started:
        threading.Thread(target=started.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield started
        started.shutdown()


@pytest.fixture(scope="session")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`first` and `second`, which share a backbone, and `other`, a new graph over the weights of `first`."""
    directory = tmp_path_factory.mktemp("builds")
    write_build(directory, "first", pte=b"one" * 100, ptd=BACKBONE)
    write_build(directory, "second", pte=b"two" * 100, ptd=BACKBONE)
    write_build(directory / "changed", "first", pte=b"new" * 100, ptd=BACKBONE)
    return directory


@pytest.fixture(scope="session")
def packages(builds: Path) -> Path:
    """The layouts `both`, `first`, `second` and `changed`."""
    directory = builds / "packages"
    for name, indexes in {
        "both": ["first.index.json", "second.index.json"],
        "first": ["first.index.json"],
        "second": ["second.index.json"],
        "changed": ["changed/first.index.json"],
    }.items():
        layout.write(package.make([builds / index for index in indexes], {}), directory / name)
    return directory


@pytest.fixture
def repository(request: pytest.FixtureRequest) -> str:
    """The name of a repository that only this test uses."""
    return "tests/" + "".join(char if char.isalnum() else "-" for char in request.node.name.lower()).strip("-").replace(
        "--", "-"
    )


Run = Callable[..., str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a verb in this process, and returns its output. Checks the exit code."""

    def run_verb(*arguments: object, expect: int = 0) -> str:
        code = main.main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert code == expect, captured.err
        assert "Traceback" not in captured.err
        return captured.out if expect == 0 else captured.err

    return run_verb
