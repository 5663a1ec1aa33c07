"""executorch_package makes the bytes of `etbuild package`, and executorch_push pushes them to a real registry."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from etbuild.cli import main
from tests.helpers.workspaces import Workspace
from tests.registry.servers import Registry

PUSHED = """\
load("//rules:defs.bzl", "executorch_push")

genrule(
    name = "tags",
    outs = ["tags.txt"],
    cmd = "echo v1 > $@; echo of-{STABLE_GIT_COMMIT} >> $@",
)

executorch_push(
    name = "push",
    package = "//examples/shared_weights:package",
    remote_tags_file = ":tags",
    repository = "localhost:5000/examples/shared_weights",
    stamp = -1,
)
"""
LABEL = "//examples/shared_weights"
PLACE = "examples/shared_weights"


def files(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def packaged(checkout: Workspace, disk_cache: Path) -> Workspace:
    """The package and its tar file."""
    groups = "--output_groups=+layout,+tar"
    checkout.build(f"{LABEL}:package", f"{LABEL}:all", groups, f"--disk_cache={disk_cache}")
    return checkout


def test_the_command_line_makes_the_same_package(packaged: Workspace, tmp_path: Path) -> None:
    indexes = [str(packaged.output(f"{PLACE}/{name}.index.json")) for name in ("embedder", "classifier")]
    assert main.main(["package", *indexes, "-o", str(tmp_path / "layout"), "--tar", str(tmp_path / "tar")]) == 0
    assert files(tmp_path / "layout") == files(packaged.output(f"{PLACE}/package.oci"))
    assert (tmp_path / "tar").read_bytes() == packaged.output(f"{PLACE}/package.tar").read_bytes()


def test_another_checkout_makes_the_same_package(
    packaged: Workspace, other_checkout: Workspace, disk_cache: Path
) -> None:
    """The programs come from the disk cache. The packages do not: their action may not be cached here."""
    no_cache = "--modify_execution_info=ExecutorchPackage=+no-cache"
    other_checkout.build(f"{LABEL}:package", no_cache, f"--disk_cache={disk_cache}")
    ours, others = (files(each.output(f"{PLACE}/package.oci")) for each in (packaged, other_checkout))
    assert ours == others


def test_a_push_fills_a_registry(packaged: Workspace, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With tags of the target, of the command and of a file. The second target follows `--stamp`."""
    server = Registry(tmp_path / "registry")
    server.start()
    status = tmp_path / "status.sh"
    status.write_text("#!/bin/sh\necho STABLE_GIT_COMMIT 12ab\n")
    status.chmod(0o755)
    try:
        options = [f"--registry={server.address}", "--tag=at-{STABLE_GIT_COMMIT}"]
        result = packaged.run("run", f"--workspace_status_command={status}", f"{LABEL}:push", "--", *options)
        reference = f"{server.address}/examples/shared_weights"
        assert f"{reference}:latest\n" in result.out
        assert f"{reference}:at-12ab\n" in result.out
        packaged.write("pushed/BUILD", PUSHED)
        stamp = f"--workspace_status_command={status}"
        command = ["--nocheck_visibility", stamp, "//pushed:push", "--", f"--registry={server.address}"]
        assert "there is no stamp value `STABLE_GIT_COMMIT`" in packaged.run("run", *command, expect=2).err
        result = packaged.run("run", "--stamp", *command)
        assert f"{reference}:v1\n" in result.out
        assert f"{reference}:of-12ab\n" in result.out
        assert main.main(["pull", f"{reference}:at-12ab", "-o", str(tmp_path / "out")]) == 0
        capsys.readouterr()
        for name in ("embedder", "classifier"):
            pulled = (tmp_path / f"out/{name}.index.json").read_bytes()
            assert pulled == packaged.output(f"{PLACE}/{name}.index.json").read_bytes()
    finally:
        server.kill()
        shutil.rmtree(packaged.directory / "pushed", ignore_errors=True)


def test_no_name_is_a_command_of_the_shell(checkout: Workspace) -> None:
    name = "$(id)`'.oci"  # Bazel 4 allows no space
    checkout.write(f"pushed/{name}", "")
    load = 'load("@rules_executorch//rules:defs.bzl", "executorch_push")'
    checkout.write(
        "pushed/BUILD", f'{load}\nexecutorch_push(name = "push", package = "{name}", repository = "a.b/c")\n'
    )
    try:
        assert f"/pushed/{name}: " in checkout.run("run", "//pushed:push", expect=2).err
    finally:
        shutil.rmtree(checkout.directory / "pushed")


def test_the_query_of_affected_finds_the_programs(
    checkout: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def git(*arguments: str) -> None:
        name = ["-c", "user.name=tests", "-c", "user.email=tests@example.com"]
        subprocess.run(["git", *name, *arguments], cwd=checkout.directory, check=True, capture_output=True)

    monkeypatch.chdir(checkout.directory)
    git("init")
    git("add", "--all")
    git("commit", "--message", "first")
    source = checkout.directory / "examples/shared_weights/classifier.py"
    before = source.read_text()
    try:
        source.write_text(before + "# edited\n")
        checkout.write("examples/nobody.txt", "no target names it")
        assert main.main(["affected", "--since", "HEAD", "--bazel"]) == 0
        done = checkout.bazel("query", checkout.override, "--keep_going", capsys.readouterr().out)
        assert done.stdout.split() == ["//examples/shared_weights:classifier"], done.stderr
    finally:
        source.write_text(before)
        (checkout.directory / "examples/nobody.txt").unlink()
        shutil.rmtree(checkout.directory / ".git")
