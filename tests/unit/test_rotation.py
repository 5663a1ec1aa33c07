"""Which of the slow tests a commit runs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.helpers.rotation import about, changed_paths, not_drawn

pytest_plugins = ["pytester"]

FILE = """\
import pytest

MODELS = [f"net {letter}" for letter in "abcdefghijkl"]

@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_built(name): ...

@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_run(name): ...

@pytest.mark.long("net a")
def test_of_a_net(): ...

@pytest.mark.parametrize("page", ["a.md", "b.md", "c.md", "d.md"])
def test_page(page): ...

@pytest.mark.always
def test_golden(): ...
"""
UNIT = """\
def test_unit(): ...
"""
COMMITS = [f"{number:x}" for number in range(90)]


@pytest.fixture
def items(pytester: pytest.Pytester) -> list[pytest.Item]:
    pytester.makeini("[pytest]\nmarkers =\n  always\n  long")
    pytester.makepyfile(**{"tests/integration/test_nets": FILE, "tests/unit/test_units": UNIT})
    collected, _ = pytester.inline_genitems()
    return collected


def drawn(items: list[pytest.Item], commit: str, *about: str) -> list[str]:
    left = not_drawn(items, commit, about)
    return [item.name for item in items if item not in left]


def test_a_commit_draws_cases_with_the_same_parameters_together(items: list[pytest.Item]) -> None:
    for commit in COMMITS:
        names = drawn(items, commit)
        built, run = ([name[-6:] for name in names if name.startswith(f"test_{test}")] for test in ("built", "run"))
        assert len(built) in (0, 1)  # of 12, one in 16
        assert built == run
        assert ("test_of_a_net" in names) == ("net a]" in built)
        assert len([name for name in names if name.startswith("test_page")]) in (0, 1)  # of 4, one in 8
        assert names[-2:] == ["test_golden", "test_unit"]


def test_the_same_commit_draws_the_same_and_every_case_has_its_turn(items: list[pytest.Item]) -> None:
    assert drawn(items, "a") == drawn(items[::-1], "a")[::-1]
    assert {name for commit in COMMITS for name in drawn(items, commit)} == {item.name for item in items}


def test_what_is_about_the_change_runs(items: list[pytest.Item]) -> None:
    assert drawn(items, "a", items[0].nodeid.partition("::")[0]) == [item.name for item in items]
    assert all("test_page[b.md]" in drawn(items, commit, "b.md") for commit in COMMITS)


TESTS = {
    "tests/integration/test_exports.py": "from etbuild.export import archive\n",
    "tests/integration/test_nets.py": "from .nets import NET\nfrom tests import helpers\n",
    "tests/integration/test_own.py": "import torch\n",
    **{f"tests/integration/test_{number}.py": "from etbuild.cli.main import main\n" for number in range(10, 23)},
}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (["toolchain/etbuild/export/shapes.py"], {"test_exports.py"}),  # another module of the package
        (["toolchain/etbuild/cli/main.py", "tests/integration/nets.py"], {"test_nets.py"}),  # all import the first
        (["tests/integration/test_own.py", "tests/integration/test_removed.py"], {"test_own.py"}),
        (
            [f"tests/integration/test_{number}.py" for number in range(10, 23)],
            set(),
        ),
        (["docs/a.md"], set()),
    ],
)
def test_what_imports_a_changed_package_is_about_the_change(
    tmp_path: Path, changed: list[str], expected: set[str]
) -> None:
    for name, text in TESTS.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = about(tmp_path, changed)
    assert {Path(name).name for name in found if (tmp_path / name).exists()} == expected
    assert found - TESTS.keys() == {*changed} - TESTS.keys()


def test_what_is_not_committed_has_changed_too(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=A", "-c", "user.email=a@b.c"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    for name in ("same", "edited", "removed"):
        (tmp_path / name).write_text(name)
    git("add", ".")
    git("commit", "--message", "first")
    (tmp_path / "edited").write_text("more")
    (tmp_path / "removed").unlink()
    (tmp_path / "new").write_text("new")
    assert sorted(changed_paths(tmp_path, "HEAD")) == ["edited", "new", "removed"]
