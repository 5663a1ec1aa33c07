"""The repository rule of examples/fetch gives programs of a package to a workspace that has nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import EXAMPLES
from tests.helpers.builds import write_build
from tests.helpers.commands import etbuild
from tests.helpers.snippets import snippets
from tests.helpers.workspaces import BAZEL
from tests.registry.servers import Registry

PLACE = "registry.example.com/models/apps@sha256:DIGEST"  # in README.md


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A package with `classifier`, which has named data, and another program."""
    directory = tmp_path_factory.mktemp("fetched")
    registry = Registry(directory / "registry")
    registry.start()
    for name in ("classifier", "other"):
        write_build(directory, name, pte=name.encode() * 100, ptd=b"weights")
    assert etbuild("package", *directory.glob("*.index.json"), "-o", directory / "models.oci").returncode == 0
    pushed = etbuild("push", directory / "models.oci", f"{registry.address}/models/apps:v1", "--json")
    yield f"{registry.address}/models/apps@{json.loads(pushed.stdout)['digest']}"
    registry.kill()


@pytest.fixture
def build(tmp_path: Path, output_root: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Builds the programs of a package, in a workspace of the files that examples/fetch/README.md shows."""

    def run(package: str) -> subprocess.CompletedProcess[str]:
        page = [each for each in snippets() if each.page == "examples/fetch/README.md"]
        [text] = [each.text for each in page if each.verdict == "run by"]
        assert PLACE in text
        (tmp_path / "WORKSPACE").write_text(text.replace(PLACE, package) + "\n")
        (tmp_path / "BUILD").write_text("")
        (tmp_path / "programs.bzl").write_text((EXAMPLES / "fetch/programs.bzl").read_text())
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin/etbuild").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m etbuild "$@"\n')
        (tmp_path / "bin/etbuild").chmod(0o755)
        command = [*BAZEL, "--batch", f"--output_user_root={output_root}", "build", "@programs//:classifier"]
        environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    return run


def test_bazel_fetches_the_files_of_a_program(
    build: Callable[[str], subprocess.CompletedProcess[str]], reference: str, tmp_path: Path
) -> None:
    done = build(reference)
    assert done.returncode == 0, done.stderr
    files = {each.name: each for each in (tmp_path / f"bazel-{tmp_path.name}/external/programs").iterdir()}
    assert files["classifier.pte"].read_bytes() == b"classifier" * 100
    assert [each for each in files if each.endswith(".ptd")]
    assert not [each for each in files if each.startswith("other")]


def test_bazel_refuses_a_tag_and_says_what_etbuild_says(
    build: Callable[[str], subprocess.CompletedProcess[str]], reference: str
) -> None:
    done = build(reference.partition("@")[0] + ":v1")
    assert done.returncode != 0
    assert "name the package by its digest" in done.stderr
    done = build(reference[:-64] + "0" * 64)
    assert done.returncode != 0
    assert f"etbuild pull {reference[:-64]}" in done.stderr
    assert "error: " in done.stderr
