"""Packages on disk: their bytes, and what is refused before a name or a digest of somebody else's is used."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from etbuild.cli import main
from etbuild.errors import EtbuildError, InputError
from etbuild.plan.plan import from_manifest
from etkit.building import lockfile
from etkit.registry.oci import layout, package, reference
from etkit.registry.oci.descriptors import MANIFEST, Descriptor, document
from tests.helpers.builds import write_build
from tests.unit.indexes import MANIFEST as PROGRAM

SHARDS = {"big.weights/weights-0a.ptd": b"first", "big.weights/weights-0b.ptd": b"second"}
WORDS = {"big.tokenizer/tokenizer.json": b"{}", "big.tokenizer/vocab-2.txt": b"words"}


@pytest.fixture
def builds(tmp_path: Path) -> list[Path]:
    """Two programs with the same named data, and one with shards and a tokenizer."""
    directory = tmp_path / "builds"
    return [
        write_build(directory, "first", pte=b"one"),
        write_build(directory, "second", pte=b"two"),
        write_build(directory, "big", pte=b"three", ptd=None, more={**SHARDS, **WORDS}),
    ]


def made_layout(builds: list[Path], directory: Path, **annotations: str) -> package.Package:
    made = package.make(builds, annotations)
    layout.write(made, directory)
    return made.package


def content(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_the_digest_of_a_package_is_that_of_the_specification(builds: list[Path], tmp_path: Path) -> None:
    made = made_layout(builds, tmp_path / "layout", license="BSD & <others>")
    for name, data in content(tmp_path / "layout").items():
        if name.startswith("blobs/"):
            assert hashlib.sha256(data).hexdigest() == name.rpartition("/")[2]
    index = json.loads((tmp_path / "layout/index.json").read_bytes())
    assert [manifest["digest"] for manifest in index["manifests"]] == [made.root.digest]
    assert b"\\u003cothers\\u003e" in made.documents[made.root.sha256]  # as Go writes it


def test_a_package_has_a_manifest_for_each_program_and_a_layer_for_each_file(
    builds: list[Path], tmp_path: Path
) -> None:
    made = made_layout(builds, tmp_path / "layout")
    assert [program.name for program in made.programs] == ["big", "first", "second"]
    big = json.loads(made.documents[made.programs[0].manifest.sha256])
    assert big["artifactType"] == package.PROGRAM_TYPE
    assert big["config"]["mediaType"] == package.INDEX_TYPE
    assert {layer["annotations"]["org.opencontainers.image.title"]: layer["mediaType"] for layer in big["layers"]} == {
        "big.pte": package.LAYER_TYPES["program"],
        "big.report.json": package.LAYER_TYPES["report"],
        "big.lock.json": package.LOCK_TYPE,
        **dict.fromkeys(SHARDS, package.LAYER_TYPES["named_data"]),
        **dict.fromkeys(WORDS, package.LAYER_TYPES["tokenizer"]),
    }


METADATA = {
    "version": "1.2",
    "license": "MIT",
    "authors": ["A <a@b>", "C"],
    "description": "does it",
    "labels": {"com.example.product": "watch"},
}


def test_metadata_of_a_manifest_becomes_annotations(tmp_path: Path) -> None:
    made = package.make([write_build(tmp_path, "net", manifest={"metadata": METADATA})], {}).package
    assert json.loads(made.documents[made.programs[0].index.sha256])["inputs"]["plan"]["metadata"] == METADATA
    assert json.loads(made.documents[made.programs[0].manifest.sha256])["annotations"] == {
        "com.example.product": "watch",
        "org.opencontainers.image.authors": "A <a@b>, C",
        "org.opencontainers.image.description": "does it",
        "org.opencontainers.image.licenses": "MIT",
        "org.opencontainers.image.title": "net",
        "org.opencontainers.image.version": "1.2",
    }


def test_metadata_changes_no_step_before_the_report() -> None:
    plain, described = (from_manifest(cast(Any, {**PROGRAM, **more})) for more in ({}, {"metadata": METADATA}))
    assert plain.to_json() != described.to_json()
    assert plain.export_plan.to_json() == described.export_plan.to_json()
    assert plain.lower_plan.to_json() == described.lower_plan.to_json()


def test_programs_share_a_blob(builds: list[Path], tmp_path: Path) -> None:
    made = made_layout(builds, tmp_path / "layout")
    first, second = made.programs[1:]
    assert first.layers["first.weights.ptd"].sha256 == second.layers["second.weights.ptd"].sha256
    weights = [name for name, data in content(tmp_path / "layout").items() if data == b"weights"]
    assert len(weights) == 1


def test_equal_programs_give_equal_bytes_in_another_place_and_order(builds: list[Path], tmp_path: Path) -> None:
    made_layout(builds, tmp_path / "one", b="2", a="1")
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "builds").rename(elsewhere)
    for path in elsewhere.rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(0o700)
    moved = [elsewhere / build.name for build in reversed(builds)]
    made_layout(moved, tmp_path / "two", a="1", b="2")
    assert content(tmp_path / "one") == content(tmp_path / "two")


def test_the_tar_file_holds_the_layout_without_times_and_owners(builds: list[Path], tmp_path: Path) -> None:
    made = package.make(builds, {})
    layout.write(made, tmp_path / "layout")
    layout.write_tar(made, tmp_path / "one.tar")
    layout.write_tar(made, tmp_path / "two.tar")
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    with tarfile.open(tmp_path / "one.tar") as tar:
        assert {(entry.mtime, entry.uid, entry.gid, entry.uname, entry.mode) for entry in tar} == {(0, 0, 0, "", 0o644)}
        tar.extractall(tmp_path / "out", filter="data")
    assert content(tmp_path / "out") == content(tmp_path / "layout")


def test_a_layout_takes_little_memory(tmp_path: Path) -> None:
    """A file is copied in blocks, into a directory and into a tar file."""
    made = package.make([write_build(tmp_path, "net", ptd=bytes(1 << 25))], {})
    tracemalloc.start()
    try:
        layout.write(made, tmp_path / "layout")
        layout.write_tar(made, tmp_path / "layout.tar")
        assert tracemalloc.get_traced_memory()[1] < 1 << 23
    finally:
        tracemalloc.stop()


def test_the_lockfile_of_a_package_is_the_one_that_is_checked_in(builds: list[Path], tmp_path: Path) -> None:
    made = made_layout(builds, tmp_path / "layout")
    assert main.main(["lock", str(builds[0]), str(tmp_path / "first.lock.json"), "--update"]) == 0
    locked = made.programs[1].layers["first.lock.json"]
    assert made.documents[locked.sha256] == (tmp_path / "first.lock.json").read_bytes()


def test_a_changed_file_of_a_program_makes_no_package(builds: list[Path], tmp_path: Path) -> None:
    (tmp_path / "builds/first.pte").write_bytes(b"uno")
    for write in (layout.write, layout.write_tar):
        with pytest.raises(EtbuildError, match=r"first.pte: has other content than its digest says"):
            write(package.make(builds, {}), tmp_path / "layout")
    assert not (tmp_path / "layout").exists()


def test_a_missing_file_of_a_program_is_named(
    builds: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "builds/first.weights.ptd").unlink()
    assert main.main(["package", str(builds[0]), "-o", str(tmp_path / "layout")]) == 1
    assert "first.weights.ptd: cannot be read: No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize("linked", ["second.weights.ptd", "big.weights"])
def test_a_link_out_of_the_directory_puts_no_file_into_a_package(
    builds: list[Path], tmp_path: Path, linked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if it leads to the content that the index lists: whoever knows a digest would get the file."""
    file, secret = tmp_path / "builds" / linked, tmp_path / "elsewhere"
    file.rename(secret)
    file.symlink_to(secret)
    for command in (["package", *map(str, builds), "-o", str(tmp_path / "layout")], ["verify", str(file.parent)]):
        assert main.main(command) == 1
        assert f"a link leads out of the directory, to {secret}" in capsys.readouterr().err
    assert not (tmp_path / "layout").exists()


