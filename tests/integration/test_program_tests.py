"""`etbuild test`: each kind of fault is found and named, and a right program passes."""

from __future__ import annotations

import json
import re
import textwrap
import xml.etree.ElementTree as ET
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy
import pytest
import torch
from safetensors.torch import save_file

from etbuild.cli import main
from etbuild.errors import InputError
from etbuild.model.tensor_files import read_tensors
from tests.helpers.snippets import snippets

from .tested_net import MANIFEST, MODEL


@dataclass
class Outcome:
    """The results of a command, by the name of the test."""

    code: int
    states: dict[str, str]
    details: dict[str, str]
    err: str

    @property
    def failed(self) -> list[str]:
        return [name for name, state in self.states.items() if state == "failed"]


@pytest.fixture
def project(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Writes a manifest and sources, and tests the program: `project(MANIFEST, model=MODEL)`."""

    def run(manifest: str = MANIFEST, *arguments: str, model: str = MODEL, **sources: str) -> Outcome:
        (tmp_path / "net.yaml").write_text(manifest, "utf-8")
        for name, content in {"model": model, **sources}.items():
            (tmp_path / f"{name}.py").write_text(textwrap.dedent(content), "utf-8")
        capfd.readouterr()
        cache = ("--cache-dir", str(tmp_path / "cache"))
        code = main.main(["test", str(tmp_path / "net.yaml"), *cache, "--json", *arguments])
        captured = capfd.readouterr()
        found = json.loads(captured.out)["tests"] if captured.out else []
        states, details = ({each["name"]: each[key] for each in found} for key in ("state", "detail"))
        return Outcome(code, states, details, captured.err)

    return run


def test_a_right_program_passes_on_example_random_and_own_inputs(
    project: Callable[..., Outcome], tmp_path: Path
) -> None:
    generator = torch.Generator().manual_seed(1)
    numpy.save(tmp_path / "x.npy", torch.randn((3, 8), generator=generator).numpy())
    save_file({"x": torch.randn((2, 8), generator=generator)}, tmp_path / "x.safetensors")
    (tmp_path / "x.txt").write_text("1 2 3 4 5 6 7 8")
    tests = """\
tests:
  random: 2
  cases:
    array: {method: forward, inputs: [{file: x.npy}]}
    loaded: {method: forward, inputs: [{file: x.txt, loader: "loading:numbers"}]}
    counted:
      calls:
        - {method: count, inputs: [{file: x.safetensors, key: x}]}
        - {method: count, inputs: [{shape: [2, 8], fill: ones}]}
executorch: {emit_mutable_buffer_names: true}
"""
    loading = """\
        import torch

        def numbers(path):
            return torch.tensor([[float(number) for number in path.read_text().split()]])
        """
    tested = project(MANIFEST + tests, "--junit", str(tmp_path / "results.xml"), loading=loading)
    assert tested.code == 0, tested
    assert list(tested.states) == [
        *("count/example", "count/example-twice", "count/random-1", "count/random-2"),
        *("forward/example", "forward/example-twice"),
        *("forward/smallest", "forward/largest", "forward/random-1", "forward/random-2"),
        *("cases/array", "cases/loaded", "cases/counted"),
    ]
    suite = ET.parse(tmp_path / "results.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures")) == ("13", "0")
    assert suite[0].attrib["classname"] == "net.count"


LAYOUTS = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.linear = torch.nn.Conv2d(3, 6, 3, groups=3), torch.nn.Linear(5, 4)

    def quantized(self, x):
        return self.conv(x + 1), self.linear(x), x * 2

    def image(self, x):
        return self.conv(x)

    def view(self, x):
        return x.sum(0), x.contiguous().view(-1)

def create():
    return Net()

def channels_last():
    return torch.randn(2, 3, 5, 5).to(memory_format=torch.channels_last)

def volume():
    return torch.randn(1, 2, 3, 4, 5).to(memory_format=torch.channels_last_3d)

def permuted():
    return torch.randn(2, 3, 4).permute(2, 0, 1)

def column():
    return torch.randn(1, 4).t()

def photo():
    return torch.randn(5, 5, 3).permute(2, 0, 1)[None]

def part():
    return torch.randn(6, 3, 4)[::2]
"""


def test_inputs_of_other_layouts(project: Callable[..., Outcome]) -> None:
    """A program takes an input in the format channels_last if the example has it, and any other one row by row."""
    methods = {"channels_last": "image", "photo": "image", "permuted": "view", "part": "view", "column": "view"}
    methods["volume"] = "view"
    each = [
        f'{name}: {{entry: {entry}, example_inputs: [{{factory: "model:{name}"}}]}}' for name, entry in methods.items()
    ]
    each.append(
        'quantized: {example_inputs: [{factory: "model:channels_last"}], partitioners: [xnnpack], quantize: '
        "{pt2e: {quantizers: [{backend: xnnpack, options: {per_channel: true}}], calibration: example_inputs}}}"
    )
    head = MANIFEST[: MANIFEST.index("defaults")]
    tested = project(f"{head}methods: {{{', '.join(each)}}}\n", model=LAYOUTS)
    assert tested.code == 0, tested


EDGE_PASS = """\
from executorch.exir.dialects._ops import ops
from executorch.exir.pass_base import ExportPass, PassResult


class Wrong(ExportPass):
    def call(self, graph_module):
        for node in graph_module.graph.nodes:
            if node.op == "call_function" and "{operator}" in str(node.target):
                {change}
        graph_module.recompile()
        return PassResult(graph_module, True)


def wrong(method, program):
    return [Wrong()]
"""


def shown(start: str) -> str:
    """Returns the failed test that docs/testing.md shows and that begins so."""
    [found] = [
        each.text for each in snippets() if each.page == "docs/testing.md" and each.text.startswith(f"failed   {start}")
    ]
    return found


def without_space(text: str) -> str:
    """Returns a text with one space in place of each indentation."""
    return " ".join(text.split())


def edge_pass(operator: str, change: str) -> str:
    return EDGE_PASS.replace("{operator}", operator).replace("{change}", change)


def test_an_operator_that_lowering_changes_is_named_with_its_line(project: Callable[..., Outcome]) -> None:
    wrong = edge_pass("aten.tanh", "node.target = ops.edge.aten.sigmoid.default")
    manifest = MANIFEST.replace("[xnnpack]", "[]") + 'passes: {edge: ["wrong:wrong"]}\n'
    manifest += "checks: {compare: {leave_out: the build would find it}}\n"
    tested = project(manifest, "--filter", "forward/*", wrong=wrong)
    assert tested.code == 3
    assert "forward/example" in tested.failed
    detail = tested.details["forward/example"]
    assert "is `aten.tanh.default`" in detail
    assert "at model.py:10, in forward: `return x + torch.tanh(self.linear(x))`" in detail
    assert "elements are wrong; the worst:" in detail
    assert without_space(shown("forward/example  the output")) == without_space(f"failed forward/example {detail}")


def test_a_tolerance_that_rounding_breaks_is_named_and_the_export_is_not_blamed(
    project: Callable[..., Outcome], tmp_path: Path
) -> None:
    numpy.save(tmp_path / "several.npy", numpy.zeros((5, 2, 7), "float32"))
    tests = """\
tests:
  tolerance: {rtol: 1e-9}
  cases:
    several: {method: forward, inputs: [{file: several.npy}]}
"""
    tested = project(MANIFEST + tests, "--filter", "*e*")
    assert tested.code == 3
    where = f"{tmp_path / 'net.yaml'}:{1 + (MANIFEST + tests).splitlines().index('  tolerance: {rtol: 1e-9}')}"
    said = tested.details["forward/example"]
    assert f"the limit is `tests.tolerance` at {where}:3; by the default tolerance" in said
    assert "SQNR" in said
    assert "exported graph" not in said
    assert len(said.splitlines()) <= 6
    inputs = tested.details["cases/several"]
    assert inputs.startswith(f"{tmp_path / 'net.yaml'}:")
    assert "tests.cases.several.inputs[0]: running `forward` failed" in inputs
    assert "the inputs are float32 [5, 2, 7], and the example inputs are float32 [2, 8]" in inputs


NO_TANH = """\
    import torch

    def wrong(method, program):
        for node in program.graph.nodes:
            if "tanh" in str(node.target):
                node.target = torch.ops.aten.sigmoid.default
        program.graph_module.recompile()
        return program
    """


def test_a_wrong_aten_pass_is_told_from_wrong_lowering(project: Callable[..., Outcome]) -> None:
    text = MANIFEST + 'passes: {aten: ["wrong:wrong"]}\nchecks: {compare: {leave_out: the build would find it}}\n'
    tested = project(text, "--filter", "forward/example", wrong=NO_TANH)
    assert tested.code == 3
    assert "the passes of `passes.aten` change the results of `forward`" in tested.details["forward/example"]


def test_a_program_of_other_weights_fails_and_its_manifest_is_not_blamed(
    project: Callable[..., Outcome], tmp_path: Path
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "other.yaml").write_text(MANIFEST.replace('create"', 'create", seed: 7'))
    assert main.main(["build", str(tmp_path / "other.yaml"), "--no-cache", "-o", str(tmp_path / "other")]) == 0
    tested = project(MANIFEST, "--program", str(tmp_path / "other/net.pte"), "--filter", "forward/example")
    assert tested.code == 3
    detail = tested.details["forward/example"]
    assert "lowered again from this manifest for the sizes of this call only, is right" in detail
    assert "or the program was built from other weights" in detail


UNLISTED = """\
tests:
  cases:
    loaded: {method: forward, inputs: [{file: x.txt, loader: "loading:numbers"}]}
"""


def test_what_a_test_of_a_build_rule_does_not_list_is_named_with_its_attribute(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the arguments of `executorch_program_test`, which declares all files."""
    (tmp_path / "net.yaml").write_text(MANIFEST)
    (tmp_path / "model.py").write_text(textwrap.dedent(MODEL))
    runfiles = tmp_path / "net_test.runfiles"
    runfiles.mkdir()
    (tmp_path / "WORKSPACE").touch()  # a test of Bazel runs below one
    (runfiles / "loading.py").write_text("def numbers(path): ...\n")
    (runfiles / "x.txt").write_text("1")
    assert main.main(["build", str(tmp_path / "net.yaml"), "--no-cache", "-o", str(tmp_path)]) == 0
    manifest = runfiles / "models/net.yaml"
    manifest.parent.mkdir()
    manifest.write_text(MANIFEST + UNLISTED)
    names = ["--manifest-name=models/net.yaml", "--program-name=net", f"--program={tmp_path}/net.pte"]
    rule = ["--rule-target=//models:net_test", "--rule-command=bazel run //:etbuild --"]
    model, data = f"--source=model.py={tmp_path}/model.py", f"--data=x.txt={runfiles}/x.txt"
    place = "tests.cases.loaded.inputs[0]"
    for files, said, attributes in (
        ([model, data], f"{place}.loader: the module `loading` is not among the declared sources", "`srcs` or `deps`"),
        ([model, f"--source=loading.py={runfiles}/loading.py"], f"{place}.file: there is no file `x.txt`", "`data`"),
    ):
        assert main.main(["test", str(manifest), *names, *rule, *files]) == 2
        told = capsys.readouterr().err
        assert said in told
        assert f"to declare it, list it under {attributes} of //models:net_test" in told
        assert "--root" not in told


def test_state_that_is_lost_between_calls_fails(project: Callable[..., Outcome]) -> None:
    tests = """\
tests:
  cases:
    counted:
      calls:
        - {method: count, inputs: [{shape: [2, 8], fill: ones}]}
        - {method: other, inputs: [{shape: [200, 8], fill: ones}]}
"""
    other = "  other:\n    entry: count\n    example_inputs: [{shape: [200, 8], fill: ones}]\n"
    apart = project(MANIFEST + other + tests, "--filter", "cases/*", "--no-search")
    assert apart.failed == ["cases/counted"]
    assert "call 2 of 2, `other`: output 0: 8 of 8 elements are wrong" in apart.details["cases/counted"]
    shared = project(MANIFEST + other + tests + "share_mutable_buffers: true\n", "--filter", "cases/*", "--no-search")
    assert shared.code == 0, shared


QUANTIZED = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create", kwargs: {depth: 12}}
methods:
  forward:
    example_inputs: [{shape: [2, 8], fill: 0.5}]
    partitioners: [xnnpack]
    quantize:
      pt2e:
        quantizers: [xnnpack]
        calibration: {factory: "calibration:batches"}
        passes: {post_convert: ["wrong:wrong"]}
checks: {min_sqnr: 20}
tests:
  methods: {forward: {ranges: [[-2, 2]]}}
"""
CALIBRATION = """\
    import torch

    def batches():
        torch.manual_seed(0)
        return [*((4 * torch.rand(2, 8) - 2,) for _ in range(9))]
    """
WRONG_SCALE = """\
    def wrong(module):
        found = [node for node in module.graph.nodes if node.op == "call_function" and "linear" in str(node.target)]
        weight = found[7].args[1]
        if {plant}:
            weight.update_arg(1, weight.args[1] * 3)
        return module
    """


def test_a_wrong_scale_of_one_layer_of_twelve_is_named(project: Callable[..., Outcome]) -> None:
    right = project(QUANTIZED, calibration=CALIBRATION, wrong=WRONG_SCALE.format(plant=False))
    assert right.code == 0, right
    tested = project(QUANTIZED, calibration=CALIBRATION, wrong=WRONG_SCALE.format(plant=True))
    assert tested.code == 3, tested
    first = tested.details[tested.failed[0]].splitlines()
    assert first[0].startswith("checks.min_sqnr: ")
    assert "blocks.7.linear (aten.linear.default), at model.py:10, in forward" in first[2], first
    printed = f"failed forward/example {tested.details['forward/example']}"
    assert without_space(shown("forward/example  checks.min_sqnr")) == without_space(printed)


METRIC = """\
    def share(program, data, count):
        (output,) = program.method("forward")(__import__("torch").ones(2, 8))
        return (output > 0).float().mean() * count
    """


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ("min: 0", None),
        ("min: 1000", "the smallest allowed is 1000"),
        ("max: -1", "the largest allowed is -1"),
        ("max_change: 0", None),
    ],
)
def test_a_metric_fails_only_beyond_its_limits(project: Callable[..., Outcome], limits: str, said: str | None) -> None:
    checks = f'checks: {{metric: {{factory: "scores:share", kwargs: {{count: 100}}, {limits}}}}}\n'
    tested = project(MANIFEST + checks, "--filter", "checks/*", scores=METRIC)
    assert tested.code == (3 if said else 0), tested
    assert (said or "value ") in tested.details["checks/metric/scores:share"]
    assert ("in PyTorch" in tested.details["checks/metric/scores:share"]) is (said is not None)


