"""The step of GitHub Actions and the hooks of pre-commit, as the repositories of users run them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
TOOLS = Path(sys.executable).parent
MLP = ROOT / "examples/mlp"


class Repository:
    """A repository with two manifests, on a runner that has a fake `gh`."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.runner = directory / "checkout", directory / "runner"
        programs = directory / "bin"
        for place in (self.directory / "models", self.runner, programs):
            place.mkdir(parents=True)
        (programs / "gh").write_text('#!/bin/sh\necho "$@" >> "$RUNNER_TEMP/gh"\n')
        (programs / "gh").chmod(0o755)
        self.environment = {
            **os.environ,
            "PATH": f"{programs}:{TOOLS}:{os.environ['PATH']}",
            "GITHUB_OUTPUT": str(self.runner / "output"),
            "GITHUB_STEP_SUMMARY": str(self.runner / "step-summary"),
            "GITHUB_WORKSPACE": str(self.directory),
            "GITHUB_REPOSITORY": "example/models",
            "GIT_CONFIG_GLOBAL": str(directory / "gitconfig"),
            "RUNNER_TEMP": str(self.runner),
        }
        shutil.copy(MLP / "model.py", self.directory / "models")
        for name in ("mlp", "other"):
            self.write(f"models/{name}.yaml", (MLP / "model.yaml").read_text().replace("name: mlp", f"name: {name}"))
        self.git("init", "--initial-branch=main")
        self.commit()
        self.git("update-ref", "refs/remotes/origin/main", "HEAD")

    def write(self, name: str, text: str) -> None:
        (self.directory / name).write_text(text)

    def git(self, *arguments: str) -> None:
        who = ("-c", "user.name=tests", "-c", "user.email=tests@example.com")
        subprocess.run(["git", *who, *arguments], cwd=self.directory, check=True, capture_output=True)

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--message", "change")

    def act(self, **given: str) -> subprocess.CompletedProcess[str]:
        """Runs the shell of the action with these inputs, up to the first step that fails."""
        contexts = {
            **{f"inputs.{name}": str(of.get("default", "")) for name, of in ACTION["inputs"].items()},
            **{f"inputs.{name.replace('_', '-')}": value for name, value in given.items()},
            "github.event.pull_request.number": "7",
        }
        for step in ACTION["runs"]["steps"]:
            if "run" in step:
                values = {
                    key: re.sub(r"\$\{\{ ([\w.-]+) \}\}", lambda of: contexts[of[1]], value)
                    for key, value in step["env"].items()
                }
                command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
                environment = {**self.environment, **values}
                done = subprocess.run(
                    command,
                    cwd=self.directory,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    check=False,
                )
                if done.returncode:
                    break
        return done

    @property
    def outputs(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in (self.runner / "output").read_text().splitlines())


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def test_the_action_builds_what_a_change_touches_and_fails_where_a_lockfile_differs(repository: Repository) -> None:
    other = (repository.directory / "models/other.yaml").read_text()
    repository.write("models/other.yaml", f"{other}constant_methods: {{get_version: 2}}\n")
    repository.commit()
    asked = {"manifests": "models/*.yaml", "since": "origin/main", "comment": "true"}
    done = repository.act(**asked)
    assert done.returncode == 0, done.stderr
    assert Path(repository.outputs["affected"]).read_text() == "models/other.yaml\n"
    assert sorted(path.name for path in repository.directory.glob("out/*.pte")) == ["other.pte"]
    assert "| `other` |" in Path(repository.outputs["summary"]).read_text()
    assert "| `other` |" in (repository.runner / "step-summary").read_text()
    assert "pr comment 7 --repo example/models" in (repository.runner / "gh").read_text()

    failed = repository.act(**asked, lockfiles="models/locks")
    assert failed.returncode == 3
    assert "other.lock.json: there is no lockfile yet" in failed.stderr
    assert "| `other` |" in Path(repository.outputs["summary"]).read_text()


def test_a_model_that_reads_its_input_skips_no_manifest(repository: Repository) -> None:
    source = (MLP / "model.py").read_text()
    repository.write("models/model.py", f"import sys\n\nsys.stdin.read()\n{source}")
    done = repository.act(manifests="models/*.yaml", since="")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in repository.directory.glob("out/*.pte")) == ["mlp.pte", "other.pte"]


def test_an_action_says_what_is_wrong_in_a_manifest(repository: Repository) -> None:
    repository.write("models/other.yaml", "schema: executorch-model/v1\nname: other\nmetods: {}\n")
    done = repository.act(manifests="models/*.yaml", since="")
    assert done.returncode == 2
    assert "models/other.yaml:3" in done.stderr
    assert not (repository.directory / "out").exists()


def test_an_action_without_a_change_builds_nothing(repository: Repository) -> None:
    done = repository.act(manifests="models/*.yaml", since="origin/main", lockfiles="models/locks")
    assert done.returncode == 0, done.stderr
    assert Path(repository.outputs["summary"]).read_text() == "This change touches no program.\n"
    assert not (repository.directory / "out").exists()


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ("github-actions", "action.yml"),
        ("github-workflows", "examples/ci/github.yml"),
        ("gitlab-ci", "examples/ci/gitlab.yml"),
        ("buildkite", "examples/ci/buildkite.yml"),
    ],
)
def test_files_for_services_fit_their_schemas(schema: str, path: str) -> None:
    command = [str(TOOLS / "check-jsonschema"), "--builtin-schema", f"vendor.{schema}", path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_hooks_check_manifests_before_a_commit(repository: Repository, tmp_path: Path) -> None:
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    shutil.copy(ROOT / ".pre-commit-hooks.yaml", hooks)
    who = ("-c", "user.name=tests", "-c", "user.email=tests@example.com")
    for arguments in (["init"], ["add", "--all"], ["commit", "--message", "hooks"]):
        subprocess.run(["git", *who, *arguments], cwd=hooks, check=True, capture_output=True)
    command = [str(TOOLS / "pre-commit"), "try-repo", str(hooks), "etbuild-validate", "--all-files"]
    environment = {**repository.environment, "PRE_COMMIT_HOME": str(tmp_path / "home")}

    def checked() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=repository.directory, env=environment, capture_output=True, text=True, check=False
        )

    repository.write("other.yaml", "a: file of something else\n")
    repository.git("add", "--all")
    done = checked()
    assert done.returncode == 0, done.stdout
    assert "Passed" in done.stdout
    repository.write("models/mlp.yaml", "schema: executorch-model/v1\nname: mlp\nmetods: {}\n")
    done = checked()
    assert done.returncode == 1
    assert "models/mlp.yaml:3" in done.stdout