def test_a_link_out_of_a_layout_is_not_followed(
    builds: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = made_layout(builds, tmp_path / "layout")
    blob = tmp_path / "layout/blobs/sha256" / made.programs[1].layers["first.pte"].sha256
    blob.rename(tmp_path / "elsewhere")
    blob.symlink_to(tmp_path / "elsewhere")
    assert main.main(["verify", str(tmp_path / "layout")]) == 1
    assert f"{blob}: a link leads out of the directory, to {tmp_path / 'elsewhere'}" in capsys.readouterr().err


@pytest.mark.parametrize("links", ["files", "directory"])
def test_links_of_a_build_system_are_followed(builds: list[Path], tmp_path: Path, links: str) -> None:
    """A sandbox has a link for each file, or for the directory."""
    sandbox = tmp_path / "sandbox"
    if links == "directory":
        sandbox.symlink_to(tmp_path / "builds")
    for path in (tmp_path / "builds").rglob("*") if links == "files" else ():
        if path.is_file():
            link = sandbox / path.relative_to(tmp_path / "builds")
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
    linked = [sandbox / path.name for path in builds]
    assert made_layout(linked, tmp_path / "layout").root == package.make(builds, {}).package.root


def test_two_programs_need_two_names(builds: list[Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="two programs of the package are called `first`"):
        package.make([builds[0], write_build(tmp_path / "other", "first")], {})


def test_a_directory_with_other_files_is_not_replaced(
    builds: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["package", str(builds[0]), "-o", str(tmp_path / "builds")]) == 2
    assert "exists, and is not the layout of a package" in capsys.readouterr().err
    assert builds[0].exists()


@pytest.mark.parametrize("foreign", ["another layout", "another file", "a link"])
def test_a_layout_that_is_not_only_ours_is_not_replaced(
    builds: list[Path], tmp_path: Path, foreign: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made_layout(builds, tmp_path / "layout")
    assert main.main(["package", str(builds[0]), "-o", str(tmp_path / "layout")]) == 0  # our own may go
    if foreign == "another layout":
        index = json.loads((tmp_path / "layout/index.json").read_bytes())
        index["manifests"] *= 2
        (tmp_path / "layout/index.json").write_text(json.dumps(index))
    elif foreign == "another file":
        (tmp_path / "layout/blobs/sha256/mine").write_bytes(b"mine")
    else:
        (tmp_path / "layout/mine").symlink_to(tmp_path)
    before = sorted(path.name for path in (tmp_path / "layout").rglob("*"))
    assert main.main(["package", str(builds[0]), "-o", str(tmp_path / "layout")]) == 2
    assert "holds other files too" in capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "layout").rglob("*")) == before


@pytest.mark.parametrize("options", [[], ["--annotation", "x", "-o", "p"], ["--annotation=a=1", "--annotation=a=2"]])
def test_wrong_options_are_refused(builds: list[Path], options: list[str], tmp_path: Path) -> None:
    assert main.main(["package", str(builds[0]), *options]) == 2


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "link"])
@pytest.mark.parametrize("which", ["document", "file"])
def test_verify_finds_damage_of_a_layout(
    builds: list[Path], tmp_path: Path, which: str, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made = made_layout(builds, tmp_path / "layout")
    assert main.main(["verify", str(tmp_path / "layout")]) == 0
    blob = made.root if which == "document" else made.programs[1].layers["first.pte"]
    path = tmp_path / "layout/blobs/sha256" / blob.sha256
    data = path.read_bytes()
    path.unlink()
    if damage == "flip":
        path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    elif damage == "cut":
        path.write_bytes(data[:-1])
    elif damage == "link":
        path.symlink_to("/dev/zero")
    assert main.main(["verify", str(tmp_path / "layout")]) == 1
    assert blob.sha256[:16] in capsys.readouterr().err


def test_verify_checks_the_files_of_a_build(
    builds: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["verify", str(tmp_path / "builds")]) == 0
    assert "15 files of big, first, second" in capsys.readouterr().out
    (tmp_path / "builds/second.weights.ptd").write_bytes(b"weights!")
    assert main.main(["verify", str(tmp_path / "builds"), "--program", "second"]) == 1
    assert main.main(["verify", str(tmp_path / "builds"), "--program", "big"]) == 0
    assert main.main(["verify", str(tmp_path / "builds"), "--program", "bog"]) == 2
    assert "did you mean `big`" in capsys.readouterr().err


def test_verify_of_a_name_that_is_too_long(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["verify", "x" * 300]) == 1
    assert "File name too long" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["explain", "lock"])
