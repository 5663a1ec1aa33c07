"""Bills of materials: what they list, and that equal builds have equal ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from etbuild.cli import main
from tests.helpers.builds import write_build
from tests.unit.indexes import sha256

METADATA = {"version": "1.2", "license": "MIT", "weights_licenses": {"net.safetensors": "CC-BY-4.0"}}
Run = Callable[..., str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run_verb(*arguments: object, expect: int = 0) -> str:
        code = main.main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert code == expect, captured.err
        return captured.out if expect == 0 else captured.err

    return run_verb


@pytest.fixture
def index(tmp_path: Path) -> Path:
    return write_build(tmp_path / "build", "net", manifest={"metadata": METADATA})


def test_a_bill_lists_files_weights_sources_and_toolchain(index: Path, run: Run) -> None:
    bill = json.loads(run("sbom", index))
    assert bill["metadata"]["component"] == {
        "bom-ref": "program/net",
        "licenses": [{"license": {"id": "MIT"}}],
        "name": "net",
        "type": "machine-learning-model",
        "version": "1.2",
    }
    assert "timestamp" not in bill["metadata"]
    found: dict[str, Any] = {each["bom-ref"]: each for each in bill["components"]}
    assert found["data/net.safetensors"]["licenses"] == [{"license": {"id": "CC-BY-4.0"}}]
    assert found["data/net.safetensors"]["hashes"] == [{"alg": "SHA-256", "content": sha256("net.safetensors")}]
    assert found["source/model.py"]["hashes"] == [{"alg": "SHA-256", "content": sha256("model")}]
    assert {"artifact/net.pte", "artifact/net.weights.ptd", "package/rules-executorch"} <= found.keys()
    assert found["package/executorch"]["purl"] == "pkg:pypi/executorch@1.5.1"
    if version("executorch") == "1.5.1":
        assert found["package/executorch"]["licenses"] == [{"license": {"id": "BSD-3-Clause"}}]
    assert "licenses" not in found["package/rules-executorch"]  # the version of the tests is another one


def test_a_bill_fits_the_schema(index: Path, run: Run) -> None:
    pytest.importorskip("referencing")
    bill = json.loads(run("sbom", index))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    try:
        problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(bill))
    except ImportError:  # the validator has requirements of its own
        pytest.skip("the validator of the library is not installed")
    assert problem is None


def test_equal_builds_have_equal_bills(index: Path, run: Run, tmp_path: Path) -> None:
    run("package", index, "-o", tmp_path / "layout")
    run("sbom", tmp_path / "layout", "-o", tmp_path / "bill.json")
    assert (tmp_path / "bill.json").read_text() == run("sbom", index)


def test_one_of_several_programs_is_named(index: Path, run: Run) -> None:
    write_build(index.parent, "other")
    assert "name one with --program: net, other" in run("sbom", index.parent, expect=2)
    assert json.loads(run("sbom", index.parent, "--program", "other"))["metadata"]["component"]["name"] == "other"
