"""`etbuild runtime` takes ExecuTorch's C++ runtime out of a wheel, which may be for another machine."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from etbuild.cli.main import main

HEADER = "executorch/include/executorch/runtime/executor/program.h"
LIBRARY = "executorch/lib/libexecutorch.so"


def wheel(directory: Path, files: Mapping[str, str]) -> Path:
    with zipfile.ZipFile(directory / "executorch.whl", "w") as file:
        for name, text in files.items():
            file.writestr(name, text)
    return directory / "executorch.whl"


def unpack(path: Path, out: Path) -> int:
    include, library = out / "runtime.include", out / "libexecutorch.so"
    return main(["runtime", "--wheel", str(path), "--include", str(include), "--library", str(library)])


def test_headers_and_libraries(tmp_path: Path) -> None:
    path = wheel(tmp_path, {HEADER: "// a header", LIBRARY: "a library", "executorch/version.py": "version"})
    assert unpack(path, tmp_path) == 0
    found = [file for file in (tmp_path / "runtime.include").rglob("*") if file.is_file()]
    assert [file.read_text() for file in found] == ["// a header"]
    assert found[0].relative_to(tmp_path) == Path("runtime.include/executorch/runtime/executor/program.h")
    assert (tmp_path / "libexecutorch.so").read_text() == "a library"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({HEADER: ""}, "it has no executorch/lib/libexecutorch.so"),
        ({LIBRARY: ""}, "it has no executorch/include"),
        ({LIBRARY: "", "executorch/include/../../x.h": ""}, "is not below executorch/include"),
    ],
)
def test_other_wheels(files: dict[str, str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert unpack(wheel(tmp_path, files), tmp_path) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path.parent / "x.h").exists()


def test_no_wheel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "executorch.whl").write_text("not found")
    assert unpack(tmp_path / "executorch.whl", tmp_path) == 2
    assert "cannot read the wheel" in capsys.readouterr().err


def test_the_place_of_the_installed_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runtime"]) == 0
    assert (Path(capsys.readouterr().out.strip()) / "include/executorch").is_dir()