def test_an_artifact_that_its_index_does_not_list_names_no_build(
    verb: str, builds: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = builds[0].with_name("first.pte")
    arguments = [verb, str(program), *([str(tmp_path / "first.lock.json"), "--update"] if verb == "lock" else [])]
    assert main.main(arguments) == 0
    program.write_bytes(b"another")
    assert main.main(arguments) == 2
    assert "first.pte: has other content than first.index.json says" in capsys.readouterr().err


def test_verify_compares_the_lockfiles_beside_a_build(
    builds: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock, directory = tmp_path / "builds/first.lock.json", str(tmp_path / "builds")
    assert main.main(["lock", str(builds[0]), str(lock), "--update"]) == 0
    assert main.main(["verify", directory]) == 0
    assert "16 files of big, first, second" in capsys.readouterr().out
    locked = json.loads(lock.read_bytes())
    locked["versions"]["torch"] = "1.0"  # versions explain a difference, and are not one
    lock.write_text(json.dumps(locked))
    assert main.main(["verify", directory, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == 16
    locked["artifacts"]["first.pte"]["sha256"] = "0" * 64
    lock.write_text(json.dumps(locked))
    assert main.main(["verify", directory, "--json"]) == 3
    said = capsys.readouterr()
    assert not said.out
    assert "first.lock.json: the program differs from the lockfile" in said.err
    assert f"etbuild lock {builds[0]} {lock} --update" in said.err
    assert main.main(["verify", directory, "--program", "second"]) == 0


@pytest.mark.parametrize("damage", ["text", "directory", "link to nothing"])
def test_verify_refuses_what_stands_in_the_place_of_a_lockfile(
    builds: list[Path], tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = tmp_path / "builds/first.lock.json"
    if damage == "text":
        lock.write_text("{")
    elif damage == "directory":
        lock.mkdir()
    else:
        lock.symlink_to("nothing")
    assert main.main(["verify", str(builds[0])]) in (2, 3)
    assert "first.lock.json" in capsys.readouterr().err


class Hostile:
    """A package whose documents a stranger has written. `change` edits them before they get their digests."""

    def __init__(self, build: Path) -> None:
        self.made = package.make([build], {}).package
        self.program = self.made.programs[0]

    def read(
        self,
        change_index: Callable[[Any], None] = lambda index: None,
        change_manifest: Callable[[Any], None] = lambda manifest: None,
    ) -> package.Package:
        documents: dict[str, bytes] = dict(self.made.documents)

        def add(kind: str, data: bytes) -> Descriptor:
            blob = Descriptor.of(kind, data)
            documents[blob.sha256] = data
            return blob

        index = json.loads(documents[self.program.index.sha256])
        change_index(index)
        manifest = json.loads(documents[self.program.manifest.sha256])
        manifest["config"] = add(package.INDEX_TYPE, json.dumps(index).encode()).json()
        lock = add(package.LOCK_TYPE, lockfile.encoded(lockfile.lock(index)))
        for layer in manifest["layers"]:
            if layer["mediaType"] == package.LOCK_TYPE:
                layer.update(digest=lock.digest, size=lock.size)
        change_manifest(manifest)
        root = add(MANIFEST, document(manifest))
        return package.read(root, lambda blob, limit: documents[blob.sha256], "registry/net:v1")


@pytest.fixture
def hostile(builds: list[Path]) -> Hostile:
    return Hostile(builds[0])


def test_an_untouched_package_is_read(hostile: Hostile) -> None:
    assert list(hostile.read().programs[0].files) == [
        "first.pte",
        "first.report.json",
        "first.weights.ptd",
        "first.lock.json",
        "first.index.json",
    ]


@pytest.mark.parametrize(
    "name",
    [
        "../first.pte",
        "/etc/first.pte",
        "first.tokenizer/../../x",
        "first.tokenizer/..",
        "first.x/../a.ptd",
        "second.pte",
        "BUILD",
        "model.py",
        "first.pte\n",
        "first.pte/x",
        "first.tokenizer/a\x1b[2J",
        "first.index.json",
        "",
    ],
)
def test_a_name_that_no_build_makes_is_refused(hostile: Hostile, name: str) -> None:
    def rename_in_index(index: Any) -> None:
        index["artifacts"][0]["file"] = name

    def rename_in_manifest(manifest: Any) -> None:
        manifest["layers"][0]["annotations"]["org.opencontainers.image.title"] = name

    with pytest.raises(EtbuildError):
        hostile.read(rename_in_index, rename_in_manifest)
    with pytest.raises(EtbuildError, match=r"which its index does not|twice"):
        hostile.read(change_manifest=rename_in_manifest)


@pytest.mark.parametrize("name", ["..", "a/b", "", "a\n", "-a", "a.b.c", "x" * 300])
def test_a_name_that_is_not_that_of_a_program_is_refused(hostile: Hostile, name: str) -> None:
    with pytest.raises(EtbuildError):
        hostile.read(lambda index: index.update(name=name))


def test_an_index_and_a_manifest_must_agree(hostile: Hostile) -> None:
    def wrong_size(manifest: Any) -> None:
        manifest["layers"][0]["size"] += 1

    def another_digest(manifest: Any) -> None:
        manifest["layers"][0]["digest"] = manifest["layers"][1]["digest"]

    def another_algorithm(manifest: Any) -> None:
        manifest["layers"][0]["digest"] = "sha512:" + "0" * 128

    def twice(manifest: Any) -> None:
        manifest["layers"].append(manifest["layers"][0])

    def missing(manifest: Any) -> None:
        manifest["layers"].pop(0)

    def negative(manifest: Any) -> None:
        manifest["layers"][0]["size"] = -1

    def another_type(manifest: Any) -> None:
        manifest["artifactType"] = "application/vnd.example"

    for change in (wrong_size, another_digest, another_algorithm, twice, missing, negative, another_type):
        with pytest.raises(EtbuildError, match="registry/net:v1"):
            hostile.read(change_manifest=change)


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest["annotations"].update({"org.opencontainers.image.title": "second"}),
        lambda manifest: manifest["annotations"].update({"org.opencontainers.image.licenses": "MIT"}),
        lambda manifest: manifest["annotations"].clear(),
        lambda manifest: manifest.pop("annotations"),
        lambda manifest: manifest["config"].update(mediaType="application/vnd.oci.image.config.v1+json"),
        lambda manifest: manifest["layers"][0].update(mediaType="application/x-sh"),
        lambda manifest: manifest["layers"][0]["annotations"].update(x="y"),
        lambda manifest: manifest["layers"].reverse(),
    ],
)
def test_a_manifest_is_the_one_that_follows_from_its_index(hostile: Hostile, change: Callable[[Any], None]) -> None:
    with pytest.raises(EtbuildError, match="is not that of its index"):
        hostile.read(change_manifest=change)


@pytest.mark.parametrize(
    ("part", "data"),
    [
        ("metadata", [1]),
        ("metadata", {"authors": [1]}),
        ("metadata", {"labels": [1]}),
        ("metadata", {"license": {}}),
        ("metadata", {"weights_licenses": ["MIT"]}),
        ("model", {}),
        ("model", {"weights": [{}]}),
        ("model", {"weights": [], "adapters": {"math": []}}),
    ],
)
def test_an_index_with_an_odd_plan_is_refused(hostile: Hostile, part: str, data: object) -> None:
    with pytest.raises(InputError, match=f"not an index: inputs.plan.{part}"):
        hostile.read(lambda index: index["inputs"]["plan"].update({part: data}))


def test_names_that_differ_only_in_case_are_refused(builds: list[Path], tmp_path: Path) -> None:
    build = write_build(tmp_path / "case", "net", more={"net.tokenizer/a.json": b"1", "net.tokenizer/A.json": b"2"})
    with pytest.raises(EtbuildError, match="only in upper and lower case"):
        package.make([build], {})
    with pytest.raises(InputError, match="two programs of the package"):
        package.make([builds[0], write_build(tmp_path / "other", "First")], {})


def reread(content: package.Package, change: Callable[[Any], object]) -> package.Package:
    """Reads a package again whose image index a stranger has changed."""
    documents = dict(content.documents)
    index = json.loads(documents[content.root.sha256])
    change(index)
    root = Descriptor.of(content.root.media_type, document(index))
    documents[root.sha256] = document(index)
    return package.read(root, lambda blob, limit: documents[blob.sha256], "registry/net:v1")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda index: index["manifests"].append(index["manifests"][0]), "lists a manifest twice"),
        (lambda index: index["manifests"][0]["annotations"].update({"org.opencontainers.image.title": "x"}), "title"),
    ],
)
def test_an_image_index_that_lies_is_refused(builds: list[Path], change: Callable[[Any], object], words: str) -> None:
    content = package.make(builds, {}).package
    assert reread(content, lambda index: None).root == content.root
    with pytest.raises(EtbuildError, match=words):
        reread(content, change)


