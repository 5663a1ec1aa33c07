"""Checkouts of this repository, and the outputs of builds in them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.helpers.once import made_once
from tests.helpers.workspaces import REPOSITORY, SHORT_LIVED, Result, Workspace, packages_repository

LATER = tuple(
    f"--incompatible_{flag}"
    for flag in (
        "check_visibility_for_toolchains",
        "config_setting_private_default_visibility",
        "disable_native_repo_rules",
        "disable_starlark_host_transitions",
        "disable_target_provider_fields",
        "disallow_empty_glob",
        "disallow_struct_provider_syntax",
        "struct_has_no_methods",
        "top_level_aspects_require_providers",
        "use_plus_in_repo_names",
    )
)
"""What Bazel 8 and 9 switch on, as far as Bazel 7 knows it."""

MADE = REPOSITORY / ".cache/bazel"
"""The disk cache of `make build`."""


@pytest.fixture(scope="session")
def checkout(
    snapshot: Path, tmp_path_factory: pytest.TempPathFactory, output_root: Path, packages: Path
) -> Iterator[Workspace]:
    """One checkout for all tests that need only one. Tests undo their edits."""
    directory = shutil.copytree(snapshot, tmp_path_factory.mktemp("one") / "checkout", symlinks=True)
    workspace = Workspace(directory, output_root, packages)
    yield workspace
    workspace.stop()


@pytest.fixture(scope="session")
def other_checkout(
    snapshot: Path, tmp_path_factory: pytest.TempPathFactory, output_root: Path, packages: Path
) -> Iterator[Workspace]:
    """The same files at a path of another length."""
    directory = shutil.copytree(
        snapshot, tmp_path_factory.mktemp("two") / "elsewhere" / "second_checkout", symlinks=True
    )
    workspace = Workspace(directory, output_root, packages)
    yield workspace
    workspace.stop()


@pytest.fixture(scope="session")
def built(checkout: Workspace, disk_cache: Path) -> Result:
    """All examples, built now or taken from the results of `make build`. Neither uses the network."""
    return checkout.build("//examples/...", f"--disk_cache={disk_cache}")


@pytest.fixture(scope="session")
def disk_cache(shared_directory: Path) -> Path:
    """A disk cache with all examples if `make build` ran before, else an empty one.

    It is a copy, which is removed after this run, so that no later run finds an action that only a test ran.
    """

    def copy(directory: Path) -> None:
        if MADE.exists():
            shutil.copytree(MADE, directory, dirs_exist_ok=True)

    return made_once(shared_directory / "disk_cache", copy)


@pytest.fixture(scope="session")
def modern_bazel(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs Bazel 7 or later: `modern_bazel(workspace, binds, *arguments)`. `binds` are the directories that it reads
    besides the workspace: a command that runs Bazel in a root of its own must make them visible."""
    command = os.environ.get("BAZEL7")
    if not command:
        pytest.skip("BAZEL7 does not name a command that runs Bazel 7 as `$BAZEL7 WORKSPACE ARGUMENT...`")
    output_root = str(tmp_path_factory.mktemp("bazel7"))

    def run(workspace: Path, binds: Sequence[Path], *arguments: str) -> subprocess.CompletedProcess[str]:
        links = [(bind / "venv").resolve().parent for bind in binds if (bind / "venv").is_symlink()]
        links = [link for link in links if not any(link.is_relative_to(bind) for bind in binds)]
        bound = " ".join(map(str, (*binds, *links, workspace)))
        environment = {**os.environ, "BAZEL7_BIND": bound, "BAZEL7_OUTPUT_ROOT": output_root}
        full = [command, str(workspace), *SHORT_LIVED, *arguments]
        return subprocess.run(full, env=environment, capture_output=True, text=True, check=False)

    return run


@pytest.fixture(scope="session")
def bazel7(packages: Path, modern_bazel: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., Path]:
    """Builds with Bazel 7 or later: `bazel7(workspace, verb, target, *options)` returns its bazel-bin. What it made
    stays for the next command in the same workspace."""
    overrides: dict[tuple[Path, bool], str] = {}

    def run(workspace: Path, verb: str, target: str, *more: str) -> Path:
        bazel = partial(modern_bazel, workspace, [packages, workspace.parents[1]])
        later = LATER[-1] in more  # names repositories in another way
        if (workspace, later) not in overrides:
            name = packages_repository(lambda *words: bazel(*words, *(LATER[-1:] if later else ())))
            overrides[workspace, later] = f"--override_repository={name}={packages}"
        links = workspace / ".cache"  # Bazel 4 would look for packages behind links outside of it
        links.mkdir(exist_ok=True)
        prefix = f"--symlink_prefix={links.name}/bazel7-"
        options = (overrides[workspace, later], "--spawn_strategy=linux-sandbox", prefix)
        done = bazel(verb, *options, *more, target)
        assert done.returncode == 0, done.stdout + done.stderr
        return links / "bazel7-bin"

    return run
