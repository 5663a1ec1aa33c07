"""Which programs a change touches, in a real Git repository."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from etbuild.cli import main

MANIFEST = """\
schema: executorch-model/v1
name: {name}
model: {{factory: "{name}_model:create", weights: {name}.safetensors}}
methods: {{forward: {{example_inputs: [{{shape: [1, 8]}}]}}}}
variants: {{ios: {{defaults: {{partitioners: [coreml]}}}}}}
"""
FILES = {
    "a/a.yaml": MANIFEST.format(name="a"),
    "a/a_model.py": "import shared.layers\nfrom helpers import x\n",
    "a/helpers.py": "x = 1\n",
    "a/a.safetensors": "weights",
    "a/unused.py": "",
    "b/b.yaml": MANIFEST.format(name="b"),
    "b/b_model.py": "import shared.layers\n",
    "b/b.safetensors": "weights",
    "lib/shared/__init__.py": "",
    "lib/shared/layers.py": "",
    "README.md": "",
}
Affected = Callable[..., list[str]]


def git(directory: Path, *arguments: str) -> None:
    name = ["-c", "user.name=tests", "-c", "user.email=tests@example.com", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *name, *arguments], cwd=directory, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository on a branch that began at `main`. `main` has gone on since."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    git(tmp_path, "init")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--message", "first")
    git(tmp_path, "checkout", "-b", "work")
    git(tmp_path, "checkout", "main")
    (tmp_path / "b/b_model.py").write_text("import shared.layers  # on main\n")
    git(tmp_path, "commit", "--all", "--message", "second")
    git(tmp_path, "checkout", "work")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def affected(repository: Path, capsys: pytest.CaptureFixture[str]) -> Affected:
    def listed(*more: str) -> list[str]:
        assert main.main(["affected", "--since", "main", "--root", "lib", "a/a.yaml", "b/b.yaml", *more]) == 0
        return capsys.readouterr().out.splitlines()

    return listed


def test_without_a_change_nothing_is_affected(affected: Affected) -> None:
    assert affected() == []


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("a/a.yaml", ["a/a.yaml"]),
        ("a/a_model.py", ["a/a.yaml"]),
        ("a/helpers.py", ["a/a.yaml"]),
        ("a/a.safetensors", ["a/a.yaml"]),
        ("lib/shared/layers.py", ["a/a.yaml", "b/b.yaml"]),
        ("lib/shared/__init__.py", ["a/a.yaml", "b/b.yaml"]),
        ("a/unused.py", []),
        ("README.md", []),
    ],
)
@pytest.mark.parametrize("committed", [True, False], ids=["committed", "not-committed"])
def test_a_changed_file_affects_the_programs_that_read_it(
    affected: Affected, repository: Path, changed: str, expected: list[str], committed: bool
) -> None:
    with (repository / changed).open("a") as file:
        file.write("# edited\n")
    if committed:
        git(repository, "commit", "--all", "--message", "edit")
    assert affected() == expected


def test_a_new_file_that_hides_another_counts(affected: Affected, repository: Path) -> None:
    (repository / "b/shared").mkdir()
    (repository / "b/shared/layers.py").write_text("")
    (repository / "b/shared/__init__.py").write_text("")
    assert affected() == ["b/b.yaml"]


@pytest.mark.parametrize("gone", ["lib/shared/__init__.py", "a/helpers.py", "a/a.safetensors"])
def test_a_file_that_is_gone_counts(affected: Affected, repository: Path, gone: str) -> None:
    (repository / gone).unlink()
    assert "a/a.yaml" in affected()


def test_a_file_that_hid_another_and_is_gone_counts(affected: Affected, repository: Path) -> None:
    git(repository, "checkout", "main")
    (repository / "a/shared").mkdir()
    (repository / "a/shared/__init__.py").write_text("")
    (repository / "a/shared/layers.py").write_text("")
    git(repository, "add", "--all")
    git(repository, "commit", "--message", "hide")
    git(repository, "checkout", "-b", "later")
    git(repository, "rm", "-r", "a/shared")
    assert affected() == ["a/a.yaml"]


def test_json_gives_the_reasons(affected: Affected, repository: Path) -> None:
    (repository / "a/helpers.py").write_text("x = 2\n")
    (repository / "README.md").write_text("more")
    assert json.loads("\n".join(affected("--json"))) == {"a/a.yaml": ["a/helpers.py"]}


def test_links_to_a_changed_file_count(affected: Affected, repository: Path) -> None:
    (repository / "store").mkdir()
    (repository / "store/blob").write_text("one")
    (repository / "a/a.safetensors").unlink()
    (repository / "a/a.safetensors").symlink_to("../store/blob")
    git(repository, "add", "--all")
    git(repository, "commit", "--message", "link")
    git(repository, "branch", "--force", "main")
    assert affected() == []
    (repository / "store/blob").write_text("two")
    assert affected() == ["a/a.yaml"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--since", "nothing", "a/a.yaml"], "no such commit"),
        (["--since=--output=x", "a/a.yaml"], "not the name of a commit"),
        (["--since", "main"], "name manifests, or use --bazel"),
        (["--since", "main", "--bazel"], "not in a workspace of Bazel"),
        (["--since", "main", "a/no.yaml"], "a/no.yaml"),
    ],
)
def test_mistakes_are_told(
    repository: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["affected", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_outside_of_a_repository(tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    assert main.main(["affected", "--since", "main", str(elsewhere / "net.yaml")]) == 2
    told = capsys.readouterr().err
    assert "not a git repository" in told
    assert "run it in a repository of Git" in told


@pytest.fixture
def query(repository: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
    (repository / "WORKSPACE").write_text("")
    for directory in ("a", "lib"):
        (repository / directory / "BUILD").write_text("")
    git(repository, "add", "--all")
    git(repository, "commit", "--message", "build files")
    git(repository, "branch", "--force", "main")

    def printed() -> str:
        assert main.main(["affected", "--since", "main", "--bazel"]) == 0
        return capsys.readouterr().out.strip().removeprefix('kind("executorch_program rule", ').removesuffix(")")

    return printed


def test_the_query_names_the_changed_files(query: Callable[[], str], repository: Path) -> None:
    assert query() == "set()"
    (repository / "README.md").write_text("in no package")
    assert query() == "set()"
    (repository / "a/helpers.py").write_text("x = 2\n")
    (repository / "lib/shared/layers.py").write_text("x = 2\n")
    assert query() == 'rdeps(//..., set("//a:helpers.py" "//lib:shared/layers.py"))'
    (repository / "a/unused.py").unlink()
    assert query() == 'rdeps(//..., set("//a:all" "//a:helpers.py" "//lib:shared/layers.py"))'
    (repository / "lib/BUILD").write_text("# edited")
    assert '"//lib:all"' in query()
    (repository / "a/rules.bzl").write_text("")
    assert query() == "//..."