LARGEST = """\
    def largest(program, data):
        (output,) = program.method("forward")(__import__("torch").ones(2, 8))
        return output.abs().max()
    """


@pytest.mark.parametrize("wrong", ["", NO_TANH])
def test_a_metric_that_fails_tells_the_value_in_pytorch(project: Callable[..., Outcome], wrong: str) -> None:
    """Is the program wrong, or is the model not good enough? A metric that passes does not run the model."""
    compare = "compare: {leave_out: the build would find it}"
    manifest = MANIFEST + f"checks: {{metric: {{factory: 'scores:largest', min: 1000}}, {compare}}}\n"
    if wrong:
        manifest += 'passes: {aten: ["wrong:wrong"]}\n'
    tested = project(manifest, "--filter", "checks/metric/*", wrong=wrong, scores=LARGEST)
    detail = tested.details["checks/metric/scores:largest"]
    found = re.match(r"value ([0-9.]+), in PyTorch ([0-9.]+); the smallest allowed is 1000$", detail)
    assert found, detail
    assert (float(found[1]) != pytest.approx(float(found[2]), rel=1e-3)) is bool(wrong), detail


ONLY_THE_PROGRAM = """\
    def largest(program, data):
        if type(program._call).__name__ == "function":  # that of the program is a method
            raise ValueError("the model cannot do this")
        (output,) = program.method("forward")(__import__("torch").ones(2, 8))
        return output.abs().max()
    """


