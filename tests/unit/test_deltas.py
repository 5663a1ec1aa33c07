"""Deltas between programs: what they list, that they can be applied, and that damage changes nothing."""

from __future__ import annotations

import bz2
import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bsdiff4
import pytest

from etbuild.cli import main
from etkit.registry.oci import delta
from tests.helpers.builds import write_build

WEIGHTS = random.Random(0).randbytes(50_000)
OLD = random.Random(1).randbytes(20_000)
NEW = OLD[:5000] + b"another" + OLD[5010:]
SHARDS = {"net.weights/weights-0.ptd": WEIGHTS[:9000], "net.weights/weights-1.ptd": WEIGHTS[9000:20_000]}


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """An old version and a new version of a program, whose graph has changed a little."""
    before, after = tmp_path / "before", tmp_path / "after"
    write_build(before, "net", pte=OLD, ptd=WEIGHTS, more={"net.tokenizer/old.json": b"{}"})
    write_build(after, "net", pte=NEW, ptd=WEIGHTS, more={"net.tokenizer/new.json": b"{}"})
    return before, after


Run = Callable[..., str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run_verb(*arguments: object, expect: int = 0) -> str:
        code = main.main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert code == expect, captured.err
        return captured.out if expect == 0 else captured.err

    return run_verb


def files(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_a_delta_lists_files_to_keep_to_patch_and_to_fetch(places: tuple[Path, Path], run: Run) -> None:
    listed = json.loads(run("delta", *places, "--json"))
    how = {name: entry["how"] for name, entry in listed["programs"]["net"].items()}
    assert how == {
        "net.pte": "patch",
        "net.report.json": "fetch",  # the report of these tests holds the program
        "net.weights.ptd": "keep",
        "net.tokenizer/new.json": "keep",
        "net.lock.json": "fetch",
        "net.index.json": "fetch",
    }
    program = listed["programs"]["net"]["net.pte"]
    assert program["patch"]["size"] < program["size"] / 2
    assert listed["bytes"] < listed["whole_bytes"] - len(WEIGHTS) - program["size"] / 2
    assert "net.weights.ptd" in run("delta", *places)


def test_a_delta_says_whether_only_weights_changed(places: tuple[Path, Path], run: Run, tmp_path: Path) -> None:
    assert "net: the program changed" in run("delta", *places)
    for place, weights in {"one": b"1", "two": b"2"}.items():
        write_build(tmp_path / place, "net", pte=OLD + weights, tensors={"head": weights, "body": b"", "tail": b""})
    changed = tmp_path / "one", tmp_path / "two"
    assert "net: only weights changed: 1 of 3 in weights files" in run("delta", *changed)
    listed = json.loads(run("delta", *changed, "--json"))
    assert listed["changes"] == {"net": {"program": False, "weights": {"changed": 1, "of": 3}}}
    assert "changes" not in json.loads(run("delta", changed[0], changed[0], "--json"))


def test_a_patch_that_saves_less_than_half_is_not_offered(tmp_path: Path, run: Run) -> None:
    write_build(tmp_path / "before", "net", pte=OLD)
    write_build(tmp_path / "after", "net", pte=random.Random(2).randbytes(20_000))
    listed = json.loads(run("delta", tmp_path / "before", tmp_path / "after", "--json"))
    assert listed["programs"]["net"]["net.pte"]["how"] == "fetch"


def test_nothing_is_fetched_for_what_is_there(places: tuple[Path, Path], run: Run, tmp_path: Path) -> None:
    listed = json.loads(run("delta", places[0], places[0], "-o", tmp_path / "delta", "--json"))
    lock = listed["programs"]["net"]["net.lock.json"]
    assert (lock["how"], listed["bytes"]) == ("fetch", lock["size"])  # a build has no lockfile yet
    run("apply", tmp_path / "delta", places[0])
    assert json.loads(run("delta", places[0], places[0], "--json"))["bytes"] == 0


def test_a_lockfile_with_other_bytes_is_not_kept(places: tuple[Path, Path], run: Run, tmp_path: Path) -> None:
    (places[0] / "net.lock.json").write_text("{}")
    listed = json.loads(run("delta", places[0], places[0], "--json"))
    assert listed["programs"]["net"]["net.lock.json"]["how"] == "fetch"


@pytest.mark.parametrize("options", [[], ["--no-patches"]], ids=["patches", "whole"])
def test_an_applied_delta_gives_the_new_programs(
    places: tuple[Path, Path], run: Run, tmp_path: Path, options: list[str]
) -> None:
    before, after = places
    run("delta", before, after, "-o", tmp_path / "delta", *options)
    run("apply", tmp_path / "delta", before)
    applied = files(before)
    assert applied.pop("net.lock.json")
    assert applied == files(after)  # also: the file of the old tokenizer is gone
    run("verify", before)


def test_layouts_and_shards_can_be_compared_too(run: Run, tmp_path: Path) -> None:
    write_build(tmp_path / "before", "net", pte=OLD, ptd=None, more=SHARDS)
    changed = {**SHARDS, "net.weights/weights-2.ptd": WEIGHTS[:7]}
    index = write_build(tmp_path / "after", "net", pte=NEW, ptd=None, more=changed)
    run("package", index, "-o", tmp_path / "layout")
    run("delta", tmp_path / "before", tmp_path / "layout", "-o", tmp_path / "delta")
    run("apply", tmp_path / "delta", tmp_path / "before")
    run("verify", tmp_path / "before")
    assert (tmp_path / "before/net.weights/weights-2.ptd").read_bytes() == WEIGHTS[:7]


def test_a_delta_for_other_files_changes_nothing(places: tuple[Path, Path], run: Run, tmp_path: Path) -> None:
    before, after = places
    run("delta", before, after, "-o", tmp_path / "delta")
    (before / "net.pte").write_bytes(OLD[1:] + b"x")
    unchanged = files(before)
    assert "`net.pte` is not the file that the delta is for" in run("apply", tmp_path / "delta", before, expect=2)
    (before / "net.pte").write_bytes(OLD)
    (before / "net.weights.ptd").unlink()
    assert "`net.weights.ptd` is not the file" in run("apply", tmp_path / "delta", before, expect=2)
    assert {**files(before), "net.pte": b"", "net.weights.ptd": b""} == {
        **unchanged,
        "net.pte": b"",
        "net.weights.ptd": b"",
    }


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "link"])
def test_a_damaged_delta_changes_nothing(places: tuple[Path, Path], run: Run, tmp_path: Path, damage: str) -> None:
    before, after = places
    run("delta", before, after, "-o", tmp_path / "delta")
    unchanged = files(before)
    for blob in (tmp_path / "delta/blobs/sha256").iterdir():
        data = blob.read_bytes()
        blob.unlink()
        if damage == "flip":
            blob.write_bytes(bytes([data[0] ^ 1]) + data[1:])
        elif damage == "cut":
            blob.write_bytes(data[:-1])
        elif damage == "link":
            blob.symlink_to("/dev/zero")
        run("apply", tmp_path / "delta", before, expect=1)
        assert files(before) == unchanged
        blob.unlink(missing_ok=True)
        blob.write_bytes(data)
    run("apply", tmp_path / "delta", before)


