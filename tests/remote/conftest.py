"""A cache that one checkout filled, and a second checkout that has built nothing yet."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.helpers.workspaces import WORKERS, Result, Workspace

from .servers import BuildGrid, CacheServer, Nginx

PROGRAMS = ("classifier", "embedder")
TARGETS = [f"//examples/shared_weights:{program}" for program in PROGRAMS]
ARTIFACTS = [f"{program}.{suffix}" for program in PROGRAMS for suffix in ("pte", "backbone.ptd", "index.json")]


def artifacts(workspace: Workspace, names: list[str] = ARTIFACTS) -> dict[str, bytes]:
    """Returns the artifacts of the last build by name."""
    return {name: workspace.output(f"examples/shared_weights/{name}").read_bytes() for name in names}


@dataclass
class Filled:
    """A cache, and the actions and artifacts of the builds that filled it."""

    server: CacheServer
    results: list[Result]
    made: dict[str, bytes]


@pytest.fixture(scope="module", params=[BuildGrid, Nginx], ids=["grpc", "http"])
def server_type(request: pytest.FixtureRequest) -> type[CacheServer]:
    """Each way of serving a cache."""
    kind: type[CacheServer] = request.param
    return kind


@pytest.fixture(scope="module")
def new_workspace(
    snapshot: Path, packages: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Workspace]]:
    """Makes a checkout with its own output root."""
    made: list[Workspace] = []

    def new(name: str) -> Workspace:
        directory = tmp_path_factory.mktemp(name)
        checkout = shutil.copytree(snapshot, directory / "checkout", symlinks=True)
        made.append(Workspace(checkout, directory / "output_root", packages))
        return made[-1]

    yield new
    for workspace in made:
        workspace.stop()


@pytest.fixture(scope="module")
def filled(
    server_type: type[CacheServer],
    new_workspace: Callable[[str], Workspace],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Filled]:
    """A cache with two programs that share a backbone, built by the first checkout."""
    server = server_type(tmp_path_factory.mktemp("server"))
    workspace = new_workspace("first")
    try:
        server.start()
        # One by one if the cache can list missing blobs: at once, both may learn that the backbone is missing.
        commands = [[target] for target in TARGETS] if server.asks_first else [TARGETS]
        results = [workspace.build(server.option, *WORKERS, *targets) for targets in commands]
        workspace.stop()
        yield Filled(server, results, artifacts(workspace))
    finally:
        server.kill()


@pytest.fixture(scope="module")
def second(filled: Filled, new_workspace: Callable[[str], Workspace]) -> Workspace:
    """The second checkout. It cannot see the first, and has its own output root."""
    return new_workspace("second")


@pytest.fixture(autouse=True)
def log_of_server(request: pytest.FixtureRequest) -> Iterator[None]:
    """Prints the end of the server's log, which pytest shows if a test failed."""
    yield
    if "filled" in request.fixturenames:
        print(request.getfixturevalue("filled").server.text()[-5000:])