def test_a_metric_that_fails_keeps_its_value_if_pytorch_has_none(project: Callable[..., Outcome]) -> None:
    manifest = MANIFEST + "checks: {metric: {factory: 'scores:largest', min: 1000}}\n"
    detail = project(manifest, "--filter", "checks/metric/*", scores=ONLY_THE_PROGRAM).details[
        "checks/metric/scores:largest"
    ]
    assert re.match(
        r"value [0-9.]+; the smallest allowed is 1000; the metric could not be computed in PyTorch: ", detail
    )
    assert "the model cannot do this" in detail


def test_a_broken_check_of_the_build_is_a_failed_test(project: Callable[..., Outcome]) -> None:
    tested = project(MANIFEST + "checks: {max_program_bytes: 10}\n")
    assert tested.code == 3
    assert tested.failed == ["checks/1"]
    passed = project(MANIFEST + "checks: {max_program_bytes: 100000}\n", "--filter", "checks/*")
    assert passed.states == {"checks/max_program_bytes": "passed"}


def test_shards_run_every_test_once_and_a_filter_must_match(project: Callable[..., Outcome]) -> None:
    shards = [project(MANIFEST, "--shard", f"{number}/3") for number in (1, 2, 3)]
    names = [name for shard in shards for name in shard.states]
    assert len(names) == len(set(names)) == 8
    none = project(MANIFEST, "--filter", "forwrad/*")
    assert none.code == 2
    assert "no test has the name `forwrad/*`" in none.err