def edit(directory: Path, change: Callable[[Any], object]) -> None:
    content = json.loads((directory / "delta.json").read_bytes())
    change(content["programs"]["net"])
    (directory / "delta.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    "change",
    [
        lambda files: files.update({"../net.pte": files.pop("net.pte")}),
        lambda files: files.update({"BUILD": files.pop("net.pte")}),
        lambda files: files.pop("net.index.json"),
        lambda files: files.pop("net.pte"),
        lambda files: files["net.pte"].pop("patch"),
        lambda files: files["net.pte"]["base"].update(file="../before/net.pte"),
        lambda files: files["net.pte"]["base"].update(file="/etc/passwd"),
        lambda files: files["net.pte"].update(size=1 << 40),
        lambda files: files["net.pte"].update(how="magic"),
        lambda files: files["net.report.json"].update(sha256=files["net.weights.ptd"]["sha256"]),
        lambda files: files.clear(),
    ],
)
def test_a_delta_that_lies_changes_nothing(
    places: tuple[Path, Path], run: Run, tmp_path: Path, change: Callable[[Any], object]
) -> None:
    before, after = places
    run("delta", before, after, "-o", tmp_path / "delta")
    unchanged = files(tmp_path / "before")
    edit(tmp_path / "delta", change)
    assert main.main(["apply", str(tmp_path / "delta"), str(before)]) in (1, 2)
    assert files(before) == unchanged


def packed(*parts: bytes, size: int) -> bytes:
    control, *_ = compressed = [bz2.compress(part) for part in parts]
    sizes = (len(control), len(compressed[1]), size)
    return b"BSDIFF40" + b"".join(number.to_bytes(8, "little") for number in sizes) + b"".join(compressed)


