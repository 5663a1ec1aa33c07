"""The versions of a repository: what is listed, in which order, and how it is drawn."""

from __future__ import annotations

import hashlib
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from etkit.registry.oci.dates import CREATED
from tests.helpers.builds import make_report, write_build

from .conftest import Run
from .servers import Fault, Registry, Relay, find, skopeo


@pytest.fixture
def versions(server: Registry, repository: str, run: Run, tmp_path: Path) -> str:
    """A repository with the tags v9, v10 and latest. v10 is of an earlier day than v9."""
    name = f"{server.address}/{repository}"
    for tag, pte, facts, date in (
        ("v9", b"12345", (100, 1, 1), "2026-11-03T01:00:00+02:00"),
        ("v10", b"1234567", (300, 3, 1), "2026-11-02T23:30:00Z"),
    ):
        metadata = {"metadata": {"version": tag}}
        index = write_build(tmp_path / tag, "net", pte=pte, ptd=b"12", report=make_report(*facts), manifest=metadata)
        run("package", index, "-o", tmp_path / f"{tag}.oci", f"--annotation={CREATED}={date}")
        run("push", tmp_path / f"{tag}.oci", f"{name}:{tag}")
    run("push", tmp_path / "v10.oci", f"{name}:latest")
    return name


def test_versions_are_listed_with_what_their_reports_say(versions: str, run: Run) -> None:
    listed = json.loads(run("history", versions, "--json"))
    assert listed["skipped"] == []
    facts = [(each["tags"], each["created"], each["programs"]["net"]) for each in listed["versions"]]
    for _, _, program in facts:
        assert program.pop("digest").startswith("sha256:")
    assert facts == [
        (["v9"], "2026-11-03T01:00:00+02:00", {"size": 7, "delegated": 0.5, "memory": 102, "version": "v9"}),
        (["latest", "v10"], "2026-11-02T23:30:00Z", {"size": 9, "delegated": 0.75, "memory": 302, "version": "v10"}),
    ]
    assert run("history", versions).splitlines()[1].split() == [
        "v9", "2026-11-03", "net", "v9", "7", "B", "50%", "102", "B",
    ]  # fmt: skip


def test_versions_without_dates_are_listed_by_tag(server: Registry, repository: str, run: Run, tmp_path: Path) -> None:
    name = f"{server.address}/{repository}"
    for tag in ("v10", "v9", "v1"):
        index = write_build(tmp_path / tag, "net", pte=tag.encode())
        run("package", index, "-o", tmp_path / f"{tag}.oci")
        run("push", tmp_path / f"{tag}.oci", f"{name}:{tag}")
    listed = json.loads(run("history", name, "--json"))["versions"]
    assert [each["tags"] for each in listed] == [["v1"], ["v9"], ["v10"]]
    assert listed[0]["programs"]["net"]["memory"] is None  # the report of these builds is none


def test_the_plot_is_svg_and_has_the_same_bytes_each_time(versions: str, run: Run, tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        run("history", versions, "--svg", tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    root = ElementTree.parse(tmp_path / "one.svg").getroot()
    lines = root.findall("{http://www.w3.org/2000/svg}polyline")
    assert [len((line.get("points") or "").split()) for line in lines] == [2, 2, 2]
    texts = [text.text for text in root.findall("{http://www.w3.org/2000/svg}text")]
    assert {"net", "9 B", "75%", "302 B"} <= set(texts)


def test_other_things_in_the_repository_are_left_out(versions: str, run: Run, tmp_path: Path) -> None:
    find("skopeo")
    image = tmp_path / "image"
    image.mkdir()
    (image / "manifest.json").write_text("{}")
    (image / "version").write_text("Directory Transport Version: 1.1\n")
    config = b"{}"
    digest = hashlib.sha256(config).hexdigest()
    (image / digest).write_bytes(config)
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": f"sha256:{digest}",
            "size": len(config),
        },
        "layers": [],
    }
    (image / "manifest.json").write_text(json.dumps(manifest))
    skopeo("copy", "--dest-tls-verify=false", f"dir:{image}", f"docker://{versions}:image")
    listed = json.loads(run("history", versions, "--json"))
    assert (len(listed["versions"]), listed["skipped"]) == (2, ["image"])
    assert "not packages of programs: image" in run("history", versions)


def test_a_damaged_version_is_an_error(versions: str, relay: Relay, repository: str, run: Run) -> None:
    relay.faults = [Fault("GET", "/manifests/sha256:", change=lambda data: data.replace(b"config", b"gifnoc"))]
    told = run("history", f"{relay.address}/{repository}", expect=1)
    assert "other content than the digest" in told


def test_a_repository_that_is_not_there(server: Registry, repository: str, run: Run) -> None:
    assert "no such repository" in run("history", f"{server.address}/{repository}", expect=2)
    assert "names one version" in run("history", f"{server.address}/{repository}:v1", expect=2)
