"""Limits of ExecuTorch's own runtime: they exist in the runtime, and a build names them.

Each case builds and runs a program that hits a limit and a similar one that does not. If a case begins to pass in the
runtime, ExecuTorch fixed it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.runtime import Runtime

from etbuild.lower.finite_weights import non_finite

from .conftest import Build, Outcome

MODEL = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("codes", torch.tensor([1, 2, 3, 4], dtype=torch.int32).to(torch.uint16))
        self.register_buffer("table", torch.tensor([[1, 2], [3, 4]], dtype=torch.int32).to(torch.uint16))

    def sort(self, x):
        return x.sort()[0]

    def find(self, x):
        return x.nonzero() * 2

    def choose(self, x):
        rows, columns = torch.where(x > 0)
        return x[rows, columns] + columns

    def wrap(self, x):
        return (x.to(torch.int64) - 5) % 3

    def read(self, x):
        return x + self.codes.to(torch.float32)

    def join(self, x):
        return torch.cat([self.codes, self.codes])

    def multiply(self, x):
        return self.codes * self.codes

    def look_up(self, x):
        return torch.nn.functional.embedding(x.to(torch.int64), self.table)

    def cut(self, x):
        return self.codes[1:3]

    def spread(self, x):
        return self.codes.unsqueeze(0).expand(2, 4).repeat(2, 1).select(0, 1)

    def turn(self, x):
        return x.to(memory_format=torch.channels_last).flip(2)

    def double(self, x):
        return x.to(memory_format=torch.channels_last) * 2

    def weigh(self, x):
        y = x.double()
        return torch.nn.functional.log_softmax(y, -1) + torch.nn.functional.softmax(y, -1).exp()

    def resize(self, x):
        image = torch.cumsum(x, -1).to(torch.uint8)
        return torch.nn.functional.interpolate(image, (3, 3), mode="bilinear", antialias=True)

    def drop(self, x):
        return torch.nn.functional.dropout(x, 0.5)

    def draw(self, x):
        return torch.bernoulli(x / 2)

    def disturb(self, x):
        return x + torch.randn_like(x)

    def crop(self, x):
        return x.to(memory_format=torch.channels_last).relu()[:, :, :4]

def create():
    return Net()
"""


def manifest(method: str, shape: list[int], checks: str = "") -> str:
    return (
        'schema: executorch-model/v1\nname: net\nmodel: {factory: "model:create"}\n'
        f"methods:\n  {method}: {{example_inputs: [{{shape: {shape}, fill: ones}}]}}\n{checks}"
    )


def computed(method: str, x: torch.Tensor) -> torch.Tensor:
    """Returns the output of the module."""
    namespace: dict[str, Any] = {}
    exec(MODEL, namespace)
    result: torch.Tensor = getattr(namespace["create"](), method)(x)
    return result


def agrees(made: Outcome, method: str, x: torch.Tensor) -> bool:
    """Returns whether the runtime loads the program from its file, runs it, and gives the same output as the module."""
    try:
        program = Runtime.get().load_program(made.directory / "net.pte")
        result = program.load_method(method).execute([x])[0]
    except RuntimeError:
        return False
    wanted = computed(method, x)
    return bool(result.shape == wanted.shape and torch.equal(result.double(), wanted.double()))


def test_an_operator_without_a_kernel_is_noted(build: Build) -> None:
    made = build(manifest("sort", [4]), model=MODEL)
    assert made.code == 0, made.err
    message = "it has no kernel for `aten::sort.values`"
    assert f"note: ExecuTorch's runtime cannot run all of `sort`: {message}; link one into the application" in made.err
    assert f"note: `sort` was not compared with PyTorch: the runtime here cannot run all of it: {message}" in made.err
    [note] = made.json("net.report.json")["notes"]
    assert message in note
    assert not agrees(made, "sort", torch.ones(4)), "ExecuTorch has fixed this: look for another operator"


WRONG = [
    ("read", [4], "aten.to", "the runtime cannot run `read`"),
    ("weigh", [2, 4], "aten.log_softmax.int", "the runtime cannot run `weigh`"),
    ("turn", [1, 2, 3, 4], "aten.flip.default", ""),
    ("resize", [1, 1, 8, 8], "aten._upsample_bilinear2d_aa", "the program computes something else"),
]


@pytest.mark.parametrize(("method", "shape", "operator", "message"), WRONG, ids=[case[0] for case in WRONG])
def test_what_the_runtime_cannot_run_or_computes_wrongly_fails_the_build(
    build: Build, method: str, shape: list[int], operator: str, message: str
) -> None:
    ranges = f"checks: {{compare: {{methods: {{{method}: {{ranges: [[1, 20]]}}}}}}}}\n"
    refused = build(manifest(method, shape, ranges), model=MODEL)
    assert (refused.code, refused.files) == (1, [])
    assert f"methods.{method}: {message}" in refused.err
    assert operator in refused.err
    of_float32 = "the runtime runs `aten.log_softmax.int` with float32, and not with float64: convert what it reads"
    assert (of_float32 in refused.err) == (method == "weigh")
    assert ("`checks.compare` can allow more" in refused.err) == ("cannot run" not in message)
    left_out = 'checks: {compare: {leave_out: "the application has a kernel"}}\n'
    made = build(manifest(method, shape, left_out), model=MODEL)
    assert made.code == 0, made.err
    assert f"note: `{method}` was not compared with PyTorch: the application has a kernel" in made.err
    image = torch.arange(torch.Size(shape).numel()).reshape(shape).float()
    assert not agrees(made, method, image), "ExecuTorch has fixed this"