def test_an_error_about_a_long_image_index_is_short(builds: list[Path]) -> None:
    content = package.make(builds, {}).package
    with pytest.raises(EtbuildError, match="expected at most 1000 entries, got 2500") as error:
        reread(content, lambda index: index["manifests"].extend(index["manifests"][:1] * 25_000))
    assert len(str(error.value)) < 500


def test_documents_that_are_too_large_together_are_refused(builds: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    content = package.make(builds, {}).package
    monkeypatch.setattr(package, "_ALL_DOCUMENTS_BYTES", 20_000)
    with pytest.raises(EtbuildError, match="more than 20000 bytes"):
        reread(content, lambda index: None)


def test_a_digest_with_two_sizes_is_refused(tmp_path: Path) -> None:
    """Two indexes name one file. Only one of them can tell its size."""
    first, second = (write_build(tmp_path, name) for name in ("first", "second"))
    content = json.loads(second.read_bytes())
    next(each for each in content["artifacts"] if each["file"] == "second.weights.ptd")["size"] += 1
    second.write_bytes(json.dumps(content).encode())
    with pytest.raises(EtbuildError, match="has two sizes"):
        reread(package.make([first, second], {}).package, lambda index: None)


def test_a_file_twice_in_the_index_is_refused(hostile: Hostile) -> None:
    with pytest.raises(EtbuildError, match=r"`first.pte` cannot be a file of the program"):
        hostile.read(lambda index: index["artifacts"].append(index["artifacts"][0]))


@pytest.mark.parametrize(
    ("text", "registry", "repository", "wanted"),
    [
        ("localhost:5000/net", "localhost:5000", "net", "latest"),
        ("registry.example.com/models/net:v1", "registry.example.com", "models/net", "v1"),
        ("[::1]:5000/a/b@sha256:" + "0" * 64, "[::1]:5000", "a/b", "sha256:" + "0" * 64),
        ("h/a.b-c__d/e:x@sha256:" + "1" * 64, "h", "a.b-c__d/e", "sha256:" + "1" * 64),
    ],
)
def test_references_are_parsed(text: str, registry: str, repository: str, wanted: str) -> None:
    parsed = reference.parse(text)
    assert (parsed.registry, parsed.repository, parsed.wanted) == (registry, repository, wanted)


@pytest.mark.parametrize(
    "text",
    ["net", "", "a/b:", "a/B", "a/../b", "a/b@sha512:00", "a//b", "https://a/b", "a/b:x y", "a b/c", "a/b@sha256:zz"],
)
def test_other_texts_are_no_references(text: str) -> None:
    with pytest.raises(InputError, match="not the name of a package"):
        reference.parse(text)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost:5000", True),
        ("127.0.0.1", True),
        ("127.9.9.9:1", True),
        ("[::1]:5000", True),
        ("localhost.evil.com", False),
        ("127.0.0.1.evil.com", False),
        ("10.0.0.1:5000", False),
    ],
)
def test_only_this_machine_is_loopback(host: str, loopback: bool) -> None:
    assert reference.parse(f"{host}/net").is_loopback == loopback


