"""Pushes to Hugging Face: one commit, without what it supersedes, against a server on loopback."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import commands
from tests.helpers.builds import write_build
from tests.helpers.http_server import Answer, serving

pytest.importorskip("huggingface_hub")


class Hub:
    """What the server of Hugging Face has, and how it answers."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] | None = None
        self.commits: list[dict[str, Any]] = []
        self.broken: list[int] = []
        self.broken_downloads: list[int] = []
        self.bodies: list[tuple[str, bytes]] = []
        self.requests: list[str] = []

    @property
    def head(self) -> str:
        return hashlib.sha1(str(len(self.commits)).encode(), usedforsecurity=False).hexdigest()

    def answer(self, method: str, path: str, login: str) -> Answer:
        self.requests.append(f"{method} {path.partition('?')[0]}")
        body = self.bodies[-1][1]
        if login != "Bearer hf_test":
            return 401, {"X-Error-Message": "no login"}, b"{}"
        if path == "/api/repos/create":
            self.files = {}
            return self._json({"url": "http://127.0.0.1/acme/net"})
        if self.files is None:
            return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"
        if path.startswith("/api/models/acme/net/preupload/"):
            names = [each["path"] for each in json.loads(body)["files"]]
            modes = [{"path": name, "uploadMode": "regular", "shouldIgnore": False, "oid": None} for name in names]
            return self._json({"files": modes})
        if path.startswith("/api/models/acme/net/commit/"):
            return self._commit(body)
        if path.startswith("/api/validate-yaml"):
            return self._json({"errors": [], "warnings": []})
        if path.startswith("/api/models/acme/net"):
            siblings = [{"rfilename": name} for name in sorted(self.files)]
            return self._json({"id": "acme/net", "sha": self.head, "siblings": siblings})
        name = path.partition(f"/resolve/{self.head}/")[2]
        if self.broken_downloads:
            return self.broken_downloads.pop(), {}, b"{}"
        content = self.files[name]
        etag = hashlib.sha1(content, usedforsecurity=False).hexdigest()
        return 200, {"ETag": f'"{etag}"', "X-Repo-Commit": self.head}, content

    def _commit(self, body: bytes) -> Answer:
        if self.broken:
            return self.broken.pop(), {}, b"{}"
        lines = [json.loads(line) for line in body.decode().splitlines()]
        assert lines[0]["value"]["parentCommit"] == self.head
        files = self.files or {}
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            else:
                assert line["key"] == "deletedFile"
                del files[value["path"]]
        self.files = files
        self.commits.append(lines[0]["value"])
        return self._json({"commitUrl": f"http://127.0.0.1/acme/net/commit/{self.head}", "commitOid": self.head})

    @staticmethod
    def _json(content: Any) -> Answer:
        return 200, {"Content-Type": "application/json"}, json.dumps(content).encode()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """The server. The library reads the variables when it is imported, so each command runs in a process of its own."""
    found = Hub()
    with serving(found.answer) as server:
        found.bodies = server.bodies
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.port}")
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("HF_TOKEN", "hf_test")
        yield found


def run(*arguments: object, expect: int = 0) -> str:
    done = commands.etbuild(*arguments)
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout if expect == 0 else done.stderr