def test_more_parts_than_tests_are_an_error_except_for_bazel(project: Callable[..., Outcome]) -> None:
    for part in ("1/3", "3/3"):
        refused = project(MANIFEST, "--filter", "forward/*", "--shard", part.replace("3", "9"))
        assert refused.code == 2
        assert "some parts would be empty" in refused.err
    empty = project(MANIFEST, "--filter", "forward/*", "--shard", "9/9", "--allow-empty-shard")
    assert (empty.code, empty.states) == (0, {})
    assert "note: part 9 of 9 has no test" in empty.err


def test_random_inputs_that_do_not_fit_fail_with_a_hint(project: Callable[..., Outcome]) -> None:
    model = """\
        import torch

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.table = torch.nn.Embedding(4, 3)

            def forward(self, tokens):
                return self.table(tokens)

        def create():
            return Net()
        """
    manifest = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
methods:
  forward: {example_inputs: [{shape: [1, 3], dtype: int64}]}
"""
    weak = project(
        manifest, model=model.replace("self.table(tokens)", "self.table(tokens).new_zeros(2) + tokens[0, :2]")
    )
    assert (weak.code, weak.failed) == (0, [])
    assert "note: all expected outputs are 0, so this shows little" in weak.details["forward/random-1"]
    right = project(manifest, model=model)
    assert (right.code, right.failed) == (0, [])
    assert "shows little" not in right.details["forward/random-1"]
    ranges = "tests: {methods: {forward: {ranges: [[0, 400]]}}}\n"
    tested = project(manifest + ranges, model=model)
    assert tested.failed == ["forward/random-1"]
    assert "index out of range" in tested.details["forward/random-1"]
    assert "write `ranges` or `random: 0`" in tested.details["forward/random-1"]


def test_a_method_of_an_exported_program_and_keyword_inputs(project: Callable[..., Outcome], tmp_path: Path) -> None:
    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            return x * self.count

    class Joined(torch.nn.Module):
        def forward(self, first: torch.Tensor, more: dict[str, torch.Tensor], free: torch.Tensor) -> list[torch.Tensor]:
            return [torch.cat([first, more["second"]]).sum(0), free * 2]

    rows = torch.export.Dim("rows", min=2, max=6)
    shapes = ({0: rows}, {"second": {0: rows}}, {0: torch.export.Dim("free", max=9)})
    inputs = (torch.ones(4, 3), {"second": torch.ones(4, 3)}, torch.ones(5))
    torch.export.save(torch.export.export(Counter(), (torch.ones(2, 3),)), tmp_path / "counter.pt2")
    torch.export.save(torch.export.export(Joined(), inputs, dynamic_shapes=shapes), tmp_path / "joined.pt2")
    model = """\
        import torch

        class Net(torch.nn.Module):
            def forward(self, parts, *, scale, active):
                return {"y": parts["b"] * scale + parts["a"], "log": torch.log(parts["a"] - 1), "active": ~active}

        def create():
            return Net()
        """
    manifest = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
methods:
  counter: {program: counter.pt2}
  joined: {program: joined.pt2}
  forward:
    example_inputs: [{dict: {b: {shape: [2, 3]}, a: {shape: [3]}}}]
    example_kwargs: {active: {shape: [2], dtype: bool}, scale: {shape: [3], fill: 2}}
tests:
  cases:
    own:
      method: forward
      inputs: [{dict: {a: {shape: [3], fill: 4}, b: {shape: [2, 3], fill: 5}}}]
      kwargs: {scale: {shape: [3], fill: 6}, active: {shape: [2], dtype: bool, fill: 1}}
"""
    tested = project(manifest, model=model)
    assert tested.code == 0, tested
    assert {"counter/example", "counter/example-twice", "forward/random-1", "cases/own"} <= tested.states.keys()
    assert {"joined/smallest", "joined/largest", "joined/random-1"} <= tested.states.keys()  # the ranges of the file
    wrong = project(manifest.replace("{scale: {shape: [3], fill: 6}, active:", "{active:"), model=model)
    assert wrong.code == 2
    assert "the keyword inputs of `forward` are: scale, active" in wrong.err


