"""The jobs of the component for GitLab run as they stand, in a repository with a change."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from .conftest import MANIFEST, MODEL

ROOT = Path(__file__).parents[2]


class Repository:
    """A repository whose branch changes one of two models, and the services of a CI system."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "bin").mkdir()
        self.stub("etbuild", f'exec "{sys.executable}" -m etbuild "$@"')
        self.stub("curl", 'echo "$@" > "$COMMENT"; cp out/summary.md "$COMMENT.md"')
        self.environment = {
            **os.environ,
            "PATH": f"{root / 'bin'}:{os.environ['PATH']}",
            "HOME": str(root / "home"),
            "CI_PROJECT_DIR": str(root / "work"),
            "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main",
            "CI_API_V4_URL": "https://gitlab.example.com/api/v4",
            "CI_PROJECT_ID": "3",
            "CI_MERGE_REQUEST_IID": "7",
            "GITLAB_TOKEN": "secret",
            "COMMENT": str(root / "comment"),
        }
        (root / "home").mkdir()
        self.work = root / "work"
        models = self.work / "models"
        models.mkdir(parents=True)
        for name in ("first", "second"):
            (models / f"{name}.yaml").write_text(
                MANIFEST.replace("name: net", f"name: {name}").replace("model:c", f"{name}:c")
            )
            (models / f"{name}.py").write_text(MODEL)
        self.git("init", "--quiet", "--initial-branch=main")
        self.git("add", ".")
        self.git("commit", "--quiet", "-m", "models")
        self.git("update-ref", "refs/remotes/origin/main", "HEAD")
        (models / "first.py").write_text(MODEL.replace("relu", "sigmoid"))
        self.git("commit", "--quiet", "-am", "change")

    def stub(self, name: str, script: str) -> None:
        path = self.root / "bin" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def git(self, *arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.com")
        subprocess.run(["git", *identity, *arguments], cwd=self.work, env=self.environment, check=True)

    def run(self, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-eo", "pipefail", "-c", script],
            cwd=self.work,
            env={**self.environment, **variables},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def assert_summary(text: str) -> None:
    assert "first" in text
    assert "second" not in text
    assert "compared with PyTorch: " in text


def test_the_component(repository: Repository) -> None:
    _, jobs = yaml.safe_load_all((ROOT / "templates/programs.yml").read_text("utf-8"))
    inputs = {"manifests": "models/*.yaml", "lockfiles": ""}
    for job in jobs.values():
        variables = {
            name: re.sub(r"\$\[\[ inputs\.(\w+) \]\]", lambda found: inputs[found[1]], str(value))
            for name, value in job.get("variables", {}).items()
        }
        variables = {name: value.replace("$CI_PROJECT_DIR", str(repository.work)) for name, value in variables.items()}
        done = repository.run("\n".join(job["script"]), **variables)
        assert done.returncode == 0, done.stderr
    assert_summary((repository.root / "comment.md").read_text())
    assert "merge_requests/7/notes" in (repository.root / "comment").read_text()
    assert (repository.work / ".cache/etbuild").is_dir()