def test_one_commit_has_all_files_and_the_next_one_removes_what_is_superseded(hub: Hub, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_build(out, "net", pte=b"1", more={"net.w/old.ptd": b"old"})
    write_build(out, "net.int8", pte=b"2", ptd=None)
    run("card", out)
    pushed = json.loads(run("push", out, "hf:acme/net", "--json", "--message", "First"))
    assert [each["summary"] for each in hub.commits] == ["First"]
    assert hub.files is not None
    assert (
        sorted(hub.files)
        == pushed["files"]
        == [
            "README.md",
            "net.index.json",
            "net.int8.index.json",
            "net.int8.pte",
            "net.int8.report.json",
            "net.pte",
            "net.report.json",
            "net.w/old.ptd",
            "net.weights.ptd",
        ]
    )
    hub.files |= {"mine.txt": b"a person's", "other.index.json": (out / "net.index.json").read_bytes()}
    second = tmp_path / "second"
    write_build(second, "net", pte=b"3", more={"net.w/new.ptd": b"new"})
    shown = run("push", second, "hf:acme/net")
    assert "6 files pushed" not in shown
    assert len(hub.commits) == 2
    assert sorted(hub.files) == [
        "README.md",
        "mine.txt",
        "net.index.json",
        "net.pte",
        "net.report.json",
        "net.w/new.ptd",
        "net.weights.ptd",
        "other.index.json",
    ]
    assert hub.files["net.pte"] == b"3"


def test_a_push_is_tried_again(hub: Hub, tmp_path: Path) -> None:
    write_build(tmp_path / "out", "net")
    hub.broken = [503, 412]
    run("push", tmp_path / "out", "hf:acme/net")
    assert len(hub.commits) == 1
    hub.broken = [400]
    said = run("push", tmp_path / "out", "hf:acme/net", expect=1)
    assert said.startswith("error: hf:acme/net: ")
    assert "Traceback" not in said


def test_a_download_that_fails_is_tried_again(hub: Hub, tmp_path: Path) -> None:
    """The library repeats some requests itself; those that are answered with 408 it gives up."""
    write_build(tmp_path / "out", "net")
    run("push", tmp_path / "out", "hf:acme/net")
    hub.broken_downloads = [408]
    write_build(tmp_path / "out", "net", pte=b"2")
    run("push", tmp_path / "out", "hf:acme/net")
    assert len(hub.commits) == 2
    hub.broken_downloads = [418]
    said = run("push", tmp_path / "out", "hf:acme/net", expect=1)
    assert said.startswith("error: hf:acme/net: ")
    assert "Traceback" not in said


@pytest.mark.parametrize("address", ["http://127.0.0.1:abc", "http://[::1", "nonsense", "http://127.0.0.1:99999"])
def test_an_address_that_is_none(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_build(tmp_path / "out", "net")
    monkeypatch.setenv("HF_ENDPOINT", address)
    said = run("push", tmp_path / "out", "hf:acme/net", expect=2)
    assert said.startswith("error: HF_ENDPOINT: ")


@pytest.mark.parametrize("name", ["README.md", "catalog.json", "net.results.json"])
def test_no_link_leads_out_of_the_directory(name: str, hub: Hub, tmp_path: Path) -> None:
    write_build(tmp_path / "out", "net")
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "out" / name).symlink_to("../secret.txt")
    said = run("push", tmp_path / "out", "hf:acme/net", expect=2)
    assert f"{name}: is no file, or a link to a file that is not in its directory" in said
    assert hub.files is None


def test_results_of_other_bytes_stay_here(hub: Hub, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_build(out, "net", pte=b"1")
    kept = {"name": "a", "state": "passed", "detail": "", "measured": {}}
    results = {"schema": "executorch-results/v1", "name": "net", "sha256": "0" * 64, "results": [kept]}
    (out / "net.results.json").write_text(json.dumps(results))
    run("push", out, "hf:acme/net")
    assert hub.files is not None
    assert "net.results.json" not in hub.files
    results["sha256"] = hashlib.sha256(b"1").hexdigest()
    (out / "net.results.json").write_text(json.dumps(results))
    run("push", out, "hf:acme/net")
    assert "net.results.json" in hub.files


def test_a_refused_login_says_what_to_do(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_build(tmp_path / "out", "net")
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    said = run("push", tmp_path / "out", "hf:acme/net", expect=2)
    assert "set HF_TOKEN to a token that may write there" in said
    assert hub.commits == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["hf:net"], "is not hf:OWNER/NAME"),
        (["hf:../../x"], "is not hf:OWNER/NAME"),
        (["hf:acme/net", "--tag", "v1"], "--tag does not go with hf:OWNER/NAME"),
        (["hf:acme/net", "--ca-file", "ca.pem"], "--ca-file does not go with hf:OWNER/NAME"),
        (["hf:acme/net", "--plain-http"], "--plain-http does not go with hf:OWNER/NAME"),
        (["hf:acme/net", "--jobs", "2"], "--jobs does not go with hf:OWNER/NAME"),
        (["hf:acme/net", "--stall-seconds", "3"], "--stall-seconds does not go with hf:OWNER/NAME"),
        (["registry.example.com/net:v1", "--message", "x"], "--message does not go with a registry"),
    ],
)
def test_mistakes(arguments: list[str], expected: str, tmp_path: Path) -> None:
    write_build(tmp_path, "net")
    assert expected in run("push", tmp_path, *arguments, expect=2)
