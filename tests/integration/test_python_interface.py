"""The interface for notebooks and services, and `etbuild run`, which people use instead."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy
import pytest
import torch
from safetensors.torch import load_file

import etbuild
from etbuild.cli import main
from etbuild.errors import BuildError, CheckError, DocumentPath, EtbuildError, InputError, Position
from etbuild.processes.forked import ChildFailed
from etkit.local import request
from etkit.running.verbs import run
from tests.helpers import commands
from tests.helpers.manifests import one_method

from .tested_net import MANIFEST, MODEL


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
    assert built.metrics["program_bytes"] == sum(
        path.stat().st_size for path in built.artifacts if path.suffix == ".pte"
    )
    assert built.metrics["forward/memory_bytes"] == sum(built.report["methods"]["forward"]["memory"])
    assert 0 <= built.metrics["forward/delegated"] <= 1
    assert built.program.signature("count")["inputs"][0] == {"dtype": "float32", "shape": [2, 8], "dynamic": False}


def test_the_command_makes_the_same_bytes(model: etbuild.Model, built: etbuild.Built, tmp_path: Path) -> None:
    manifest = model._request.manifest
    done = commands.etbuild("build", manifest, "--set=seed=3", "--no-cache", "-o", tmp_path)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in built.artifacts] == ["net.pte", "net.report.json", "net.index.json"]
    for path in built.artifacts:
        assert path.read_bytes() == (tmp_path / path.name).read_bytes()


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
    with pytest.raises(InputError, match="takes 1 input, not 2"):
        built.program.method("forward")(torch.ones(2, 8), torch.ones(2, 8))
    with pytest.raises(InputError, match="no method `decode`"):
        model.example_inputs("decode")


def places(failed: pytest.ExceptionInfo[EtbuildError], text: str) -> list[tuple[DocumentPath | None, str]]:
    """For each problem: its path, and the text of the manifest from its position up to the end of the line."""
    lines, found = text.splitlines(), []
    for problem in failed.value.problems:
        at = problem.position
        assert at is not None
        assert at == Position("net.yaml", at.line, at.column)
        found.append((problem.path, lines[at.line - 1][at.column - 1 :]))
    return found


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("net.yaml").write_text(MANIFEST)
    Path("model.py").write_text(MODEL)
    return tmp_path


def test_failed_checks_keep_their_places_and_stay_apart(here: Path) -> None:
    text = f"{MANIFEST}checks:\n  max_program_bytes: 10\n  max_memory_bytes: 1\n"
    Path("net.yaml").write_text(text)
    with pytest.raises(CheckError) as failed:
        etbuild.load("net.yaml").build("out", cache=False)
    program, *methods = places(failed, text)
    assert program == (("checks", "max_program_bytes"), "10")
    assert methods == [(("checks", "max_memory_bytes"), "1")] * 2
    hint = "`etbuild diff` shows what grew; if this is intended, raise the limit"
    assert failed.value.problems[0].hint == hint


def test_errors_of_a_model_keep_their_places(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ETBUILD_CACHE_DIR", "model.py")
    Path("model.py").write_text(MODEL.replace("x.sum(0)", "x.sum(2)"))
    with pytest.raises(BuildError, match=r"model\.py:\d+, in count: IndexError") as failed:
        etbuild.load("net.yaml").build("out")
    assert places(failed, MANIFEST) == [
        (("methods", "count", "example_inputs"), "example_inputs: [{shape: [2, 8], fill: ones}]")
    ]
    assert capsys.readouterr().err.count("note: building without a cache: ") == 1
    Path("model.py").write_text("import os\nos._exit(0)\n")
    with pytest.raises(BuildError, match="exit code 0 in the stage `create the module`") as ended:
        etbuild.load("net.yaml").build("out", cache=False)
    assert ended.value.problems[0].hint == "does the model, or a library that it uses, call `os._exit`?"


def test_errors_of_a_manifest_keep_their_places_hints_and_number(here: Path) -> None:
    model, text = etbuild.load("net.yaml"), MANIFEST.replace("model:create", "mode:create")
    Path("net.yaml").write_text(text)
    with pytest.raises(InputError, match="the module `mode` is not among the declared sources") as failed:
        model.build("out")
    assert places(failed, text) == [(("model", "factory"), '"mode:create"}')]
    assert failed.value.problems[0].hint == "there is no mode.py"
    text = MANIFEST.replace("partitioners", "partitioner") + "checkz: {}\n"
    Path("net.yaml").write_text(text)
    with pytest.raises(InputError) as failed:
        model.build("out")
    assert [problem.message for problem in failed.value.problems] == [
        "unknown key `partitioner`",
        "unknown key `checkz`",
    ]
    with pytest.raises(InputError) as loaded:
        etbuild.load("net.yaml")
    assert failed.value.problems == loaded.value.problems


def test_a_bug_of_the_driver_keeps_its_traceback() -> None:
    with pytest.raises(ChildFailed, match=r"(?s)Traceback.*AttributeError: 'str' object has no attribute 'manifest'"):
        request.ask("no request")


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


WANDERS = """
import os, tempfile, torch

class Net(torch.nn.Module):
    def forward(self, x):
        {does}
        from other import double
        return double(x)

