"""Methods that share mutable buffers, run in ExecuTorch's own runtimes."""

from __future__ import annotations

import io
import shutil
import subprocess
from pathlib import Path
from typing import Any

import executorch
import pytest
import torch
from executorch.runtime import Runtime

from tests.helpers.manifests import net
from tests.helpers.runtime import run

from .conftest import Build, Outcome

MODEL = """\
import torch

class Net(torch.nn.Module):
    def __init__(self, start):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        torch.nn.init.eye_(self.linear.weight)
        torch.nn.init.zeros_(self.linear.bias)
        self.register_buffer("cache", torch.full((4,), start), persistent=False)
        self.register_buffer("steps", torch.full((2,), start), persistent=False)

    def prefill(self, x):
        self.cache.copy_(self.linear(x.unsqueeze(0)).squeeze(0) * 3)
        return x.sum()

    def decode(self, x):
        self.cache.add_(x)
        self.steps.add_(1)
        return torch.cat([self.cache, self.steps])

    def peek(self, x):
        return self.cache + x

    def reset(self):
        self.cache.zero_()
        return self.cache + 0

def create(start=0.0):
    return Net(start)
"""

MANIFEST = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
methods:
  prefill: {example_inputs: [{shape: [4]}], partitioners: [xnnpack]}
  decode: {example_inputs: [{shape: [1]}], partitioners: [xnnpack]}
  peek: {example_inputs: [{shape: [1]}]}
  reset: {example_inputs: [], partitioners: [xnnpack]}