@pytest.mark.parametrize(
    "patch",
    [
        b"",
        b"BSDIFF40",
        bsdiff4.diff(OLD, NEW)[:-20],
        bsdiff4.diff(OLD, NEW + b"x"),
        b"BSDIFF40" + b"\xff" * 24,
        packed(bytes(24 * 10), bytes(3_000_000), b"", size=len(NEW)),  # unpacks to much more than the program
        packed(bytes(24 * 200_000), b"", b"", size=len(NEW)),
        packed(b"\x01" * 24, b"", b"", size=len(NEW)),
        packed(b"", b"", b"", size=len(NEW)) + bz2.compress(bytes(3_000_000)),  # a second stream in the last part
    ],
    ids=["empty", "magic", "cut", "longer", "sizes", "bomb", "bomb-of-instructions", "instructions", "streams"],
)
def test_a_hostile_patch_is_refused(places: tuple[Path, Path], run: Run, tmp_path: Path, patch: bytes) -> None:
    before, after = places
    run("delta", before, after, "-o", tmp_path / "delta")
    digest = hashlib.sha256(patch).hexdigest()
    (tmp_path / "delta/blobs/sha256" / digest).write_bytes(patch)
    edit(tmp_path / "delta", lambda files: files["net.pte"].update(patch={"size": len(patch), "sha256": digest}))
    assert "the patch is damaged" in run("apply", tmp_path / "delta", before, expect=1)
    assert (before / "net.pte").read_bytes() == OLD


def test_large_programs_get_no_patch(places: tuple[Path, Path], run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta, "LARGEST_PATCHED", 1000)
    assert json.loads(run("delta", *places, "--json"))["programs"]["net"]["net.pte"]["how"] == "fetch"


def test_without_the_library_whole_files_are_fetched(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(delta, "has_library", lambda: False)
    assert main.main(["delta", *map(str, places), "--json"]) == 0
    captured = capsys.readouterr()
    assert "pip install 'bsdiff4" in captured.err
    assert json.loads(captured.out)["programs"]["net"]["net.pte"]["how"] == "fetch"


def test_a_program_that_is_gone_is_removed(places: tuple[Path, Path], run: Run, tmp_path: Path) -> None:
    before, after = places
    write_build(before, "gone", pte=OLD, ptd=None, more={"gone.weights/weights-0.ptd": b"x"})
    (before / "gone.py").write_bytes(b"mine")
    assert "gone.pte" in run("delta", before, after, "-o", tmp_path / "delta")
    applied = json.loads(run("apply", tmp_path / "delta", before, "--json"))
    assert "gone.index.json" in applied["removed"]
    assert {name for name in files(before) if name.startswith("gone")} == {"gone.py"}
    assert not (before / "gone.weights").exists()
    run("apply", tmp_path / "delta", before, expect=2)  # its base is gone, too
    run("verify", before)


def test_a_delta_to_some_of_the_programs_keeps_the_others(places: tuple[Path, Path], run: Run, tmp_path: Path) -> None:
    before, after = places
    write_build(before, "other")
    assert "removed" not in json.loads(run("delta", before, after, "-o", tmp_path / "delta", "--partial", "--json"))
    run("apply", tmp_path / "delta", before)
    assert (before / "other.index.json").exists()


@pytest.mark.parametrize("change", ["another file", "a link"])
def test_a_program_that_is_another_one_is_not_removed(
    places: tuple[Path, Path], run: Run, tmp_path: Path, change: str
) -> None:
    before, after = places
    write_build(before, "gone", pte=OLD)
    run("delta", before, after, "-o", tmp_path / "delta")
    (before / "gone.pte").unlink()
    if change == "a link":
        (before / "gone.pte").symlink_to(after / "net.pte")
    else:
        (before / "gone.pte").write_bytes(NEW)
    unchanged = files(before)
    assert "`gone.pte` is not the file" in run("apply", tmp_path / "delta", before, expect=2)
    assert files(before) == unchanged


@pytest.mark.parametrize("name", ["../gone.pte", "/etc/passwd", "mine", "gone.py", "net.pte", "gone.x/../../y.ptd"])
def test_a_delta_removes_nothing_but_files_of_programs(
    places: tuple[Path, Path], run: Run, tmp_path: Path, name: str
) -> None:
    before, after = places
    write_build(before, "gone")
    run("delta", before, after, "-o", tmp_path / "delta")
    content = json.loads((tmp_path / "delta/delta.json").read_bytes())
    content["removed"]["gone"][name] = content["removed"]["gone"].pop("gone.pte")
    (tmp_path / "delta/delta.json").write_text(json.dumps(content))
    unchanged = files(before)
    assert "cannot be a file of the program `gone`" in run("apply", tmp_path / "delta", before, expect=1)
    assert files(before) == unchanged


def test_a_delta_is_not_written_over_other_files(places: tuple[Path, Path], run: Run, tmp_path: Path) -> None:
    for _ in range(2):  # an earlier delta may go
        run("delta", *places, "-o", tmp_path / "delta")
    (tmp_path / "delta/mine").write_bytes(b"mine")
    assert "holds other files too" in run("delta", *places, "-o", tmp_path / "delta", expect=2)
    assert (tmp_path / "delta/mine").read_bytes() == b"mine"
