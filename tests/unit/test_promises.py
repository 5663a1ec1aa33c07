"""What a release promises stays: its names are still there, and its files can be read.

`tests/golden/releases/X.Y.Z` has the names of each release, and what it made of the README's program: the build with a
lockfile, and the package.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from etbuild.cli import main
from etbuild.version import VERSION
from tools.reference import ROOT
from tools.reference.promises import names

GOLDEN = Path(__file__).parents[1] / "golden"
RELEASES = sorted((GOLDEN / "releases").iterdir(), key=lambda path: tuple(map(int, path.name.split("."))))
RETIRED: dict[str, str] = {}
"""Names of earlier releases that are gone, with the release whose warning said so."""


def test_the_names_of_this_release_are_listed(update_golden: bool) -> None:
    listed = GOLDEN / "releases" / VERSION / "names.txt"
    found = "".join(f"{name}\n" for name in names(ROOT))
    if update_golden:
        listed.write_text(found, "utf-8")
    assert listed.read_text("utf-8") == found, "is the change allowed by docs/promises.md? Then --update-golden"


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
def test_the_names_of_each_release_are_still_there(release: Path) -> None:
    kept = (release / "names.txt").read_text("utf-8").splitlines()
    assert {*kept} - {*names(ROOT)} - RETIRED.keys() == set()


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
@pytest.mark.parametrize(
    "command",
    [
        "validate net.yaml",
        "lock build build/net.lock.json",
        "explain build build",
        "diff build build --exit-code",
        "verify build",
        "verify net.oci",
        "ci-summary net.oci --before build",
        "delta net.oci net.oci",
        "sbom net.oci",
        "sizes build",
        "inspect build/net.pte",
    ],
)
def test_the_files_of_each_release_can_be_read(
    command: str, release: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(release)
    assert main.main(command.split()) == 0, capsys.readouterr().err