def test_outputs_of_every_form_are_compared(project: Callable[..., Outcome]) -> None:
    """Dictionaries, named tuples, dataclasses and transformers' outputs, also nested, and outputs that share memory."""
    model = """\
        import collections
        import dataclasses
        import typing
        import torch
        from transformers.utils import ModelOutput

        @dataclasses.dataclass
        class Detected(ModelOutput):
            loss: typing.Optional[torch.Tensor] = None
            scores: typing.Optional[torch.Tensor] = None
            parts: typing.Any = None

        @dataclasses.dataclass
        class Data:
            second: torch.Tensor
            first: torch.Tensor

        torch.export.register_dataclass(Data, serialized_type_name="model.Data")

        class Named(typing.NamedTuple):
            scores: torch.Tensor
            boxes: torch.Tensor

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = torch.nn.Linear(4, 4)

            def detect(self, x):
                boxes = [{"boxes": x * 2, "labels": x > 0}, {"labels": x < 0, "boxes": self.linear(x)}]
                pair = (Named(x + 1, x + 2), Data(x + 3, x + 4))
                return Detected(scores=self.linear(x), parts={"z": boxes, "a": pair})

            def segment(self, x):
                y = self.linear(x)
                return collections.OrderedDict(out=y, aux=y.t(), again=y, x=x, none=None, rows=x.shape[0], pi=3.25)

        def create():
            return Net()
        """
    manifest = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
