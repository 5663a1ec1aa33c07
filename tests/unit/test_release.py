"""The files of a release: they are the same bytes each time, and pip and Bazel can use them."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from etbuild.version import VERSION
from tools import build_wheel, release

NAME = f"rules_executorch-{VERSION}"


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("release")
    (directory / "site").mkdir()
    (directory / "site/index.html").write_text("<h1>docs</h1>")
    release.write(VERSION, "owner/rules", directory / "dist", directory / "site")
    return directory / "dist"


def test_each_file_on_the_page_has_its_digest(released: Path, tmp_path: Path) -> None:
    """A page of GitHub has all files in one directory."""
    workflow = (build_wheel.ROOT / ".github/workflows/release.yml").read_text("utf-8")
    [find] = re.findall(r"find dist .* -print0", workflow)
    found = subprocess.run(shlex.split(find), cwd=released.parent, capture_output=True, text=True, check=True).stdout
    for name in found.split("\0")[:-1]:
        shutil.copy(released.parent / name, tmp_path)
    done = subprocess.run(
        ["sha256sum", "--check", "SHA256SUMS"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    files = {path.name for path in tmp_path.iterdir()}
    assert {line.partition(":")[0] for line in done.stdout.splitlines()} == files - {"SHA256SUMS"}
    assert {f"{NAME}-py3-none-any.whl", f"{NAME}.tar.gz", f"{NAME}-docs.tar.gz", f"{NAME}.cdx.json"} <= files


def test_the_files_for_an_index(released: Path) -> None:
    assert {path.name for path in (released / "pypi").iterdir()} == {f"{NAME}.tar.gz", f"{NAME}-py3-none-any.whl"}
    wheel = f"{NAME}-py3-none-any.whl"
    assert (released / "pypi" / wheel).read_bytes() == (released / wheel).read_bytes()


def test_the_same_commit_gives_the_same_archives(
    released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "TOMORROW-24")
    release._archive(tmp_path / "again.tar.gz", NAME)
    assert (tmp_path / "again.tar.gz").read_bytes() == (released / f"{NAME}.tar.gz").read_bytes()
    again = build_wheel.build_sdist(tmp_path / "sdist")
    assert again.read_bytes() == (released / "pypi" / again.name).read_bytes()


def test_the_sdist_makes_the_wheel(released: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    subprocess.run([*command, str(tmp_path), str(released / f"pypi/{NAME}.tar.gz")], check=True)
    [made] = tmp_path.iterdir()
    wheels = [zipfile.ZipFile(each) for each in (made, released / "pypi" / made.name)]
    one, other = ({name: each.read(name) for name in each.namelist()} for each in wheels)
    assert one == other


def test_the_entry_of_the_registry_is_of_the_sources(released: Path) -> None:
    source = json.loads((released / f"bcr/{VERSION}/source.json").read_text())
    digest = hashlib.sha256((released / f"{NAME}.tar.gz").read_bytes()).digest()
    assert source["integrity"] == f"sha256-{base64.b64encode(digest).decode()}"
    with tarfile.open(released / f"{NAME}.tar.gz") as archive:
        module = archive.extractfile(f"{source['strip_prefix']}/MODULE.bazel")
        assert module
        assert module.read() == (released / f"bcr/{VERSION}/MODULE.bazel").read_bytes()


def test_the_bill_of_materials_has_what_the_locks_pin() -> None:
    bill = json.loads(release.bill_of_materials(VERSION))
    found = {component["name"]: component for component in bill["components"]}
    assert found["torch"]["version"] == "2.13.0"
    assert all(component["properties"] for component in found.values())
    assert {"executorch", "transformers", "watchfiles"} <= {*found}


def test_another_version_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["release", "9.9.9", "--repository", "owner/rules"])
    monkeypatch.setattr(subprocess, "check_output", lambda command: b"")
    assert release.main() == 2
    assert f"toolchain/etbuild/version/__init__.py has version {VERSION}, not 9.9.9" in capsys.readouterr().err


def test_what_is_not_committed_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["release", VERSION, "--repository", "owner/rules"])
    monkeypatch.setattr(subprocess, "check_output", lambda command: b" M README.md")
    assert release.main() == 2
    assert "there are changes that are not committed" in capsys.readouterr().err


def test_no_directory_with_something_else_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    with pytest.raises(release.ReleaseError, match="holds something else than a release"):
        release.write(VERSION, "owner/rules", tmp_path)
    assert (tmp_path / "precious").exists()
