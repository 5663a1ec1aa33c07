"""The interface for notebooks and services, and `etbuild run`, which people use instead."""

from __future__ import annotations

import json
from pathlib import Path

import numpy
import pytest
import torch
from safetensors.torch import load_file

import etbuild
from etbuild.cli import main, run
from etbuild.errors import CheckError, InputError

from .test_program_tests import MANIFEST, MODEL


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> etbuild.Model:
    directory = tmp_path_factory.mktemp("interface")
    (directory / "net.yaml").write_text(MANIFEST + "parameters: {seed: {type: int, default: 0}}\n")
    text = (directory / "net.yaml").read_text()
    (directory / "net.yaml").write_text(text.replace('create"}', 'create", seed: {parameter: seed}}'))
    (directory / "model.py").write_text(MODEL)
    return etbuild.load(directory / "net.yaml", parameters={"seed": 3})


@pytest.fixture(scope="module")
def built(model: etbuild.Model, tmp_path_factory: pytest.TempPathFactory) -> etbuild.Built:
    return model.build(tmp_path_factory.mktemp("out"), cache=False)


def test_a_model_is_planned_built_and_run(model: etbuild.Model, built: etbuild.Built) -> None:
    assert model.methods == ["count", "forward"]
    assert model.plan()["model"]["seed"] == 3
    inputs = model.example_inputs("forward")
    (output,) = built.program.method("forward")(*inputs)
    expected = model.exported_program("forward").module()(*inputs)
    assert torch.allclose(torch.as_tensor(output), expected, atol=1e-5)
    assert sorted(built.report["methods"]) == built.program.methods == ["count", "forward"]
    assert built.index["key"] == built.key
    assert built.program.signature("count")["inputs"][0] == {"dtype": "float32", "shape": [2, 8], "dynamic": False}


def test_a_program_keeps_its_state_until_it_is_reset(built: etbuild.Built) -> None:
    count, ones = built.program.method("count"), torch.ones(2, 8)
    assert [float(count(ones)[0].max()) for _ in range(2)] == [4.0, 8.0]  # type: ignore[union-attr]
    built.program.reset()
    assert float(count(ones)[0].max()) == 4.0  # type: ignore[union-attr]


def test_wrong_calls_say_what_the_program_takes(model: etbuild.Model, built: etbuild.Built, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean `forward`"):
        built.program.method("forwrad")
    with pytest.raises(InputError, match=r"has the shape \[9, 8\], and the program takes at most \[4, 8\]"):
        built.program.method("forward")(torch.ones(9, 8))
    with pytest.raises(InputError, match="is int64, and the program takes float32"):
        built.program.method("forward")(torch.ones(2, 8, dtype=torch.int64))
    with pytest.raises(InputError, match="takes 1 inputs, not 2"):
        built.program.method("forward")(torch.ones(2, 8), torch.ones(2, 8))
    with pytest.raises(InputError, match="no method `decode`"):
        model.example_inputs("decode")
    (tmp_path / "net.yaml").write_text(MANIFEST + "checks: {max_program_bytes: 10}\n")
    (tmp_path / "model.py").write_text(MODEL)
    with pytest.raises(CheckError, match=r"net\.yaml:.*max_program_bytes"):
        etbuild.load(tmp_path / "net.yaml").build(tmp_path / "out", cache=False)


def test_the_command_runs_a_method_on_json_and_on_files(
    built: etbuild.Built, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = str(built.directory / "net.pte")
    numpy.save(tmp_path / "x.npy", numpy.ones((2, 8), dtype=numpy.float32))
    assert main.main(["run", program, "count", str(tmp_path / "x.npy"), "--json"]) == 0
    sums, largest, positive = json.loads(capfd.readouterr().out)
    assert sums == {"dtype": "float32", "shape": [8], "values": [4.0] * 8}
    assert (largest["dtype"], positive["values"][0][0]) == ("int64", True)
    written = tmp_path / "out.safetensors"
    row = json.dumps([[1.0] * 8] * 2)
    assert main.main(["run", program, "forward", row, "-o", str(written)]) == 0
    assert load_file(written)["output_0"].shape == (2, 8)
    assert main.main(["run", program, "forward"]) == 0
    assert capfd.readouterr().out.startswith("net.pte forward([4, 8])\nfloat32 [4, 8]\ntensor(")
    for arguments, said in (
        (["forward", "[1, "], "not an input"),
        (["forwards"], "did you mean `forward`"),
        (["forward", json.dumps([[1.0] * 8] * 9)], "has the shape [9, 8]"),
        (["forward", "none.npy"], "no such file"),
    ):
        assert main.main(["run", program, *arguments]) == 2
        assert said in capfd.readouterr().err


def test_a_name_that_begins_with_a_dash_is_no_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("-net.yaml").write_text(MANIFEST)
    with pytest.raises(InputError, match=r"-net\.yaml:.* the module `model` is not among the declared sources"):
        etbuild.load("-net.yaml").build("-out")


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")], ids=str)
def test_numbers_that_json_does_not_have_are_texts(number: float) -> None:
    for value in (number, torch.tensor([number])):
        shown = json.dumps(run._as_json(value), allow_nan=False)
        assert f'"{number}"' in shown
