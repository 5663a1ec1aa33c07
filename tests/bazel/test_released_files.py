"""The files of a release, used as a stranger would: the wheel, and the archive as an external repository."""

from __future__ import annotations

import hashlib
import html.parser
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from etbuild.version import VERSION
from tests.helpers.workspaces import REPOSITORY, Workspace
from tools import release

SITE = REPOSITORY / "site" / VERSION
README = (REPOSITORY / "README.md").read_text("utf-8")
# The stubs stand for what Bazel 4 would download for its built-in packages.
STUBS = ("remote_coverage_tools", "rules_cc", "rules_java")
WORKSPACE = """\
load("@bazel_tools//tools/build_defs/repo:http.bzl", "http_archive")

http_archive(
    name = "rules_executorch",
    sha256 = "{sha256}",
    strip_prefix = "{strip_prefix}",
    urls = ["{url}"],
)

load("@rules_executorch//rules:repositories.bzl", "executorch_repositories")

executorch_repositories()
"""
STUB = """
local_repository(
    name = "{name}",
    path = "{path}",
)
"""
MODULE = """\
bazel_dep(name = "rules_executorch", version = "{version}")
archive_override(
    module_name = "rules_executorch",
    integrity = "{integrity}",
    strip_prefix = "{strip_prefix}",
    urls = ["{url}"],
)
"""


class Released(NamedTuple):
    """The files of a release.

    Attributes:
        files: Their directory.
        source: What the registry says of the archive of the sources, with a URL of the file on this machine.
    """

    files: Path
    source: dict[str, str]


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Released:
    directory = tmp_path_factory.mktemp("released")
    files = directory / "dist"
    release.write(VERSION, "owner/rules", files, SITE if SITE.is_dir() else None)
    source = json.loads((files / "bcr" / VERSION / "source.json").read_text("utf-8"))
    archive = files / PurePosixPath(source["url"]).name
    return Released(
        files, {**source, "url": archive.as_uri(), "sha256": hashlib.sha256(archive.read_bytes()).hexdigest()}
    )


@pytest.fixture(scope="module")
def workspace(released: Released, output_root: Path, packages: Path) -> Iterator[Workspace]:
    """A workspace with the README's program, and with the archive as its only repository of rules."""
    directory = released.files.parent / "users/workspace"
    workspace = Workspace(directory, output_root, packages)
    stubs = [STUB.format(name=name, path=REPOSITORY / "tests/bazel/stubs" / name) for name in STUBS]
    workspace.write("WORKSPACE", WORKSPACE.format(**released.source) + "".join(stubs))
    workspace.write("MODULE.bazel", MODULE.format(version=VERSION, **released.source))
    for name in ("BUILD", "model.py", "net.yaml"):
        workspace.write(name, (REPOSITORY / "e2e/smoke" / name).read_text("utf-8"))
    yield workspace
    workspace.stop()


def is_the_program_of_the_readme(program: Path) -> bool:
    [printed] = re.findall(r"out/net\.pte +5\.4 kB +(\w+)", README)
    return hashlib.sha256(program.read_bytes()).hexdigest().startswith(printed)


def test_the_archive_in_a_workspace_file(workspace: Workspace) -> None:
    workspace.build("//:net")
    assert is_the_program_of_the_readme(workspace.output("net.pte"))


def test_the_archive_as_a_module(workspace: Workspace, bazel7: Callable[..., Path]) -> None:
    assert is_the_program_of_the_readme(bazel7(workspace.directory, "build", "//:net") / "net.pte")


def test_the_wheel(released: Released, workspace: Workspace, tmp_path: Path) -> None:
    [wheel] = released.files.glob("pypi/*.whl")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(tmp_path)]
    subprocess.run([*pip, str(wheel)], check=True)
    command = [sys.executable, "-m", "etbuild", "build", "net.yaml", "-o", str(tmp_path / "out"), "--no-cache"]
    done = subprocess.run(
        command,
        cwd=workspace.directory,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert is_the_program_of_the_readme(tmp_path / "out/net.pte")


class Loaded(html.parser.HTMLParser):
    """The files that a browser loads for a page, without what a reader may click on.

    Attributes:
        urls: Their addresses, as the page has them.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.urls: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        loads = tag in ("img", "script", "source", "iframe") or "stylesheet" in (named.get("rel") or "")
        if loads and (url := named.get("src") or named.get("href")):
            self.urls.add(url)


@pytest.mark.skipif(not SITE.is_dir(), reason="`make docs` has not built the website")
def test_the_site_loads_nothing_from_elsewhere(released: Released, tmp_path: Path) -> None:
    [packed] = released.files.glob("*-docs.tar.gz")
    with tarfile.open(packed) as archive:
        archive.extractall(tmp_path, filter="data")
    # A server shows the page about missing pages, for addresses in any folder.
    pages = [path for path in tmp_path.rglob("*.html") if path.name != "404.html"]
    assert len(pages) > 30
    missing = {
        (page.relative_to(tmp_path).as_posix(), url)
        for page in pages
        for url in Loaded(page.read_text("utf-8")).urls
        # The list of versions is there when several are in one folder.
        if urlsplit(url).scheme != "data"
        and not (url.endswith("versions.js") or (page.parent / urlsplit(url).path).is_file())
    }
    assert missing == set()