DRAWS = [
    (
        "drop",
        "aten::native_dropout",
        "write `dropout(x, training=self.training)`",
        "return torch.nn.functional.dropout",
    ),
    ("draw", "aten::rand", "make the numbers an input of the method", ""),
]


@pytest.mark.parametrize(("method", "operator", "hint", "line"), DRAWS, ids=[case[0] for case in DRAWS])
def test_random_numbers_are_noted_or_refused(build: Build, method: str, operator: str, hint: str, line: str) -> None:
    made = build(manifest(method, [64]), model=MODEL)
    assert made.code == 0, made.err
    assert f"note: `{method}` draws random numbers with `{operator}`" in made.err
    assert hint in made.err
    assert line in made.err
    assert not agrees(made, method, torch.ones(64))
    made = build(manifest(method, [64], "checks: {deterministic: true}\n"), model=MODEL)
    assert made.code == 3
    assert f"checks.deterministic: `{method}` draws random numbers" in made.err


def test_noise_of_the_shape_of_a_tensor_names_the_way_to_write_it(build: Build) -> None:
    made = build(manifest("disturb", [4]), model=MODEL)
    assert made.code == 1
    assert "write `torch.randn(x.shape)` in place of `torch.randn_like(x)`" in made.err
    made = build(manifest("disturb", [4]), model=MODEL.replace("randn_like(x)", "randn(x.shape)"))
    assert made.code == 0, made.err


def test_a_limit_of_the_runtime_fails_the_build_where_that_is_asked_for(build: Build) -> None:
    made = build(manifest("sort", [4], "checks: {runtime: true}\n"), model=MODEL)
    assert (made.code, made.files) == (3, [])
    assert "model.yaml:6:19: checks.runtime: ExecuTorch's runtime cannot run all of `sort`" in made.err


@pytest.mark.parametrize(
    ("method", "shape"),
    [
        ("look_up", [2]),
        ("cut", [4]),
        ("wrap", [4]),
        ("find", [4]),
        ("find", [2, 3]),
        ("choose", [2, 3]),
        ("spread", [4]),
    ],
    ids=str,
)
def test_supported_operators_are_not_noted(build: Build, method: str, shape: list[int]) -> None:
    made = build(manifest(method, shape, "checks: {runtime: true}\n"), model=MODEL)
    assert made.code == 0, made.err
    assert "notes" not in made.json("net.report.json")
    assert agrees(made, method, torch.ones(shape))


WEIGHTS = """\
import torch

class Net(torch.nn.Module):
    def __init__(self, spoiled):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.other = torch.nn.Linear(4, 4)
        self.register_buffer("mask", torch.full((4, 4), float("-inf")).triu(1))
        self.register_buffer("scale", torch.ones(4))
        with torch.no_grad():
            for name, value in spoiled.items():
                self.get_parameter(name).view(-1)[0] = value

    def forward(self, x):
        return (self.linear(x) + self.mask).softmax(-1) * self.scale

    def other_head(self, x):
        return self.other(x)

def create(spoiled):
    return Net({name: float(value) for name, value in spoiled.items()})
"""


def weights(spoiled: str, checks: str = "", methods: str = "forward", partitioners: str = "[xnnpack]") -> str:
    lines = "".join(f"  {name}: {{example_inputs: [{{shape: [4, 4]}}]}}\n" for name in methods.split())
    return (
        'schema: executorch-model/v1\nname: net\nmodel: {factory: "model:create", kwargs: {spoiled: '
        f"{{{spoiled}}}}}}}\nmethods:\n{lines}defaults: {{partitioners: {partitioners}}}\n{checks}"
    )


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_weight_that_is_not_finite_is_noted(build: Build, jobs: str) -> None:
    both = "forward other_head"
    spoiled = 'linear.weight: "nan", other.bias: "-inf"'
    noted = build(weights(spoiled, methods=both), "--jobs", jobs, model=WEIGHTS)
    assert noted.code == 0, noted.err
    assert "lowered together" not in noted.err
    told = ["parameter `linear.weight` has 1 NaN of 16 elements", "parameter `other.bias` has 1 infinite of 4 elements"]
    assert [note.partition(";")[0] for note in noted.json("net.report.json")["notes"]] == [f"the {one}" for one in told]


