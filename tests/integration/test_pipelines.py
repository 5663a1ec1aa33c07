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
from typing import Any

import pytest
import yaml

from tests.registry.servers import PASSWORD, USER, Registry, docker_config

EXAMPLES = Path(__file__).parents[2] / "examples"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


UPLOAD, DOWNLOAD = (
    'cp --recursive --parents {} "$ARTIFACTS/{}/"',
    'mkdir -p {1} && cp --recursive "$ARTIFACTS/{0}/." {1}',
)


def workflow(system: str) -> Any:
    return yaml.safe_load((EXAMPLES / f"ci/{system}.yml").read_text())


def steps(system: str, job: str) -> list[str]:
    """The shell of each step of a job, as the system runs it. Files go from job to job through `$ARTIFACTS`."""
    content = workflow(system)
    if system == "github":
        return [shell for step in content["jobs"][job]["steps"] for shell in _github(step)]
    if system == "gitlab":
        needed, kept = content[job].get("needs", []), content[job].get("artifacts", {})
        before = [DOWNLOAD.format(each, ".") for each in needed]
        return [*before, "\n".join(content[job]["script"]), *_uploads(job, kept.get("paths", []))]
    [commands] = [step["commands"] for step in content["steps"] if step["label"] == job]
    return ["\n".join(commands).replace("$$", "$")]  # Buildkite takes one `$` when it reads the file


def _github(step: dict[str, Any]) -> list[str]:
    given = step.get("with", {})
    if "upload-artifact" in step.get("uses", "") and "if" not in step:
        paths = given["path"].split("\n")
        if len(paths) == 1:  # of one path, only the content is uploaded
            return [f'cp --recursive {paths[0]} "$ARTIFACTS/{given["name"]}"']
        return _uploads(given["name"], paths)
    if "download-artifact" in step.get("uses", ""):
        return [DOWNLOAD.format(given["name"], given.get("path", "."))]
    return [step["run"]] if "run" in step else []


def _uploads(name: str, paths: list[str]) -> list[str]:
    """Keeps the paths that exist."""
    each = "\n".join(f"if [ -e {path} ]; then {UPLOAD.format(path, name)}; fi" for path in paths)
    return [f'mkdir -p "$ARTIFACTS/{name}"\n{each}'] if paths else []


def checks_out(system: str, job: str) -> bool:
    """Whether a job has the code."""
    content = workflow(system)
    if system == "github":
        return any("checkout" in step.get("uses", "") for step in content["jobs"][job]["steps"])
    return system != "gitlab" or content[job].get("variables", {}).get("GIT_STRATEGY") != "none"


