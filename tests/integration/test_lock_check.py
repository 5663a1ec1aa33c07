"""`etbuild lock --check` builds manifests, and compares each with its lockfile."""

from __future__ import annotations

from pathlib import Path

import pytest

from etbuild.cli import main

from .conftest import MANIFEST, MODEL


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "models"
    folder.mkdir()
    for name in ("net", "other"):
        (folder / f"{name}.yaml").write_text(MANIFEST.replace("name: net", f"name: {name}"))
    (folder / "model.py").write_text(MODEL)
    return folder


def test_programs_as_locked_and_others(models: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.main(["lock", "--check", "models"]) == 2
    assert "`etbuild lock INDEX LOCK --update` writes one" in capfd.readouterr().err
    assert main.main(["build", "models/net.yaml", "-o", "out"]) == 0
    (models / "locks").mkdir()
    assert main.main(["lock", "out/net.index.json", "models/locks/net.lock.json", "--update"]) == 0
    capfd.readouterr()
    assert main.main(["lock", "--check", "models"]) == 0
    assert capfd.readouterr().out == "1 program as locked\n"
    assert main.main(["lock", "--check", "models/other.yaml"]) == 2
    assert "models/other.yaml: there is no lockfile other.lock.json beside it or in `locks`" in capfd.readouterr().err
    (models / "model.py").write_text(MODEL.replace("relu", "sigmoid"))
    assert main.main(["lock", "--check", "models"]) == 3
    said = capfd.readouterr().err
    assert "net.lock.json: the program differs from the lockfile" in said
    assert "etbuild build models/net.yaml -o out && etbuild lock out/net.index.json models/locks/net.lock.json" in said


def test_arguments_that_do_not_go_together(models: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.main(["lock", "--check", "--update", "models"]) == 2
    assert "leave one of them out" in capfd.readouterr().err
    assert main.main(["lock", "models"]) == 2
    assert "expected an index and one lockfile" in capfd.readouterr().err
