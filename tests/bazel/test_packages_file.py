"""`packages`: the Python packages as one file that another machine built, here a small one."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.helpers.workspaces import Workspace, packages_repository

WORKSPACE = """\
workspace(name = "user")

local_repository(
    name = "rules_executorch",
    path = "{rules}",
)

load("@rules_executorch//rules:repositories.bzl", "executorch_repositories")

executorch_repositories({arguments})
"""
MODULE = """\
module(name = "user")

bazel_dep(name = "rules_executorch", version = "0.1.0")
bazel_dep(name = "library", version = "0.1.0")

local_path_override(
    module_name = "rules_executorch",
    path = "{rules}",
)

local_path_override(
    module_name = "library",
    path = "library",
)

executorch = use_extension("@rules_executorch//rules:extensions.bzl", "executorch")
executorch.toolchain({arguments})
use_repo(executorch, "rules_executorch_packages")
"""
LIBRARY = """\
module(name = "library", version = "0.1.0")

bazel_dep(name = "rules_executorch", version = "0.1.0")

executorch = use_extension("@rules_executorch//rules:extensions.bzl", "executorch")
executorch.toolchain({extras})
"""
FILE = "@rules_executorch_packages//:packages"

MAKE_THE_PACKAGES = ("packages_repository", "downloads", "package_facts", "platforms", "pythons", "watch")
"""The `.bzl` files of `rules/private` that the repository rule of the packages loads."""

Run = Callable[..., subprocess.CompletedProcess[str]]


def encoded(text: str) -> str:
    """The digest of a file, as a RECORD has it."""
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


class User:
    """A workspace that takes its packages from a file."""

    def __init__(self, directory: Path, rules: Path) -> None:
        self.directory, self.rules = directory, rules
        self.file = directory / "small.pex"
        facts = (rules / "rules/private/package_facts.bzl").read_text()
        needed = re.findall(r'"(.+)",', facts.partition("REQUIRED = [")[2].partition("]")[0])
        self.names = sorted(["tiny", *needed])
        with zipfile.ZipFile(self.file, "w") as archive:
            archive.writestr("packages.json", "{}")
            for name in self.names:
                info = f"{name.replace('-', '_')}-1.0.dist-info"
                files = {"tiny.py": "VALUE = 1\n"} if name == "tiny" else {}
                files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nTag: py3-none-any\n"
                rows = [f"{file},sha256={encoded(text)},{len(text)}\n" for file, text in files.items()]
                for file, text in {**files, f"{info}/RECORD": "".join(rows)}.items():
                    archive.writestr(file, text)
        self.sha256 = hashlib.sha256(self.file.read_bytes()).hexdigest()
        (directory / "BUILD").touch()
        self.cache = directory.with_name(f"{directory.name}-cache")
        (directory / ".bazelrc").write_text(f"common --repo_env=RULES_EXECUTORCH_CACHE={self.cache}\n")
        self.lock("")
        (directory / "more.lock").write_text("tiny==1.0 --hash=sha256:00\nsmaller==2.0 --hash=sha256:00\n")
        (directory / "python").symlink_to(Path(sys.base_prefix, "bin/python3").resolve())
        (directory / "library").mkdir()
        (directory / "library/BUILD").touch()
        self.write()

    def lock(self, remark: str, without: str = "") -> None:
        """Writes the user's own lock."""
        pins = "".join(f"{name}==1.0 --hash=sha256:00\n" for name in self.names if name != without)
        (self.directory / "own.lock").write_text(f"# {remark}\n{pins}")

    def write(self, more: str = "", extras: str = "", sha256: str = "") -> None:
        """Writes WORKSPACE and MODULE.bazel: with more arguments of the root, and with those of another module."""
        packages = {"url": self.file.as_uri(), "sha256": sha256 or self.sha256}
        arguments = f'packages = {packages}, requirements = "//:own.lock", {more}'.replace("'", '"')
        for name, text in (("WORKSPACE", WORKSPACE), ("MODULE.bazel", MODULE)):
            (self.directory / name).write_text(text.format(rules=self.rules, arguments=arguments))
        (self.directory / "library/MODULE.bazel").write_text(LIBRARY.format(extras=extras))