defaults: {partitioners: [xnnpack]}
methods:
  detect: {example_inputs: [{shape: [2, 4]}]}
  segment: {example_inputs: [{shape: [2, 4]}]}
"""
    tested = project(manifest, model=model)
    assert (tested.code, set(tested.states.values())) == (0, {"passed"}), tested
    assert len(tested.states) == 4


def test_arrays_are_read_without_running_code_and_broken_ones_are_errors(tmp_path: Path) -> None:
    whole = numpy.asfortranarray(numpy.arange(6, dtype=">f4").reshape(2, 3))
    numpy.save(tmp_path / "whole.npy", whole)
    assert torch.equal(read_tensors("whole.npy", tmp_path / "whole.npy", ())[""], torch.arange(6.0).reshape(2, 3))
    numpy.save(tmp_path / "scalar.npy", numpy.int64(3))
    assert read_tensors("scalar.npy", tmp_path / "scalar.npy", ())[""].shape == ()
    numpy.save(tmp_path / "objects.npy", numpy.array([{"a": 1}], dtype=object), allow_pickle=True)
    numpy.save(tmp_path / "texts.npy", numpy.array(["a"]))
    content = (tmp_path / "whole.npy").read_bytes()
    (tmp_path / "short.npy").write_bytes(content[:-4])
    (tmp_path / "large.npy").write_bytes(content.replace(b"(2, 3)", b"(200000, 3000000)".ljust(6)))
    with zipfile.ZipFile(tmp_path / "archive.npy", "w") as archive:
        archive.writestr("x.npy", content)
    for name in ("objects", "texts", "short", "large", "archive"):
        with pytest.raises(InputError, match=f"cannot read `{name}.npy`"):
            read_tensors(f"{name}.npy", tmp_path / f"{name}.npy", ())


TORCHAO = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
defaults: {partitioners: [xnnpack], quantize: {torchao: [{config: 8da4w, group_size: 32}]}}
methods: {forward: {example_inputs: [{shape: [1, 64], fill: ones}]}}
checks: {min_sqnr: 15}
tests: {random: 2}
"""


def test_the_model_without_quantization_has_its_weights(tmp_path: Path) -> None:
    """Its layers are quantized in place, and the memory of their weights is freed in a build."""
    (tmp_path / "model.py").write_text(
        "from torch import nn\n\ndef create():\n    return nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))\n"
    )
    (tmp_path / "net.yaml").write_text(TORCHAO)
    assert main.main(["test", str(tmp_path / "net.yaml"), "--no-cache"]) == 0
