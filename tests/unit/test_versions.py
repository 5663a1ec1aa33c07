"""Which releases of ExecuTorch are accepted."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomllib

from etbuild import releases
from etbuild.errors import BuildError

REPOSITORY = Path(__file__).parents[2]


def install(release: str, monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """Makes `importlib.metadata` see a release."""
    metadata = directory / f"executorch-{release}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: executorch\nVersion: {release}\n")
    monkeypatch.syspath_prepend(directory)


@pytest.mark.parametrize("release", releases.SUPPORTED)
def test_supported_releases_are_accepted_without_a_message(
    release: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(release, monkeypatch, tmp_path)
    releases.check()
    assert capsys.readouterr() == ("", "")


def test_an_older_release_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install("1.3.1", monkeypatch, tmp_path)
    with pytest.raises(BuildError, match=r"ExecuTorch 1\.3\.1 is too old(.|\n)*supported: 1\.4\.1, 1\.5\.1"):
        releases.check()


@pytest.mark.parametrize("release", ["1.5.2", "1.10.0"])
def test_an_unknown_release_is_tried(
    release: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(release, monkeypatch, tmp_path)
    releases.check()
    assert f"note: ExecuTorch {release} is untested (tested: " in capsys.readouterr().err
    assert not releases.fitting()


def test_the_package_asks_for_these_releases() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    oldest, newest = releases.SUPPORTED[0], releases.SUPPORTED[-1]
    assert f"executorch>={oldest},!=1.5.0,<={newest}" in project["dependencies"]
    assert releases.WRITTEN_FOR["executorch"] == newest
    for release in releases.SUPPORTED:
        name = "requirements" if release == newest else f"requirements-executorch-{release}"
        assert f"\nexecutorch=={release} " in (REPOSITORY / f"toolchain/{name}.lock").read_text()