@pytest.fixture(scope="module")
def user(snapshot: Path, tmp_path_factory: pytest.TempPathFactory) -> User:
    return User(tmp_path_factory.mktemp("user"), snapshot)


@pytest.fixture(scope="module")
def bazel4(user: User, output_root: Path) -> Iterator[Run]:
    workspace = Workspace(user.directory, output_root, user.directory)
    yield workspace.bazel
    workspace.stop()


@pytest.fixture(scope="module")
def in_bazel7(user: User, modern_bazel: Run) -> Run:
    return partial(modern_bazel, user.directory, [user.rules])


def unpacked(bazel: Run) -> Path:
    """Builds the repository of the packages and returns its directory."""
    done = bazel("build", FILE)
    assert done.returncode == 0, done.stderr
    repository = Path(bazel("info", "output_base").stdout.strip()) / "external" / packages_repository(bazel)
    assert not repository.is_symlink(), "BAZEL overrides the packages, and these tests change what they find there"
    return repository


def holds_the_packages(user: User, repository: Path) -> None:
    assert not (repository / "packages.pex").exists(), "it is unpacked, and takes its room twice"
    python = repository / "venv/bin/python"
    done = subprocess.run([python, "-c", "import tiny; print(tiny.VALUE)"], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
    assert list((repository / "venv").resolve().rglob("tiny.cpython-3*.pyc"))
    knows_its_names(user, repository)


def knows_its_names(user: User, repository: Path) -> None:
    """So that a model which needs another package is refused before it is built."""
    assert json.loads((repository / "names.json").read_text()) == user.names
    assert f"names = {json.dumps(user.names)}," in (repository / "BUILD").read_text()


def test_the_packages_come_from_a_file(user: User, bazel4: Run) -> None:
    user.write()
    holds_the_packages(user, unpacked(bazel4))


def test_the_fetch_says_what_it_does(user: User, bazel4: Run, in_bazel7: Run) -> None:
    """Bazel's own line of progress is not in the log of CI."""
    user.write('python_interpreter_target = "//:python"')
    shutil.rmtree(user.cache, ignore_errors=True)
    for number, bazel in enumerate((bazel4, in_bazel7)):
        user.lock(str(number))  # with another lock it is fetched again
        said = bazel("build", "--curses=no", FILE).stderr
        lines = [line.removeprefix("rules_executorch: ") for line in said.splitlines() if "rules_executorch: " in line]
        shared = re.escape(str(user.cache))
        expected = [
            rf"unpacks the packages for Python {re.escape(HERE)} \(.*python3.*\) into {shared}/packages \.\.\.",
            rf"unpacked {2 * len(user.names) + 1} files, 0\.00 GB, \d+ s",
            r"compiles the packages to bytecode \.\.\.",
            r"compiled the packages, \d+ s",
        ]
        if number:  # another workspace has them
            expected = [rf"the packages are in {shared}/packages/\w+"]
        assert len(lines) == len(expected), said
        assert all(re.fullmatch(*pair) for pair in zip(expected, lines, strict=True)), said


@pytest.mark.parametrize("version", [4, 7])
def test_only_files_that_make_the_packages_fetch_them_again(
    snapshot: Path, tmp_path: Path, output_root: Path, request: pytest.FixtureRequest, version: int
) -> None:
    """An upgrade of the rules edits many files, and the real packages take minutes."""
    rules = shutil.copytree(snapshot, tmp_path / "rules", symlinks=True)
    (tmp_path / "user").mkdir()
    user = User(tmp_path / "user", rules)
    workspace = Workspace(user.directory, output_root, user.directory)
    modern = request.getfixturevalue("modern_bazel") if version == 7 else None
    bazel = partial(modern, user.directory, [rules]) if modern else workspace.bazel

    def fetches(*edited: Path) -> bool:
        for file in edited:
            file.write_text(file.read_text("utf-8") + "\n# An edit.\n", "utf-8")
        done = bazel("build", "--curses=no", FILE)
        assert done.returncode == 0, done.stderr
        return "rules_executorch: the packages are in " in done.stderr

    makes = [rules / f"rules/private/{name}.bzl" for name in MAKE_THE_PACKAGES]
    others = {*rules.glob("rules/**/*.bzl"), *rules.glob("toolchain/**/*.bzl")} - {*makes}
    fetches()
    assert not fetches(*others)
    assert fetches(makes[0])
    assert fetches(rules / "toolchain/build_packages.py")
    workspace.stop()


def change_python(stat: Path) -> None:
    """Makes it look as if the interpreter had another size and time, for a workspace that has the packages."""
    real = stat.resolve().parents[1]
    shutil.copytree(real, real.with_name("old"), symlinks=True, dirs_exist_ok=True)
    (old := real.with_name("old") / "venv/interpreter.stat").unlink()
    old.write_text("1 2\n")
    stat.parent.unlink()
    stat.parent.symlink_to(old.parent)


def test_the_python_of_actions_is_an_input_and_must_not_change(user: User, bazel4: Run) -> None:
    user.write()
    repository = unpacked(bazel4)
    python = repository / "venv/bin/python"
    version = subprocess.run([python, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    assert json.loads((repository / "python.json").read_text())["version"] == version
    command = ("run", "@rules_executorch//toolchain:etbuild", "--", "--version")
    assert bazel4(*command).returncode == 0
    runfiles = user.directory / "bazel-bin/external/rules_executorch/toolchain/etbuild.sh.runfiles"
    assert (runfiles / "rules_executorch_packages/python.json").is_file()
    change_python(repository / "venv/interpreter.stat")
    done = bazel4(*command)
    assert done.returncode == 1
    assert "The Python of rules_executorch has changed since its packages were built (" in done.stderr
    again = done.stderr.partition("Build them again: bazel ")[2].split()
    assert again == ["sync", "--only=rules_executorch_packages"]
    assert bazel4(*again).returncode == 0
    assert bazel4(*command).returncode == 0


def test_the_advice_after_a_change_of_python_names_the_toolchain(user: User, in_bazel7: Run) -> None:
    """The packages of a toolchain with a name, in a workspace with a MODULE.bazel file."""
    user.write('name = "next"')
    module = user.directory / "MODULE.bazel"
    module.write_text(module.read_text().replace('"rules_executorch_packages"', '"rules_executorch_toolchains"'))
    command = ("run", "@rules_executorch_toolchains//:etbuild_next", "--", "--version")
    done = in_bazel7(*command)
    assert done.returncode == 0, done.stderr
    external = Path(in_bazel7("info", "output_base").stdout.strip()) / "external"
    [stat] = external.glob("*rules_executorch_packages_next/venv/interpreter.stat")
    change_python(stat)
    done = in_bazel7(*command)
    assert done.returncode == 1
    again = done.stderr.partition("Build them again: bazel ")[2].split()
    assert again == ["fetch", "--force", f"--repo=@@{stat.parents[1].name}"]
    assert in_bazel7(*again).returncode == 0
    assert in_bazel7(*command).returncode == 0


def test_a_lock_without_what_the_driver_needs_is_refused(user: User, bazel4: Run) -> None:
    user.write()
    user.lock("", without="rich")
    said = bazel4("build", FILE).stderr
    user.lock("")
    assert "`requirements` lacks packages that the driver needs: rich. `dependencies` in pyproject.toml" in said


@pytest.mark.parametrize(
    ("more", "sha256", "message"),
    [
        pytest.param("", "0" * 64, "Checksum was", id="another file"),
        pytest.param("", "0" * 63, "has to have 64 hexadecimal digits", id="no digest"),
        pytest.param(
            'extras = ["sbom"]', "", "`requirements` lacks packages of the extra `sbom`: boolean-py", id="extra"
        ),
        pytest.param(
            'extra_requirements = ["//:more.lock"]',
            "",
            "the file of `packages` has no smaller, and the lock has smaller 2.0",
            id="packages of the user's own",
        ),
        pytest.param('pip_args = ["-v"]', "", "`pip_args` does nothing with `packages`", id="arguments of pip"),
        pytest.param('torch = "cpu"', "", "`torch` does nothing with `packages`", id="build of torch"),
    ],
)
def test_what_does_not_fit_together_is_refused(user: User, bazel4: Run, more: str, sha256: str, message: str) -> None:
    user.write(more, sha256=sha256)
    done = bazel4("build", FILE)
    assert done.returncode != 0
    assert message in done.stderr


HERE = f"3.{sys.version_info[1]}"
OTHER = "3.12" if HERE == "3.11" else "3.11"


def test_the_interpreter_is_a_label(user: User, bazel4: Run) -> None:
    """`python` is a link, as in the repositories of rules_python."""
    label = 'python_interpreter_target = "//:python"'
    user.write(f'{label}, python_version = "{HERE}"')
    repository = unpacked(bazel4)
    assert (repository / "venv/bin/python").resolve() == (user.directory / "python").resolve()
    holds_the_packages(user, repository)
    for more, message in (
        (f'{label}, python_version = "{OTHER}"', f"/python is Python {HERE}, and `python_version` is {OTHER}."),
        (f'{label}, python_interpreter = "python3"', "`python_interpreter` and `python_interpreter_target` both name"),
        ('python_version = "3.9"', "`python_version` is `3.9`. Supported: 3.13, "),
        ('python_interpreter = "python3.0"', "`python_interpreter`: there is no python3.0 on the PATH."),
    ):
        user.write(more)
        assert message in bazel4("build", FILE).stderr


def test_an_interpreter_can_be_installed_after_the_error(
    user: User, bazel4: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The PATH stays as it is. So Bazel keeps what it knows about the interpreters on it."""
    for version in ("3.13", "3.12", "3.11"):
        (tmp_path / f"python{version}").write_text("#!/bin/sh\necho it is broken >&2; exit 1\n")
        (tmp_path / f"python{version}").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    user.write()
    assert f"python{HERE}: it is broken. Install it" in bazel4("build", FILE).stderr
    (tmp_path / f"python{HERE}").unlink()
    (tmp_path / f"python{HERE}").symlink_to(Path(sys.base_prefix, f"bin/python{HERE}"))
    holds_the_packages(user, unpacked(bazel4))


def test_packages_for_other_machines_are_checked_and_not_unpacked(user: User, bazel4: Run) -> None:
    other = "osx_aarch64"
    user.write(f'platform = "{other}"')
    repository = unpacked(bazel4)
    assert (repository / "packages.pex").read_bytes() == user.file.read_bytes()
    assert not (repository / "venv").exists()
    knows_its_names(user, repository)
    user.write('platform = "osx_arm"')
    assert (
        "There is no platform `osx_arm`. Known: linux_aarch64, linux_x86_64, osx_aarch64"
        in bazel4("build", FILE).stderr
    )
    user.write(f'platform = "{other}"')
    text = (user.directory / "WORKSPACE").read_text()
    (user.directory / "WORKSPACE").write_text(re.sub(r"packages = \{.*?\}, ", "", text))
    said = bazel4("build", FILE).stderr
    assert (
        f"cannot install packages for {other}: build packages.pex on such a machine, and name it with `packages`"
        in said
    )


def test_a_file_without_its_digest_is_refused(user: User, bazel4: Run) -> None:
    user.write()
    text = (user.directory / "WORKSPACE").read_text()
    (user.directory / "WORKSPACE").write_text(text.replace(f', "sha256": "{user.sha256}"', ""))
    assert "`packages` has to have `url` and `sha256`, and nothing else. It has `url`." in bazel4("build", FILE).stderr


def test_bazel_7_takes_the_file_and_the_extras_of_other_modules(user: User, in_bazel7: Run) -> None:
    user.write()
    holds_the_packages(user, unpacked(in_bazel7))
    user.write(extras='extras = ["sbom"]')
    assert "`requirements` lacks packages of the extra `sbom`: boolean-py" in in_bazel7("build", FILE).stderr
    user.write('extra_requirements = ["//:more.lock"]')
    assert "has no smaller, and the lock has smaller 2.0" in in_bazel7("build", FILE).stderr
    user.write(extras='extras = ["sbomb"]')
    assert "There is no extra `sbomb`." in (said := in_bazel7("build", FILE).stderr)
    assert "The module `library` asks for it." in said
    user.write('extras = ["sbomb"]')
    assert "There is no extra `sbomb`." in (said := in_bazel7("build", FILE).stderr)
    assert "asks for it" not in said
    user.write('python_version = "3.12.1"')
    assert "`python_version` is `3.12.1`. Supported: 3.13, " in in_bazel7("build", FILE).stderr