VARIABLES = {
    "github": {
        "GITHUB_BASE_REF": "main",
        "GITHUB_SHA": COMMIT,
        "GITHUB_SERVER_URL": "https://github.com",
        "GITHUB_REPOSITORY": "Example/Models",
        "PULL_REQUEST": "7",
        "GITHUB_ACTOR": USER,
        "REGISTRY_TOKEN": PASSWORD,
        "GIT_TEST_ASSUME_DIFFERENT_OWNER": "1",  # as in a container whose user does not own the checkout
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
    "buildkite-agent": """case "$1 $2" in
annotate*) echo "$@" > "$COMMENTS/arguments"; cat > "$COMMENTS/body" ;;
"artifact upload")
    mkdir -p "$ARTIFACTS/build"
    shopt -s globstar nullglob
    IFS=';'
    for file in $3; do [ ! -f "$file" ] || cp --parents "$file" "$ARTIFACTS/build/"; done ;;
"artifact download") cp --recursive "$ARTIFACTS/build/." "$4" ;;
esac""",
}
COMMENTED = {
    "github": "pr comment 7 --repo Example/Models --body-file summary.md --edit-last --create-if-none",
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
            (programs / name).write_text(f"#!/bin/bash\n{script}\n")
            (programs / name).chmod(0o755)
        self.environment = {
            **os.environ,
            **VARIABLES[system],
            "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "REGISTRY": registry.address,
            "GITHUB_ENV": str(directory / "environment"),
            "GITHUB_STEP_SUMMARY": str(directory / "step-summary"),
            "GIT_CONFIG_GLOBAL": str(directory / "gitconfig"),
            "RUNNER_TEMP": str(directory / "runner"),
            "ARTIFACTS": str(directory / "artifacts"),
            "CI_API_V4_URL": gitlab,
            "COMMENTS": str(self.comments),
            "no_proxy": "127.0.0.1",
        }
        self.docker = str(docker_config(directory / "docker", registry.address))
        if system == "github":  # steps name the repository and log in
            self.repository = f"{registry.address}/example/models/models"
        else:
            self.repository = f"{registry.address}/{system}/models"
        shutil.copy(EXAMPLES / "mlp/model.py", self.directory / "models/model.py")
        manifest = (EXAMPLES / "mlp/model.yaml").read_text()
        (self.directory / "models/mlp.yaml").write_text(manifest)
        (self.directory / "models/other.yaml").write_text(manifest.replace("name: mlp", "name: other"))
        self.day = 0
        self.tested: dict[str, set[str]] = {}
        """The programs that each job has tested, as its JUnit XML says."""
        self.git("init", "--initial-branch=main")
        self.commit("first")

    def git(self, *arguments: str) -> str:
        name = ["-c", "user.name=tests", "-c", "user.email=tests@example.com"]
        self.day += arguments[0] == "commit"
        dated = {**os.environ, "GIT_COMMITTER_DATE": f"2026-11-{self.day:02}T12:00:00Z"}
        command = ["git", *name, *arguments]
        return subprocess.run(
            command, cwd=self.directory, env=dated, check=True, capture_output=True, text=True
        ).stdout.strip()

    def commit(self, message: str) -> None:
        ignored = "out\n*.oci\naffected.txt\nsummary.md\nchecks.xml\nresults\n__pycache__\n"
        (self.directory / ".gitignore").write_text(ignored)
        self.git("add", "--all")
        self.git("commit", "--message", message)

    def run(self, *jobs: str) -> subprocess.CompletedProcess[str]:
        """Runs the steps of jobs, up to the first that fails. Each has a clean checkout, or an empty directory."""
        shutil.rmtree(self.environment["ARTIFACTS"], ignore_errors=True)
        Path(self.environment["ARTIFACTS"]).mkdir()
        for job in jobs:
            self.git("clean", "-dfx")
            self.place = self.directory
            if not checks_out(self.system, job):
                self.place = self.directory.with_name("empty")
                shutil.rmtree(self.place, ignore_errors=True)
                self.place.mkdir()
            Path(self.environment["GITHUB_ENV"]).write_text("")
            Path(self.environment["GIT_CONFIG_GLOBAL"]).write_text("")
            environment = {**self.environment, "GITHUB_WORKSPACE": str(self.place)}
            if self.system != "github" and job in ("report", "publish"):
                environment |= {"REPOSITORY": self.repository, "DOCKER_CONFIG": self.docker}
            for step in steps(self.system, job):
                script = f'set -a; . "$GITHUB_ENV"; set +a\n{step}'
                command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
                done = subprocess.run(
                    command, cwd=self.place, env=environment, capture_output=True, text=True, check=False
                )
                if done.returncode:
                    return done
            suites = [ET.parse(path).getroot() for path in self.place.glob("results/*.xml")]
            self.tested[job] = {suite.get("name", "") for root in suites for suite in root.iter("testsuite")}
        return done


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A registry that wants a login for everything."""
    started = Registry(tmp_path_factory.mktemp("registry"), login=True)
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
    environment = {**pipeline.environment, "DOCKER_CONFIG": pipeline.docker}
    done = subprocess.run(command, cwd=pipeline.directory, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_a_change_is_reviewed_and_published(pipeline: Pipeline) -> None:
    done = pipeline.run("build", "publish")
    assert done.returncode == 0, done.stderr
    repository = pipeline.repository
    etbuild(pipeline, "pull", f"{repository}:main", "-o", "models/locks")
    for path in (pipeline.directory / "models/locks").iterdir():
        if not path.name.endswith(".lock.json"):
            path.unlink()
    first = pipeline.git("rev-parse", "HEAD")
    pipeline.commit("lockfiles")
    pipeline.git("update-ref", "refs/remotes/origin/main", "HEAD")

    done = pipeline.run("review", "report")
    assert done.returncode == 0, done.stderr
    assert (pipeline.tested["build"], pipeline.tested["review"]) == ({"mlp", "other"}, set())
    assert (pipeline.comments / "body").read_text() == "This change touches no program.\n"
    assert (pipeline.comments / "arguments").read_text().strip() == COMMENTED[pipeline.system]

    manifest = pipeline.directory / "models/mlp.yaml"
    manifest.write_text(manifest.read_text() + "constant_methods: {get_version: 2}\n")
    pipeline.commit("change")
    done = pipeline.run("review", "report")
    assert (done.returncode, "the program differs from the lockfile" in done.stderr) == (3, True), done.stderr
    shown = (pipeline.comments / "body").read_text()
    assert "| `mlp` |" in shown
    assert "get_version" in shown
    assert "`other`" not in shown
    junit = ET.parse(pipeline.place / "checks.xml").getroot()
    assert [case.get("name") for case in junit.iter("testcase") if case.find("failure") is not None] == ["lockfile"]

    assert pipeline.tested["review"] == {"mlp"}
    done = pipeline.run("build", "publish")
    assert done.returncode == 0, done.stderr
    versions = json.loads(etbuild(pipeline, "history", repository, "--json"))["versions"]
    assert [sorted(version["tags"]) for version in versions] == [[COMMIT, "main"]]
    assert versions[0]["created"]
    assert "files of mlp, other" in etbuild(pipeline, "verify", f"{repository}:main")

    pipeline.git("checkout", first)  # its pipeline was slow, or runs again
    done = pipeline.run("build", "publish")
    assert (done.returncode, "main names a later package, and stays there" in done.stderr) == (0, True), done.stderr
    versions = json.loads(etbuild(pipeline, "history", repository, "--json"))["versions"]
    assert [version["tags"] for version in versions] == [[COMMIT], ["main"]]


@pytest.mark.parametrize("system", VARIABLES)
def test_what_builds_has_no_login_and_what_has_one_builds_nothing(system: str) -> None:
    content = workflow(system)
    for job in ("review", "build"):
        shell = "\n".join(steps(system, job))
        assert "etbuild build" in shell
        assert "etbuild test" in shell
        assert not any(word in shell for word in ("push ", "TOKEN", "REPOSITORY:", "comment", "annotate"))
    for job in ("report", "publish"):
        assert not any(word in "\n".join(steps(system, job)) for word in ("etbuild build", "etbuild test", "python"))
    if system == "github":
        rights = {job: content["jobs"][job]["permissions"] for job in content["jobs"]}
        assert rights["review"] == rights["build"] == {"contents": "read"}
        assert content["permissions"] == {}
        assert not any(
            "docker/config.json" in step.get("run", "")
            for job in ("review", "build")
            for step in content["jobs"][job]["steps"]
        )
    if system == "gitlab":
        assert "REPOSITORY" not in content["variables"]  # that of this project can be written to by each job
        assert all("environment" in content[job] for job in ("report", "publish"))
        assert not any("environment" in content[job] for job in ("review", "build"))