class Fails(torch.nn.Module):
    def forward(self, x):
        {does}
        raise ValueError("of mine")
"""


@pytest.mark.parametrize(
    "does", ["os.chdir('/')", "place = tempfile.mkdtemp(); os.chdir(place); os.rmdir(place)"], ids=["goes", "removes"]
)
def test_a_forward_that_changes_the_directory(does: str, here: Path) -> None:
    Path("model.py").write_text(WANDERS.format(does=does))
    Path("other.py").write_text("def double(x):\n    return x + x\n")
    Path("net.yaml").write_text(one_method().replace("create", "Net"))
    assert etbuild.load("net.yaml").exported_program("forward").graph_signature.user_outputs == ("add",)
    assert Path.cwd() == here
    Path("net.yaml").write_text(one_method().replace("create", "Fails"))
    with pytest.raises(BuildError, match=r"failed at model\.py:13, in forward: ValueError: of mine"):
        etbuild.load("net.yaml").exported_program("forward")
    assert Path.cwd() == here


def test_names_and_paths_of_data_may_have_any_characters(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("-a=b").mkdir()
    for name in ("c=d", "-e"):
        Path("-a=b", name).write_text("data")
    model = etbuild.load("net.yaml", data={"f=g": "-a=b", "-h": "-a=b/-e"}, roots=["-a=b"])
    built = model.build("-out", cache_directory="-cache")
    assert sorted(built.index["inputs"]["data"]) == ["-h", "f=g/-e", "f=g/c=d"]
    assert (built.directory, built.artifacts[0]) == (Path("-out"), Path("-out/net.pte"))
    assert Path("-cache").is_dir()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")], ids=str)
def test_numbers_that_json_does_not_have_are_texts(number: float) -> None:
    for value in (number, torch.tensor([number])):
        shown = json.dumps(run._as_json(value), allow_nan=False)
        assert f'"{number}"' in shown


def test_the_page_of_a_program(built: etbuild.Built, tmp_path: Path) -> None:
    page = built.program.page(against=built.program)
    page.write(tmp_path / "net.html")
    assert (tmp_path / "net.html").read_bytes().startswith(b"<!doctype html>")
    assert "<title>net.pte" in page.html.decode()
    # A frame that cannot read the notebook, whose text ends where the page ends.
    [source] = re.findall(r'<iframe sandbox="allow-scripts" srcdoc="([^"]*)"', built._repr_html_())
    assert html.unescape(source) == built.program.page().html.decode()


def test_a_program_loads_without_messages_of_libraries(built: etbuild.Built) -> None:
    code = f"""
import torch, etbuild
program = etbuild.open_program({str(built.directory / "net.pte")!r})
print(len(program.method("forward")(torch.zeros(2, 8))))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_programs_in_several_threads_keep_standard_error(built: etbuild.Built) -> None:
    code = f"""
import threading, torch, etbuild, logging, sys
def work(program):
    for _ in range(30):
        program.method("forward")(torch.zeros(2, 8))
        program.reset()
programs = [etbuild.open_program({str(built.directory / "net.pte")!r}) for _ in range(3)]
threads = [threading.Thread(target=work, args=(each,)) for each in programs]
[each.start() for each in threads]
[each.join() for each in threads]
print(logging.root.manager.disable)
print("still here", file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr.splitlines()[-1]) == ("0\n", "still here")


class _Scaled(torch.nn.Module):
    """A module of this process: no source of it is declared."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = torch.nn.Linear(8, 3), torch.nn.Buffer(torch.zeros(1))
        self.drop = torch.nn.Dropout(0.9)

    def forward(self, x: torch.Tensor, *, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.drop(self.layer(x)) * scale + shift + self.calls


def test_a_module_in_memory_is_built(tmp_path: Path) -> None:
    module, x = _Scaled(), torch.rand(2, 8)
    module.layer.eval()
    named = {"scale": torch.full((3,), 2.0), "shift": torch.rand(3)}
    shapes = {"x": {0: torch.export.Dim("rows", max=5)}, "scale": {}, "shift": {}}
    build = partial(etbuild.build, module, (x,), keywords=named, dynamic_shapes=shapes, name="scaled")
    built = build(directory=tmp_path, cache_directory=tmp_path / "cache")
    assert [path.name for path in built.artifacts] == ["scaled.pte", "scaled.report.json", "scaled.index.json"]
    assert (module.training, module.layer.training, module.calls.item()) == (True, False, 0)
    more = torch.rand(5, 8)
    (output,) = built.program.method("forward")(more, named["shift"], named["scale"])
    with torch.no_grad():
        assert torch.allclose(torch.as_tensor(output), module.layer(more) * 2 + named["shift"] + 1, atol=1e-5)
    again = build(cache_directory=tmp_path / "cache")
    assert again.key == built.key


def test_a_program_that_is_not_the_module_in_memory_is_refused(tmp_path: Path) -> None:
    class Branching(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if torch.compiler.is_exporting() else x + 2

    with pytest.raises(BuildError, match="computes something else than the module on the given inputs: the output"):
        etbuild.build(Branching(), (torch.zeros(3),), tmp_path, backend=None)
    with pytest.raises(BuildError, match=r"torch\.export does not accept the module: "):
        etbuild.build(Branching(), (torch.zeros(3), 1), tmp_path)
