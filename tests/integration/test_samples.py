"""One list of samples is the example input, the calibration, what the build compares, and what tests measure."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy
import pytest
import torch

from etbuild.cli import main

EXAMPLE = Path(__file__).parents[2] / "examples" / "samples"
MANIFEST = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
samples: {inputs: {files: "inputs/*.npy"}}
defaults: {partitioners: [xnnpack]}
methods:
  forward:
    samples: inputs
"""
MODEL = """\
import torch


def create():
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
"""
QUANTIZED = "    quantize: {pt2e: {quantizers: [xnnpack], calibration: samples}}\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A model with four samples."""
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "inputs").mkdir()
    generator = torch.Generator().manual_seed(0)
    for number in range(4):
        numpy.save(tmp_path / "inputs" / f"{number}.npy", torch.randn((1, 8), generator=generator).numpy())
    return tmp_path


def build(project: Path, manifest: str) -> int:
    (project / "net.yaml").write_text(manifest)
    return main.main(["build", str(project / "net.yaml"), "-o", str(project), "--cache-dir", str(project / "cache")])


def test_a_build_compares_and_calibrates_on_samples(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert build(project, MANIFEST + QUANTIZED) == 0
    assert "dB in the worst of 4 samples" in capfd.readouterr().err
    index = json.loads((project / "net.index.json").read_text())
    assert {f"inputs/{number}.npy" for number in range(4)} <= index["inputs"]["data"].keys()
    before = (project / "net.pte").read_bytes()
    numpy.save(project / "inputs" / "4.npy", numpy.full((1, 8), 50.0, numpy.float32))
    assert build(project, MANIFEST + QUANTIZED) == 0
    assert (project / "net.pte").read_bytes() != before, "a new sample gives other ranges"
    assert build(project, MANIFEST.replace('npy"', 'npy", count: 4') + QUANTIZED) == 0
    assert (project / "net.pte").read_bytes() == before


def test_a_method_without_quantization_is_compared_on_samples(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert build(project, MANIFEST) == 0
    assert "note:" not in capfd.readouterr().err
    numpy.save(project / "inputs" / "2.npy", numpy.ones((1, 9), numpy.float32))
    assert build(project, MANIFEST) == 2
    said = "`inputs/2.npy` does not fit the method: input 0 is float32 [1, 9], not float32 [1, 8]"
    assert said in capfd.readouterr().err


def test_samples_beyond_the_work_are_left_out_with_a_note(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert build(project, MANIFEST + "checks: {compare: {work: 1000}}\n") == 0
    assert "samples: `checks.compare.work` allows no more" in capfd.readouterr().err


def test_equal_samples_are_no_calibration(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for number in range(4):
        numpy.save(project / "inputs" / f"{number}.npy", numpy.full((1, 8), 0.5, numpy.float32))
    assert build(project, MANIFEST + QUANTIZED) == 2
    assert "`inputs/*.npy` has nothing but 0.5 in each input" in capfd.readouterr().err


def test_a_factory_that_lists_a_folder_is_told_about_samples(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (project / "batches.py").write_text(
        "from pathlib import Path\n\ndef read():\n    return [*(Path(__file__).parent / 'inputs').glob('*.npy')]\n"
    )
    manifest = MANIFEST.replace("samples: inputs", "example_inputs: [{shape: [1, 8]}]")
    quantized = QUANTIZED.replace("calibration: samples", 'calibration: {factory: "batches:read"}')
    assert build(project, manifest + quantized) == 1
    said = capfd.readouterr().err
    assert "lists the directory" in said
    for way in ("`--data`", "`samples: {NAME: {files:", "`calibration: {file: FILE}`"):
        assert way in said


def test_the_example_is_measured_on_its_samples(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "shapes"
    shutil.copytree(EXAMPLE, folder)
    manifest = folder / "shapes.yaml"
    cache = ["--cache-dir", str(tmp_path / "cache")]
    assert main.main(["test", str(manifest), "--json", *cache]) == 0
    tests = {each["name"]: each for each in json.loads(capfd.readouterr().out)["tests"]}
    assert tests["checks/agreement/top1"]["measured"] == {"mean": 1.0, "worst": 1.0}
    assert tests["checks/metric/metrics:accuracy"]["measured"]["value"] == 1.0
    assert {"forward/samples", "checks/agreement/cosine"} <= tests.keys()
    text = manifest.read_text().replace("cosine, min_worst: 0.99", "error, max_worst: 0.000001")
    manifest.write_text(text)
    assert main.main(["test", str(manifest), "--filter", "checks/agreement/*", *cache]) == 3
    assert "`max_worst` is 1e-06" in capfd.readouterr().out