def test_tags_hold_stamp_values(tmp_path: Path) -> None:
    stamp = tmp_path / "stable-status.txt"
    stamp.write_text("STABLE_GIT_COMMIT abc1\nBUILD_LABEL\nSTABLE_NAME a b\n")
    stamps = reference.read_stamps([stamp])
    assert reference.tag("v-{STABLE_GIT_COMMIT}.{STABLE_GIT_COMMIT}", stamps) == "v-abc1.abc1"
    for text, message in [
        ("{STABLE_GIT_COMIT}", "did you mean `STABLE_GIT_COMMIT`"),
        ("{BUILD_LABEL}", "cannot be a tag"),
        ("{STABLE_NAME}", "cannot be a tag"),
        ("-x", "cannot be a tag"),
        ("x" * 129, "cannot be a tag"),
    ]:
        with pytest.raises(InputError, match=message):
            reference.tag(text, stamps)


def test_a_file_of_tags_has_one_on_each_line(tmp_path: Path) -> None:
    (tmp_path / "tags.txt").write_text("latest\n\n v1 \nat-{STABLE_GIT_COMMIT}")
    assert reference.read_tags(tmp_path / "tags.txt") == ["latest", "v1", "at-{STABLE_GIT_COMMIT}"]
    with pytest.raises(InputError, match=r"missing\.txt: cannot read the tags: "):
        reference.read_tags(tmp_path / "missing.txt")