share_mutable_buffers: true
"""
STARTS_AT_HALF = MANIFEST.replace('"model:create"}', '"model:create", kwargs: {start: 0.5}}')


class Loaded:
    """A program whose methods are all loaded, in order, before the first one runs."""

    def __init__(self, made: Outcome, *methods: str) -> None:
        assert made.code == 0, made.err
        data = made.directory / "net.weights.ptd"
        program = Runtime.get().load_program(made.directory / "net.pte", data_path=data if data.exists() else None)
        self.methods: dict[str, Any] = {name: program.load_method(name) for name in methods}

    def __call__(self, method: str, *values: float) -> list[float]:
        inputs = [torch.tensor(values, dtype=torch.float32)] if values else []
        output = self.methods[method].execute(inputs)[0]
        flat: list[float] = output.flatten().tolist()
        return flat


@pytest.mark.parametrize("named_data", ["", 'named_data: {weights: {parameters: ["*"]}}'])
def test_each_method_sees_what_another_wrote(build: Build, named_data: str) -> None:
    run = Loaded(build(MANIFEST + named_data, model=MODEL), "prefill", "decode", "peek", "reset")
    run("prefill", 1, 2, 3, 4)
    assert run("decode", 10) == [13, 16, 19, 22, 1, 1]
    assert run("decode", 10) == [23, 26, 29, 32, 2, 2]
    assert run("peek", 100) == [123, 126, 129, 132]
    run("prefill", 0, 0, 0, 1)
    assert run("decode", 0) == [0, 0, 0, 3, 3, 3]
    assert run("reset") == [0, 0, 0, 0]
    assert run("peek", 1) == [1, 1, 1, 1]


@pytest.mark.parametrize("order", [("decode", "peek"), ("peek", "decode")])
def test_shared_buffers_keep_their_initial_values(build: Build, order: tuple[str, str]) -> None:
    run = Loaded(build(STARTS_AT_HALF, model=MODEL), *order)
    assert run("peek", 0) == [0.5] * 4
    assert run("decode", 1) == [1.5] * 6
    assert run("peek", 0) == [1.5] * 4


def test_without_it_a_reader_has_a_constant(build: Build) -> None:
    run = Loaded(build(STARTS_AT_HALF.replace("share_mutable_buffers: true", ""), model=MODEL), "decode", "peek")
    assert run("decode", 1) == [1.5] * 6
    assert run("peek", 0) == [0.5] * 4


def test_lowering_methods_one_by_one_gives_the_same(build: Build) -> None:
    together, one_by_one = (build(STARTS_AT_HALF, "--jobs", jobs, model=MODEL) for jobs in ("1", "2"))
    assert together.read("net.pte") == one_by_one.read("net.pte")


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_delegate_that_keeps_what_a_buffer_starts_with_is_an_error(build: Build, jobs: str) -> None:
    model = net(
        'self.register_buffer("table", torch.ones(2, 4))',
        write="self.table.copy_(x)\nreturn x.sum()",
        read="return torch.nn.functional.linear(x, self.table)",
    )
    manifest = """\
    schema: executorch-model/v1
    name: net
    model: {factory: "model:create"}
    methods: {write: {example_inputs: [{shape: [2, 4]}]}, read: {example_inputs: [{shape: [3, 4]}]}}
    share_mutable_buffers: true
    """
    made = build(manifest + "defaults: {partitioners: {read: [xnnpack]}}\n", "--jobs", jobs, model=model)
    assert made.code == 1
    message = "methods.read.partitioners: XnnpackBackend treats `table` as a constant, but `write` writes to it"
    assert message in made.err
    run = Loaded(build(manifest, model=model), "write", "read")
    run.methods["write"].execute([torch.full((2, 4), 5.0)])
    assert run.methods["read"].execute([torch.ones(3, 4)])[0].tolist() == [[20.0, 20.0]] * 3


class Counter(torch.nn.Module):
    def __init__(self, rows: int, start: float) -> None:
        super().__init__()
        self.register_buffer("cache", torch.full((rows, 4), start))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.cache.add_(x).sum()


def exported(rows: int = 1, start: float = 0.0) -> bytes:
    saved = io.BytesIO()
    torch.export.save(torch.export.export(Counter(rows, start), (torch.zeros(4),)), saved)
    return saved.getvalue()


@pytest.mark.parametrize("jobs", ["1", "2"])
@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"rows": 2}, "`cache` is float32[2, 4], and float32[1, 4] in `first`"),
        ({"start": 5.0}, "`cache` has other initial values than in `first`"),
    ],
)
def test_buffers_of_one_name_that_differ_are_an_error(
    build: Build, other: dict[str, Any], message: str, jobs: str
) -> None:
    manifest = """\
    schema: executorch-model/v1
    name: net
    methods: {first: {program: first.pt2}, second: {program: second.pt2}}
    share_mutable_buffers: true
    """
    equal = build(manifest, files={"first.pt2": exported(), "second.pt2": exported()})
    run = Loaded(equal, "first", "second")
    assert [run("first", 1, 1, 1, 1), run("second", 1, 1, 1, 1)] == [[4], [8]]
    files = {"first.pt2": exported(), "second.pt2": exported(**other)}
    made = build(manifest, "--jobs", jobs, files=files)
    assert made.code == 1
    assert f"model.yaml:3:40: methods.second: {message}" in made.err
    apart = build(manifest.replace("share_mutable_buffers: true", ""), files=files)
    assert apart.code == 0, apart.err


def test_a_buffer_that_differs_from_the_modules_own_is_an_error(build: Build) -> None:
    manifest = MANIFEST.replace("methods:", "methods:\n  other: {program: other.pt2}")
    made = build(manifest, model=MODEL, files={"other.pt2": exported(rows=3)})
    assert made.code == 1
    assert "methods.other: `cache` is float32[3, 4], and float32[4] in `decode`" in made.err


@pytest.mark.skipif(shutil.which("g++") is None, reason="links a program with ExecuTorch's C++ runtime: install g++")
def test_the_cpp_runtime_shares_them_too(build: Build, tmp_path: Path) -> None:
    package = Path(executorch.__path__[0])
    runner = tmp_path / "run_methods"
    include = [f"-I{package}/include", f"-I{package}/include/executorch/runtime/core/portable_type/c10"]
    defines = ["-DC10_USING_CUSTOM_GENERATED_MACROS", "-DET_EVENT_TRACER_ENABLED"]
    libraries = [f"-L{package}/lib", "-lexecutorch", "-Wl,--no-as-needed", "-lexecutorch_kernels_optimized"]
    libraries += ["-lexecutorch_backend_xnnpack", "-lexecutorch_threadpool", f"-Wl,-rpath,{package}/lib"]
    source = Path(__file__).with_name("run_methods.cpp")
    subprocess.run(["g++", "-std=c++17", *defines, *include, str(source), "-o", str(runner), *libraries], check=True)
    made = build(MANIFEST, model=MODEL)
    calls = ["prefill", "4", "decode", "1", "peek", "1", "decode", "1"]
    done = subprocess.run(
        [runner, str(made.directory / "net.pte"), *calls], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["4"],
        ["4", "4", "4", "4", "1", "1"],
        ["5", "5", "5", "5"],
        ["5", "5", "5", "5", "2", "2"],
    ]


VIEWS = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        whole = torch.zeros(8)
        self.register_buffer("whole", whole)
        self.register_buffer("head", whole[:4])
        self.register_buffer("tail", whole[4:])
        self.register_buffer("all", whole)
        other = torch.zeros(8)
        self.register_buffer("other", other)
        self.register_buffer("even", other[::2])  # not row-major: the driver copies it before the export
        self.register_buffer("odd", other[1::2])

    def put_even(self, x):
        self.even.add_(x)
        return x + self.even

    def get_odd(self, x):
        return self.odd + x

    def get_other(self, x):
        return self.other + x

    def put(self, x):
        self.head.add_(x)
        return x + self.head

    def get(self, x):
        return self.whole + x

    def twice(self, x):
        self.head.add_(x)
        self.tail.add_(self.head)
        return self.tail + x

    def tied(self, x):
        self.all.add_(x)
        return self.whole + x

def create():
    return Net()
"""
OF_VIEWS = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
methods:
"""


@pytest.mark.parametrize(
    ("methods", "clash"),
    [
        ("put get", "`put` writes to the buffer `head`, which shares memory with `all`"),
        ("put_even get_other", "`put_even` writes to the buffer `even`, which shares memory with `other`"),
        ("put_even get_odd", None),
        ("twice", None),
        ("tied", None),
    ],
)
def test_a_view_of_another_buffer_is_not_written_to(build: Build, methods: str, clash: str | None) -> None:
    made = build(
        OF_VIEWS + "".join(f"  {name}: {{example_inputs: [{{shape: [1]}}]}}\n" for name in methods.split()),
        model=VIEWS,
    )
    assert made.code == int(clash is not None), made.err
    assert clash is None or clash in made.err
    if clash is None:
        namespace: dict[str, Any] = {}
        exec(VIEWS, namespace)
        module, program = namespace["create"](), Runtime.get().load_program(made.directory / "net.pte")
        for _ in range(2):
            for name in methods.split():
                x = torch.ones(1)
                torch.testing.assert_close(program.load_method(name).execute([x])[0], getattr(module, name)(x))


MOVED = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("first", torch.zeros(3))
        self.register_buffer("second", torch.ones(3))
        self.register_buffer("start", torch.full((3,), 7.0))

    def seen(self):
        return self.first * 1, self.second * 1

    def follows(self, x):
        seen = self.seen()
        self.first.copy_(self.second)
        self.second.add_(x)
        return *seen, self.first, self.second

    def leads(self, x):
        seen = self.seen()
        self.second.copy_(self.first)
        self.first.copy_(x)
        return *seen, self.first, self.second

    def views(self, x):
        seen = self.seen()
        self.second.copy_(self.first.view(3, 1).view(3))
        self.first.add_(x)
        return *seen, self.second

    def swaps(self, x):
        seen, first = self.seen(), self.first.clone()
        self.first.copy_(self.second)
        self.second.copy_(first + x)
        return *seen, first, self.first, self.second

    def starts(self, x):
        seen = self.seen()
        self.first.copy_(self.start)
        self.second[:] = self.start
        return *seen, x + 1

    def both(self, x):
        seen, new = self.seen(), self.first + x
        self.first.copy_(new)
        self.second.copy_(new)
        return *seen, new

    def keeps(self, x):
        seen = self.seen()
        self.first.add_(x)
        self.second.copy_(self.first)
        return *seen, self.first, self.second

    def takes(self, x):
        seen = self.seen()
        self.first.copy_(x)
        self.second.copy_(x)
        return seen

    def assigns(self, x):
        seen, old = self.seen(), self.second
        self.second = self.first
        self.first = old
        self.second.add_(x)
        return seen

def create():
    return Net()
"""


@pytest.mark.parametrize("partitioners", ["[]", "[xnnpack]"])
def test_a_buffer_may_get_what_another_one_has(build: Build, partitioners: str, tmp_path: Path) -> None:
    """ExecuTorch 1.5.1 writes nothing then, or returns what is written later, or cannot lower the method."""
    names = ("follows", "leads", "views", "swaps", "starts", "both", "keeps", "takes", "assigns")
    methods = ", ".join(f"{name}: {{example_inputs: [{{shape: [3]}}]}}" for name in names)
    manifest = 'schema: executorch-model/v1\nname: net\nmodel: {factory: "model:create"}\n'
    made = build(f"{manifest}defaults: {{partitioners: {partitioners}}}\nmethods: {{{methods}}}\n", model=MOVED)
    assert made.code == 0, made.err
    scope = dict[str, Any]()
    exec(MOVED, scope)
    x = torch.tensor([1.0, 2.0, 3.0])
    for name in names:
        model = scope["create"]()
        [found] = run(made.directory / "net.pte", [[(name, [x])] * 3], tmp_path)
        for results in found:
            torch.testing.assert_close(results, [each.clone() for each in getattr(model, name)(x)])