def test_weights_that_are_not_finite_fail_the_build_where_that_is_asked_for(build: Build) -> None:
    refused = build(weights('linear.weight: "nan"', "checks: {finite: true}\n"), model=WEIGHTS)
    assert (refused.code, refused.files) == (3, [])
    assert "checks.finite: the parameter `linear.weight` has 1 NaN of 16 elements" in refused.err


def test_a_weight_that_no_method_reads_is_not_checked(build: Build) -> None:
    asked = weights('other.bias: "nan"', "checks: {finite: true}\n", partitioners="[]")
    assert build(asked, model=WEIGHTS).code == 0


@pytest.mark.parametrize(("value", "code"), [("nan", 3), ("inf", 3), ("-inf", 0)])
def test_minus_infinity_is_allowed_in_a_buffer_and_nan_is_not(build: Build, value: str, code: int) -> None:
    model = WEIGHTS.replace("torch.ones(4)", f'torch.full((4,), float("{value}"), dtype=torch.bfloat16)')
    made = build(weights("", "checks: {finite: true}\n", partitioners="[]"), model=model)
    assert made.code == code, made.err


def test_a_weight_that_is_not_finite_shows_in_what_it_is_quantized_to(build: Build) -> None:
    quantized = "defaults: {quantize: {torchao: [{config: 8da8w}]}, "
    asked = weights('linear.weight: "nan"', "checks: {finite: true}\n").replace("defaults: {", quantized)
    made = build(asked, model=WEIGHTS)
    assert (made.code, made.files) == (1, []), made.err
    assert "ExecuTorch's runtime cannot load the method" in made.err
    assert "these weights have elements that are NaN or infinite: linear." in made.err


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "float64", "float8_e5m2", "complex64"])
def test_weights_of_every_dtype_are_checked(name: str) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            values = torch.tensor([1, float("nan"), float("inf"), float("-inf")])
            self.register_buffer("spoiled", values.to(getattr(torch, name)))
            self.register_buffer("sound", torch.ones(2).to(getattr(torch, name)))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return x + 1, self.spoiled.clone(), self.sound.clone()

    exported = torch.export.export(Net(), (torch.ones(1),))
    assert non_finite({"forward": exported}) == {"spoiled": {"kind": "buffer", "nan": 1, "infinite": 1, "elements": 4}}


@pytest.mark.parametrize("missing", ["module", "function"])
def test_a_package_that_does_not_name_its_kernels_is_noted_once(missing: str) -> None:
    """Runs in its own process, since imported modules stay."""
    spoil = {
        "module": "sys.modules['executorch.extension.pybindings.portable_lib'] = None",
        "function": "from executorch.extension.pybindings import portable_lib as p; del p._get_operator_names",
    }
    called = "assert r._kernels() is r._kernels() is None"
    code = f"import sys\nfrom etbuild.emit import runtime_limits as r\n{spoil[missing]}\n{called}"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count("note: the kernels of the runtime are not checked") == 1


def test_kernels_of_one_memory_format_are_right(build: Build) -> None:
    """The crop leaves out nothing, so that it is an alias, which ExecuTorch's kernel would refuse."""
    made = build(manifest("crop", [1, 2, 4, 8]), model=MODEL)
    assert made.code == 0, made.err
    assert agrees(made, "crop", torch.arange(64.0).reshape(1, 2, 4, 8) - 30)


def test_an_input_of_another_memory_format_fails_the_build(build: Build, tmp_path: Path) -> None:
    """A method from a file takes its inputs as the example had them."""

    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sum(0)

    text = "schema: executorch-model/v1\nname: net\nmethods: {forward: {program: net.pt2}}\n"
    column, permuted = torch.randn(1, 4).t(), torch.randn(2, 3, 4).permute(2, 0, 1)
    for example, code in ((column, 1), (permuted, 1)):
        saved = tmp_path / "net.pt2"
        torch.export.save(torch.export.export(Net(), (example,)), saved)
        made = build(text, files={"net.pt2": saved.read_bytes()})
        assert made.code == code, made.err
    assert "methods.forward: " in made.err


UNCHECKED = """
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

def create():
    return XnnpackPartitioner(force_non_static_weights_for_f32_linear=True)
"""


def test_a_method_that_the_runtime_cannot_load_fails_the_build(build: Build) -> None:
    """The driver knows nothing of a partitioner from the sources."""
    model = "import torch\n\ndef create():\n    return torch.nn.Conv2d(1, 1, 1)\n"
    text = (
        'schema: executorch-model/v1\nname: net\nmodel: {factory: "model:create"}\n'
        "methods: {forward: {example_inputs: [{shape: [1, 1, 2, 2]}],\n"
        '  partitioners: [{backend: custom, options: {factory: "partitioner:create"}}]}}\n'
    )
    made = build(text, model=model, partitioner=UNCHECKED)
    assert made.code == 1
    assert "error: model.yaml:4:" in made.err
    assert "methods.forward: ExecuTorch's runtime cannot load the method: " in made.err
    assert not list(made.directory.glob("*.pte"))
