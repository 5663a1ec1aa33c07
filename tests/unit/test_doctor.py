"""`etbuild doctor`: what it finds on this machine, and what it says where something is missing or broken."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from etbuild.cli import main
from etkit.authoring import installation
from etplugins.guard import landlock

_IMPORTS = installation._IMPORTS


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The import of torch takes seconds: one test has it."""
    monkeypatch.setattr(installation, "_IMPORTS", "print('torch is here')")


def _found(capsys: pytest.CaptureFixture[str], cache: Path, code: int) -> dict[str, dict[str, str]]:
    assert main.main(["doctor", "--json", "--cache-dir", str(cache)]) == code
    return {
        finding["said"].split(" ")[0].rstrip(":"): finding
        for finding in json.loads(capsys.readouterr().out)["findings"]
    }


def test_a_machine_that_can_build(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = _found(capsys, tmp_path / "cache", 0)
    assert found["xnnpack"]["state"] == "good"
    assert found["torch"]["said"] == "torch is here"
    assert {"Python", "executorch", "portable", "bazelisk", str(tmp_path / "cache")} <= {*found}
    assert found["qualcomm"]["state"] == "absent"
    assert "QNN_SDK_ROOT" in found["qualcomm"]["advice"]
    assert main.main(["doctor", "--cache-dir", str(tmp_path / "cache")]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert last.startswith("ready to build for ")
    assert {"portable", "xnnpack"} <= {*last.partition(" for ")[2].split(", ")}
    assert "  ✓ xnnpack" in lines
    [folded] = [line for line in lines if "qualcomm" in line]
    assert folded.startswith("  - backend: ")
    assert "QNN_SDK_ROOT" not in "".join(lines)


def test_whether_the_kernel_refuses_undeclared_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landlock, "version", lambda: 7)
    found = _found(capsys, tmp_path / "cache", 0)
    assert found["the"]["said"] == "the kernel refuses to open them (Landlock 7)"
    monkeypatch.setattr(landlock, "version", lambda: 0)
    assert "this kernel has no Landlock" in _found(capsys, tmp_path / "cache", 0)["landlock"]["said"]
    monkeypatch.setenv(landlock.OFF, "1")
    assert "ETBUILD_NO_LANDLOCK is set" in _found(capsys, tmp_path / "cache", 0)["landlock"]["said"]


def test_what_is_absent_is_said_once_with_its_group(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = [
        installation.Finding("package", "good", "torch 2"),
        installation.Finding("extra", "absent", "vgf: needs a", "pip install a"),
        installation.Finding("extra", "absent", "watch: needs b", "pip install b"),
        installation.Finding("backend", "absent", "vgf: needs a", "pip install a"),
        installation.Finding("backend", "good", "portable"),
    ]
    head = "not here, and only needed by those who use it"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(installation, "findings", lambda cache: iter(found))
        assert main.main(["doctor", "--cache-dir", str(tmp_path)]) == 0
        said = capsys.readouterr().out
        assert f"{head}; `etbuild doctor --all` says what they need\n  - extra: watch\n  - backend: vgf\n" in said
        assert main.main(["doctor", "--all", "--cache-dir", str(tmp_path)]) == 0
        said = capsys.readouterr().out
        assert f"{head}\n  - extra watch: needs b: pip install b\n  - backend vgf: needs a: pip install a\n" in said
        assert main.main(["doctor", "--json", "--cache-dir", str(tmp_path)]) == 0
        assert len(json.loads(capsys.readouterr().out)["findings"]) == len(found)


def test_each_thing_is_shown_when_it_was_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def slow(cache: Path | None) -> Iterator[installation.Finding]:
        yield installation.Finding("package", "good", "torch 2")
        assert "torch 2" in capsys.readouterr().out
        yield installation.Finding("backend", "good", "portable")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(installation, "findings", slow)
        assert main.main(["doctor", "--cache-dir", str(tmp_path)]) == 0


def test_packages_of_other_releases_and_missing_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    version = metadata.version

    def other(name: str) -> str:
        if name == "safetensors":
            raise metadata.PackageNotFoundError(name)
        return "2.12.0" if name == "torch" else version(name)

    monkeypatch.setattr(metadata, "version", other)
    monkeypatch.setattr(installation, "_IMPORTS", "raise ImportError('GLIBC_2.28 not found')")
    assert main.main(["doctor", "--cache-dir", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "✗ torch 2.12.0 is installed, and etbuild needs ==2.13.0\n      pip install 'torch==2.13.0'\n" in said
    assert "✗ safetensors is not installed\n" in said
    assert said.endswith("\nnot ready: 3 of the things above are missing or broken\n")
    assert "cannot be imported: ImportError: GLIBC_2.28 not found" in said


def test_a_cache_that_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    found = _found(capsys, tmp_path / "file", 1)
    [bad] = [each for each in found.values() if each["state"] == "bad"]
    assert bad["about"] == "cache"


def test_torch_and_executorch_are_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "_IMPORTS", _IMPORTS)
    finding = installation._imports()
    assert finding.state == "good"
    assert "XnnpackBackend" in finding.said


def test_a_bazel_that_knows_no_version_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bazel").write_text("#!/bin/sh\necho bazel no_version\n")
    (tmp_path / "bazel").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = installation._build_system("bazel")
    assert (found.state, found.said) == ("good", f"bazel, which names no version: {tmp_path}/bazel")


def test_a_build_system_that_does_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "buck2").write_bytes(b"\x7fELF")
    (tmp_path / "buck2").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = _found(capsys, tmp_path / "cache", 0)
    assert found["buck2"]["state"] == "absent"
    assert "does not say its version" in found["buck2"]["said"]
