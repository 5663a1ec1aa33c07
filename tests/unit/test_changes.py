"""`pytest --changed-since`: the tests of what changed, in a Git repository, and the table of what covers what."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from pathlib import Path

import pytest

from etbuild.key import code
from tests.helpers import changes
from tests.helpers.changes import Selection, changed_paths, describe, select
from tests.helpers.coverage_map import ALL, ALWAYS_WHOLE, COVERED_BY, EVERYTHING, Row

REPOSITORY = Path(__file__).parents[2]
FIND_BASE = REPOSITORY / "tools/find_base.sh"
FILES = {
    "a new folder/file": "",
    "tests/buck2/test_rules.py": "",
    "tests/faults/test_others.py": "",
    "tests/conftest.py": "",
    "tests/helpers/__init__.py": "",
    "tests/helpers/inner.py": "",
    "tests/helpers/outer.py": "from tests.helpers import inner",
    "tests/integration/conftest.py": "",
    "tests/integration/data.txt": "",
    "tests/integration/test_cpp.py": "from tests.helpers.outer import something",
    "tests/integration/test_init.py": "def test():\n    from .project import MODEL",
    "tests/integration/project.py": "",
    "tests/integration/script.py": "",
    "tests/helpers/script.py": "",
    "tests/registry/test_registry.py": "import tests.helpers.inner",
    "tests/unit/test_cli.py": "",
}
UNIT = {"tests/unit/test_cli.py"}
CPP, INIT = "tests/integration/test_cpp.py", "tests/integration/test_init.py"
REGISTRY = "tests/registry/test_registry.py"
OTHERS = {CPP, INIT, REGISTRY, "tests/buck2/test_rules.py", "tests/faults/test_others.py"}


def git(repository: Path, *arguments: str, **variables: str) -> str:
    environment = {**os.environ, **variables, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    identity = ("-c", "user.name=Nobody", "-c", "user.email=nobody@example.org")
    command = ["git", *identity, *arguments]
    return subprocess.run(
        command, cwd=repository, env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()


_numbers = itertools.count()


def commit(repository: Path, hours: int = 0) -> str:
    """Commits what is there, some hours after the first of January."""
    git(repository, "add", "--all")
    date = f"{1_767_225_600 + 3600 * hours} +0000"
    message = f"change {next(_numbers)}"
    git(repository, "commit", "--quiet", "--allow-empty", "--message", message, GIT_COMMITTER_DATE=date)
    return git(repository, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    git(root, "init", "--quiet", "--initial-branch=main")
    commit(root)
    return root


def test_what_changed_is_committed_or_not_added_or_removed(repository: Path) -> None:
    base = git(repository, "rev-parse", "HEAD")
    assert changed_paths(repository, base) == []
    (repository / "committed").write_text("")
    (repository / "tests/helpers/inner.py").rename(repository / "tests/helpers/moved.py")
    commit(repository)
    (repository / CPP).write_text("# edited")
    (repository / "a new file").write_text("")
    assert changed_paths(repository, base) == [
        "a new file",
        "committed",
        "tests/helpers/inner.py",
        "tests/helpers/moved.py",
        CPP,
    ]


def test_a_commit_that_is_not_there_is_an_error(repository: Path) -> None:
    with pytest.raises(changes.UnknownCommit, match="nowhere"):
        changed_paths(repository, "nowhere")


@pytest.mark.parametrize(
    ("changed", "whole", "sampled"),
    [
        ([], set(), set()),
        (["docs/speed.md"], set(), set()),
        (["toolchain/etkit/native/cpp/embed.py"], {CPP}, set()),
        (
            ["toolchain/etkit/authoring/first_manifest/folder.py", "toolchain/etkit/registry/oci/layout.py"],
            {INIT, REGISTRY},
            set(),
        ),
        (["toolchain/etbuild/lower/passes.py"], set(), OTHERS),
        (["toolchain/etbuild/lower/passes.py", "toolchain/etkit/native/cpp/embed.py"], {CPP}, OTHERS - {CPP}),
        (["pyproject.toml"], set(), OTHERS),
        (["toolchain/requirements-gguf.lock"], OTHERS, set()),
        (["a new folder/file"], OTHERS, set()),
        (["a folder that was removed/file"], set(), set()),
        ([INIT], {INIT}, set()),
        (["tests/integration/test_that_was_removed.py"], set(), set()),
        (["tests/integration/project.py"], {INIT}, set()),
        (["tests/integration/data.txt"], {CPP, INIT}, set()),
        (["tests/integration/conftest.py"], {CPP, INIT}, set()),
        (["tests/helpers/outer.py"], {CPP}, set()),
        (["tests/helpers/inner.py"], {CPP, REGISTRY}, set()),
        (["tests/integration/script.py"], {CPP, INIT}, set()),
        (["tests/helpers/script.py"], OTHERS, set()),
        (["tests/conftest.py"], OTHERS, set()),
        (["tests/helpers/coverage_map.py"], set(), set()),
        (None, set(), OTHERS),
    ],
)
def test_the_tests_of_a_change(changed: list[str] | None, whole: set[str], sampled: set[str], repository: Path) -> None:
    selection = select(repository, changed)
    assert selection.whole == frozenset(whole | UNIT)
    assert selection.sampled == frozenset(sampled)


def test_a_run_says_what_it_leaves_out(repository: Path) -> None:
    assert describe(select(repository, [CPP, "toolchain/etkit/registry/oci/layout.py"]), "0123456789abcdef") == (
        "changed since 0123456789ab: 1 test files run whole, and as many cases as --seconds allows: "
        "first those of 2 files about the change, then a sample of 0 others"
    )
    unknown = describe(select(repository, ["a new folder/file"]), "1").splitlines()
    assert unknown[1:] == [
        "tests/helpers/coverage_map.py does not know what covers a new folder/file, which may be everything"
    ]
    assert describe(select(repository, None), None).endswith("of 0 files about the change, then a sample of 5 others")


def test_workers_get_what_the_controller_selected(repository: Path) -> None:
    selection = Selection(frozenset({CPP, INIT}), frozenset({REGISTRY}), ("a new file",))
    assert changes.from_controller(changes.to_worker(selection)) == selection


def base(repository: Path) -> str:
    return subprocess.run([FIND_BASE], cwd=repository, capture_output=True, text=True, check=True).stdout.strip()


def test_a_branch_is_compared_with_where_it_left_main(repository: Path) -> None:
    left = git(repository, "rev-parse", "HEAD")
    git(repository, "checkout", "--quiet", "-b", "branch")
    commit(repository)
    commit(repository)
    assert base(repository) == left
    git(repository, "checkout", "--quiet", "main")
    onward = commit(repository)
    git(repository, "checkout", "--quiet", "branch")
    assert base(repository) == left
    assert onward != left


def test_on_main_all_that_landed_within_a_day_is_tested(repository: Path) -> None:
    first = git(repository, "rev-parse", "HEAD")
    commit(repository, 1)
    assert base(repository) == first
    before = commit(repository, 10)
    commit(repository, 20)
    commit(repository, 34)
    assert base(repository) == before


def test_what_is_not_on_the_remote_yet_is_compared_with_it(repository: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "--quiet", str(repository), "clone")
    clone, published = tmp_path / "clone", git(repository, "rev-parse", "HEAD")
    commit(clone)
    commit(clone)
    assert base(clone) == published


def test_without_history_there_is_nothing_to_compare_with(repository: Path, tmp_path: Path) -> None:
    assert base(repository) == ""  # the first commit
    commit(repository)
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{repository}", "shallow")
    assert base(tmp_path / "shallow") == ""


def test_each_package_and_each_folder_has_a_row() -> None:
    """So that a new one is not forgotten. Until it has a row, a change of it counts as a change of everything."""
    paths = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    files = [path for path in paths.stdout.split("\0") if path and not re.fullmatch(r"tests/.*\.py", path)]
    assert [path for path in files if changes.row_of(path) is None] == []
    for folder in ("toolchain/", "toolchain/etbuild/", "tests/"):
        assert folder not in COVERED_BY


def test_each_row_names_paths_and_tests_that_are_there() -> None:
    for name, tests in COVERED_BY.items():
        folder, _, start = name.rpartition("/")
        assert any(path.name.startswith(start) for path in (REPOSITORY / folder).iterdir()), name
        assert [place for place in (*tests.whole, *tests.sample) if not (REPOSITORY / "tests" / place).exists()] == []
    assert all((REPOSITORY / "tests" / place).is_dir() for place in ALWAYS_WHOLE)


def test_what_a_step_of_a_build_runs_reaches_every_test() -> None:
    driver = REPOSITORY / "toolchain"
    places = [driver / "etbuild" / package for package in code.packages()] + [driver / "etplugins"]
    files = [path.relative_to(REPOSITORY).as_posix() for place in places for path in place.glob("*.py")]
    rows = {path: changes.row_of(path) for path in files if Path(path).name != "kit.py"}
    assert [path for path, row in rows.items() if row is None or ALL not in (*row.whole, *row.sample)] == []
    assert rows["toolchain/etbuild/lower/__init__.py"] != EVERYTHING


def test_the_longest_name_decides() -> None:
    table = {"a/": Row(("one",)), "a/b": Row(("two",))}
    assert changes.row_of("a/bc", table) == Row(("two",))
    assert changes.row_of("a/c", table) == Row(("one",))
    assert changes.row_of("b", table) is None


def test_no_test_imports_another_test_file() -> None:
    """Its tests would run with those of a file that nobody changed. What several files use is in tests/helpers."""
    importing = re.compile(r"^ *(from (\.|tests\.).*\btest_|import tests\..*\btest_)", re.MULTILINE)
    files = sorted((REPOSITORY / "tests").rglob("*.py"))
    assert [str(file) for file in files if importing.search(file.read_text("utf-8"))] == []
