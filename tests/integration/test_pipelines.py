"""The workflows of examples/ci. Their steps run as they stand: a first push, a change under review, and its push."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import urllib.parse
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from tests.registry.servers import Registry

EXAMPLES = Path(__file__).parents[2] / "examples"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def steps(system: str, job: str) -> list[str]:
    """The shell of each step of a job, as the system runs it."""
    workflow = yaml.safe_load((EXAMPLES / f"ci/{system}.yml").read_text())
    if system == "github":
        return [step["run"] for step in workflow["jobs"][job]["steps"] if "run" in step]
    if system == "gitlab":
        return ["\n".join(workflow[job]["script"])]
    [commands] = [step["commands"] for step in workflow["steps"] if step["label"] == job]
    return ["\n".join(commands).replace("$$", "$")]  # Buildkite takes one `$` when it reads the file


VARIABLES = {
    "github": {
        "GITHUB_BASE_REF": "main",
        "GITHUB_SHA": COMMIT,
        "GITHUB_SERVER_URL": "https://github.com",
        "GITHUB_REPOSITORY": "example/models",
        "PULL_REQUEST": "7",
    },
    "gitlab": {
        "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main",
        "CI_MERGE_REQUEST_IID": "7",
        "CI_PROJECT_ID": "3",
        "CI_PROJECT_URL": "https://gitlab.com/example/models",
        "CI_COMMIT_SHA": COMMIT,
        "GITLAB_TOKEN": "secret",
    },
    "buildkite": {
        "BUILDKITE_PULL_REQUEST_BASE_BRANCH": "main",
        "BUILDKITE_ORGANIZATION_SLUG": "example",
        "BUILDKITE_COMMIT": COMMIT,
    },
}
# Commands of the systems that are not here. Each keeps what it is given.
STUBS = {
    "gh": 'echo "$@" > "$COMMENTS/arguments"; cp summary.md "$COMMENTS/body"',
    "buildkite-agent": 'echo "$@" > "$COMMENTS/arguments"; cat > "$COMMENTS/body"',
}
COMMENTED = {
    "github": "pr comment 7 --body-file summary.md --edit-last --create-if-none",
    "gitlab": "/projects/3/merge_requests/7/notes secret",
    "buildkite": "annotate --style info --context models",
}


class _Notes(BaseHTTPRequestHandler):
    """GitLab's interface for comments. It keeps them in `comments`, a directory."""

    comments: Path

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        (self.comments / "arguments").write_text(f"{self.path} {self.headers['PRIVATE-TOKEN']}\n")
        (self.comments / "body").write_text(urllib.parse.parse_qs(body)["body"][0])
        self.send_response(201)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
        pass


class Pipeline:
    """A repository with the models of an example, and the services that the steps use."""

    def __init__(self, system: str, directory: Path, registry: Registry, gitlab: str) -> None:
        self.system, self.directory, self.comments = system, directory / "checkout", directory / "comments"
        programs = directory / "bin"
        for place in (self.directory / "models/locks", self.comments, programs):
            place.mkdir(parents=True)
        for name, script in STUBS.items():
            (programs / name).write_text(f"#!/bin/sh\n{script}\n")
            (programs / name).chmod(0o755)
        self.environment = {
            **os.environ,
            **VARIABLES[system],
            "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "REPOSITORY": f"{registry.address}/{system}/models",
            "CI_API_V4_URL": gitlab,
            "COMMENTS": str(self.comments),
            "no_proxy": "127.0.0.1",
        }
        shutil.copy(EXAMPLES / "mlp/model.py", self.directory / "models/model.py")
        manifest = (EXAMPLES / "mlp/model.yaml").read_text()
        (self.directory / "models/mlp.yaml").write_text(manifest)
        (self.directory / "models/other.yaml").write_text(manifest.replace("name: mlp", "name: other"))
        self.git("init", "--initial-branch=main")
        self.commit("first")

    def git(self, *arguments: str) -> None:
        name = ["-c", "user.name=tests", "-c", "user.email=tests@example.com"]
        subprocess.run(["git", *name, *arguments], cwd=self.directory, check=True, capture_output=True)

    def commit(self, message: str) -> None:
        (self.directory / ".gitignore").write_text("out\n*.oci\naffected.txt\nsummary.md\nchecks.xml\n__pycache__\n")
        self.git("add", "--all")
        self.git("commit", "--message", message)

    def run(self, job: str) -> subprocess.CompletedProcess[str]:
        """Runs the steps of a job in a clean checkout, up to the first that fails."""
        self.git("clean", "-dfx")
        for step in steps(self.system, job):
            command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step]
            done = subprocess.run(
                command, cwd=self.directory, env=self.environment, capture_output=True, text=True, check=False
            )
            if done.returncode:
                return done
        return done


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    started = Registry(tmp_path_factory.mktemp("registry"))
    started.start()
    yield started
    started.kill()


@pytest.fixture(params=VARIABLES)
def pipeline(request: pytest.FixtureRequest, tmp_path: Path, registry: Registry) -> Iterator[Pipeline]:
    class Notes(_Notes):
        comments = tmp_path / "comments"

    with ThreadingHTTPServer(("127.0.0.1", 0), Notes) as gitlab:
        threading.Thread(target=gitlab.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield Pipeline(request.param, tmp_path, registry, f"http://127.0.0.1:{gitlab.server_address[1]}")
        gitlab.shutdown()


def etbuild(pipeline: Pipeline, *arguments: object) -> str:
    command = ["etbuild", *map(str, arguments)]
    done = subprocess.run(
        command, cwd=pipeline.directory, env=pipeline.environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.rotates(days=3)
def test_a_change_is_reviewed_and_published(pipeline: Pipeline) -> None:
    done = pipeline.run("publish")
    assert done.returncode == 0, done.stderr
    repository = pipeline.environment["REPOSITORY"]
    etbuild(pipeline, "pull", f"{repository}:main", "-o", "models/locks")
    for path in (pipeline.directory / "models/locks").iterdir():
        if not path.name.endswith(".lock.json"):
            path.unlink()
    pipeline.commit("lockfiles")
    pipeline.git("update-ref", "refs/remotes/origin/main", "HEAD")

    done = pipeline.run("review")
    assert done.returncode == 0, done.stderr
    assert (pipeline.comments / "body").read_text() == "This change touches no program.\n"
    assert (pipeline.comments / "arguments").read_text().strip() == COMMENTED[pipeline.system]

    manifest = pipeline.directory / "models/mlp.yaml"
    manifest.write_text(manifest.read_text() + "constant_methods: {get_version: 2}\n")
    pipeline.commit("change")
    done = pipeline.run("review")
    assert (done.returncode, "the program differs from the lockfile" in done.stderr) == (3, True), done.stderr
    shown = (pipeline.comments / "body").read_text()
    assert "| `mlp` |" in shown
    assert "get_version" in shown
    assert "`other`" not in shown
    junit = ET.parse(pipeline.directory / "checks.xml").getroot()
    assert [case.get("name") for case in junit.iter("testcase") if case.find("failure") is not None] == ["lockfile"]

    done = pipeline.run("publish")
    assert done.returncode == 0, done.stderr
    versions = json.loads(etbuild(pipeline, "history", repository, "--json"))["versions"]
    assert [sorted(version["tags"]) for version in versions] == [[COMMIT, "main"]]
    assert versions[0]["created"]
    assert "files of mlp, other" in etbuild(pipeline, "verify", f"{repository}:main")