@pytest.mark.parametrize("text", ["", "\n", " \n\t\n"])
def test_a_file_of_tags_without_a_tag_is_an_error(text: str, tmp_path: Path) -> None:
    """What writes it has failed, and the package would be in the registry by its digest only."""
    (tmp_path / "tags.txt").write_text(text)
    with pytest.raises(InputError, match=r"tags\.txt: the file has no tag"):
        reference.read_tags(tmp_path / "tags.txt")


def test_a_push_finds_wrong_words_before_it_asks_the_registry(
    builds: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made_layout(builds, tmp_path / "layout")
    (tmp_path / "empty").touch()
    (tmp_path / "stamps").write_text("BUILD_HOST here\n")
    stamps = f"--stamp-file={tmp_path}/stamps"
    for arguments, message in [
        ([str(tmp_path / "builds"), "h.invalid/net:v1"], "not the layout of a package"),
        ([str(tmp_path / "layout"), "net"], "not the name of a package"),
        ([str(tmp_path / "layout"), "h.invalid/net", "--tag={X}"], "no stamp value `X`"),
        ([str(tmp_path / "layout"), "h.invalid/net", "--tag={X}", stamps], "--workspace_status_command=PROGRAM"),
        ([str(tmp_path / "layout"), "h.invalid/net", "--tag={X}", stamps], "known: BUILD_HOST"),
        ([str(tmp_path / "layout"), "h.invalid/net:v1", f"--tag-file={tmp_path}/empty"], "/empty: the file has no tag"),
        ([str(tmp_path / "layout"), "h.invalid/net", "--registry=a/b"], "not the name of a registry"),
        ([str(tmp_path / "layout"), "h.invalid/net@sha256:" + "0" * 64], "cannot be pushed to a digest"),
        ([str(tmp_path / "layout"), "h.invalid/net", "--mount-from=A"], "not the name of a package"),
    ]:
        assert main.main(["push", *arguments]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["verify"], ["delta", "x"], ["ci-summary"]], ids=" ".join)
def test_a_place_that_is_not_there_is_not_taken_for_a_registry(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = str(tmp_path / "gone")
    assert main.main([*arguments[:1], gone, *[gone for _ in arguments[1:]]]) == 2
    assert f"{gone}: no such file or directory, and not the name of a package in a reg" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["package", "{net}", "-o", "{out}"],
        ["verify", "{net}"],
        ["delta", "{net}", "{net}"],
        ["ci-summary", "{net}"],
        ["pull", "127.0.0.1:1/net:v1"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_these_verbs_do_not_import_torch(arguments: list[str], tmp_path: Path) -> None:
    script = (
        "import sys\nfrom etbuild.cli.main import main\nfrom etkit.registry.oci import attempts\n"
        "attempts.BACKOFF_SECONDS = 0.001\n"
        "assert main(sys.argv[1:]) == (1 if sys.argv[1] == 'pull' else 0)\n"
        "assert not {'torch', 'executorch', 'numpy'} & set(sys.modules)\n"
    )
    places = {"net": write_build(tmp_path / "build", "net"), "out": tmp_path / "out"}
    command = [sys.executable, "-c", script, *(argument.format(**places) for argument in arguments)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
