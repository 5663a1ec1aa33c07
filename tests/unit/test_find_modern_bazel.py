"""tools/find_modern_bazel.sh finds Bazel 7 or later, and tools/find_bazel.sh the one to build with. Scripts replace the
real Bazels."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"
CURRENT = (TOOLS.parent / ".bazeliskrc").read_text().split("USE_BAZEL_VERSION=")[1].strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Makes a checkout with the tools. The PATH has a bazelisk that fails, and a Bazel that is too old."""
    shutil.copytree(TOOLS, tmp_path / "folder/checkout/tools")
    shutil.copy(TOOLS.parent / ".bazeliskrc", tmp_path / "folder/checkout")
    script(tmp_path / "bin/bazelisk", "exit 1")
    return tmp_path / "folder/checkout"


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def find(checkout: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("BAZEL", "USE_BAZEL"))}
    path = f"{checkout.parents[1] / 'bin'}:/usr/bin:/bin"
    return subprocess.run(
        [checkout / "tools" / (command or ("find_modern_bazel.sh",))[0], *command[1:]],
        env={**inherited, "PATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_variable_comes_first(checkout: Path) -> None:
    script(checkout.parents[1] / "bin/bazel7", "")
    assert find(checkout, BAZEL7="/some/bazel").stdout == "/some/bazel\n"


def test_a_command_bazel7_comes_second(checkout: Path) -> None:
    bazel7 = script(checkout.parents[1] / "bin/bazel7", "")
    script(checkout.parents[1] / "bin/bazelisk", "echo bazel 7.7.1")
    assert find(checkout).stdout == f"{bazel7}\n"


@pytest.mark.parametrize("version", ["7.7.1", "10.0.0-pre.1"])
def test_bazelisk_runs_in_the_workspace(checkout: Path, version: str) -> None:
    says = f'[ "$1" = --version ] && echo "bazel {version}" || echo "$PWD $USE_BAZEL_VERSION $*"'
    script(checkout.parents[1] / "bin/bazelisk", says)
    done = find(checkout)
    assert done.stdout == f"{checkout}/tools/modern_bazel.sh\n"
    environment = {"PATH": f"{checkout.parents[1] / 'bin'}:/usr/bin:/bin", "BAZEL7_OUTPUT_ROOT": "/out"}
    command = [done.stdout.strip(), str(checkout), "build", "//a b"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert run.stdout == f"{checkout} {CURRENT} --batch --output_user_root=/out build //a b\n"


@pytest.mark.parametrize("says", ["bazel 6.5.0", "bazel no_version"])
def test_an_old_bazel_is_not_used(checkout: Path, says: str) -> None:
    script(checkout.parents[1] / "bin/bazelisk", f"echo {says}")
    done = find(checkout)
    assert (done.returncode, done.stdout) == (1, "")
    assert "the tests of MODULE.bazel are skipped" in done.stderr


def test_a_file_near_the_checkout_is_set_up_first(checkout: Path) -> None:
    bazel7 = script(checkout.parent / "other/bazel/bazel7", "")
    script(bazel7.with_name("setup"), f"touch {checkout}/ready; echo ready")
    done = find(checkout)
    assert done.stdout == f"{bazel7}\n"
    assert (checkout / "ready").exists()


def test_a_file_that_cannot_be_set_up_is_not_used(checkout: Path) -> None:
    bazel7 = script(checkout.parent / "bazel7", "")
    script(bazel7.with_name("setup"), "exit 1")
    assert find(checkout).returncode == 1


def test_a_file_farther_away_is_not_used(checkout: Path) -> None:
    script(checkout.parents[1] / "bazel7", "")
    script(checkout.parent / "a/b/c/bazel7", "")
    assert find(checkout).returncode == 1


def test_bazelisk_builds_with_a_current_version(checkout: Path) -> None:
    """Debian's bazel reads .bazelversion as well, and refuses each version but its own. So there is no such file."""
    assert find(checkout, "find_bazel.sh").stdout == f"env USE_BAZEL_VERSION={CURRENT} bazelisk\n"
    assert find(checkout, "find_bazel.sh", USE_BAZEL_VERSION="9.x").stdout == "env USE_BAZEL_VERSION=9.x bazelisk\n"
    of_tests = find(checkout, "find_bazel.sh", "--workspace").stdout
    assert of_tests == "env USE_BAZEL_VERSION=4.2.3 bazelisk\n"
    assert int(CURRENT.split(".")[0]) >= 7
    assert not (TOOLS.parent / ".bazelversion").exists()


def test_an_installed_bazel_builds_if_there_is_no_bazelisk(checkout: Path) -> None:
    (checkout.parents[1] / "bin/bazelisk").unlink()
    bazel = script(checkout.parents[1] / "bin/bazel", "")
    assert find(checkout, "find_bazel.sh").stdout == f"{bazel}\n"
