"""Operators from a shared library, from a module of the sources, and from an installed package."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from executorch.runtime import Runtime

from etbuild.files import program_file
from tests.helpers import commands

from .conftest import MANIFEST, MODEL, Build, Outcome

SCALED = MODEL.replace("self.linear(x).relu()", "torch.ops.demo.scale(self.linear(x), 2.5)")

HALVES = """\
import torch

@torch.library.custom_op("halves::halve", mutates_args=())
def halve(x: torch.Tensor) -> torch.Tensor:
    return x / 2

@halve.register_fake
def _(x):
    return torch.empty_like(x)

out = torch.library.Library("halves", "FRAGMENT")
out.define("halve.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")
"""

ATTENTION = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("k", torch.zeros(1, 8, 2, 4), persistent=False)
        self.register_buffer("v", torch.zeros(1, 8, 2, 4), persistent=False)

    def forward(self, q, k, v):
        return torch.ops.llama.sdpa_with_kv_cache(q, k, v, self.k, self.v, 0, 3, None, 0.0, True)

def create():
    return Net()
"""


def operators(made: Outcome) -> dict[str, int]:
    assert made.code == 0, made.err
    facts = program_file.program_facts(program_file.read_program(made.read("net.pte")))
    counts: dict[str, int] = facts["methods"]["forward"]["operators"]
    return counts


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The shared library of demo::scale."""
    if shutil.which("g++") is None:
        pytest.skip("compiles a library of operators: install g++")
    root, built = Path(torch.__file__).parent, tmp_path_factory.mktemp("ops") / "libdemo_ops.so"
    include = [f"-I{root}/include", f"-I{root}/include/torch/csrc/api/include"]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"
    source = Path(__file__).with_name("demo_ops.cpp")
    command = ["g++", "-std=c++20", "-O0", "-shared", "-fPIC", abi, *include, str(source), "-o", str(built)]
    subprocess.run([*command, f"-L{root}/lib", "-ltorch_cpu", "-lc10"], check=True)
    return built.read_bytes()


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_declared_library_registers_them(build: Build, library: bytes, jobs: str) -> None:
    methods = "methods:\n  again: {entry: forward, example_inputs: [{shape: [1, 8]}]}"
    manifest = MANIFEST.replace("methods:", methods) + "custom_ops: {libraries: [libdemo_ops.so]}\n"
    made = build(manifest, "--jobs", jobs, model=SCALED, files={"libdemo_ops.so": library})
    assert operators(made)["demo::scale.out"] == 1
    assert "libdemo_ops.so" in made.json("net.index.json")["inputs"]["data"]


def test_a_library_that_a_declared_one_links_has_to_be_declared(build: Build, tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("compiles two libraries: install gcc")
    for name, code, *linked in (
        ("inner", "int inner;"),
        ("outer", "extern int inner; int *outer = &inner;", "-linner"),
    ):
        (tmp_path / f"{name}.c").write_text(code)
        command = ["gcc", "-shared", "-fPIC", f"{name}.c", "-o", f"lib{name}.so", "-L.", *linked, "-Wl,-rpath,$ORIGIN"]
        subprocess.run(command, cwd=tmp_path, check=True)
    files = {name: (tmp_path / name).read_bytes() for name in ("libinner.so", "libouter.so")}
    made = build(MANIFEST + "custom_ops: {libraries: [libouter.so]}\n", files=files)
    assert made.code == 1
    assert "custom_ops.libraries[0]: `libouter.so` loads libinner.so, which is not a declared file" in made.err
    assert "list `libinner.so` under `custom_ops.libraries` too, before `libouter.so`" in made.err
    made = build(MANIFEST + "custom_ops: {libraries: [libinner.so, libouter.so]}\n", files=files)
    assert made.code == 0, made.err
    assert {*made.json("net.index.json")["inputs"]["data"]} == {*files}


def test_a_file_that_is_not_a_shared_library_is_refused(build: Build) -> None:
    manifest = MANIFEST + "custom_ops: {libraries: [libdemo_ops.so]}\n"
    made = build(manifest, files={"libdemo_ops.so": b"not a library"})
    assert made.code == 1
    assert "custom_ops.libraries[0]: cannot load `libdemo_ops.so`: OSError: " in made.err
    made = build(manifest)
    assert made.code == 2
    assert "custom_ops.libraries[0]: there is no file `libdemo_ops.so`" in made.err


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_module_of_the_sources_registers_them(build: Build, jobs: str) -> None:
    methods = "methods:\n  again: {entry: forward, example_inputs: [{shape: [1, 8]}]}"
    manifest = MANIFEST.replace("methods:", methods) + "custom_ops: {modules: [ops.halves]}\n"
    model = MODEL.replace("self.linear(x).relu()", "torch.ops.halves.halve(self.linear(x))")
    model = f"from ops.halves import out\n{model}"  # the model holds the library too, and its module is imported twice
    made = build(manifest, "--jobs", jobs, model=model, ops__halves=HALVES)
    assert operators(made)["halves::halve.out"] == 1
    assert "ops/halves.py" in made.json("net.index.json")["inputs"]["sources"]


def test_an_operator_without_an_out_variant(build: Build) -> None:
    model = MODEL.replace("self.linear(x).relu()", "torch.ops.wholes.halve(self.linear(x))")
    source = HALVES[: HALVES.index("out = ")].replace("halves", "wholes")
    made = build(MANIFEST + "custom_ops: {modules: [ops.wholes]}\n", model=model, ops__wholes=source)
    assert made.code == 1
    assert "model.yaml:11:1: custom_ops: emitting forward failed" in made.err
    assert "Missing out variants: {'wholes::halve'}" in made.err
    assert "register an overload with `out` for each of these operators" in made.err


@pytest.mark.parametrize("name", ["no_such_ops", "ops.halfs"])
def test_a_module_that_is_not_there(build: Build, name: str) -> None:
    made = build(MANIFEST + f"custom_ops: {{modules: [{name}]}}\n", ops____init__="", ops__halves=HALVES)
    assert made.code == 2
    message = f"custom_ops.modules[0]: the module `{name}` is neither among the declared sources nor installed\n"
    assert f"{message}    there is no {name.replace('.', '/')}.py" in made.err


def test_a_module_of_an_installed_package_that_is_not_there(build: Build) -> None:
    made = build(MANIFEST + "custom_ops: {modules: [executorch.no_such_ops]}\n")
    assert made.code == 1
    assert "custom_ops.modules[0]: importing `executorch.no_such_ops` failed: ModuleNotFoundError" in made.err


def test_an_operator_that_nothing_registers(build: Build) -> None:
    made = build(MANIFEST, model=MODEL.replace("self.linear(x).relu()", "torch.ops.halves.third(x)"))
    assert made.code == 1
    assert "no operator `halves::third` is registered: list the library or module" in made.err


def test_an_installed_package_registers_them_and_the_runtime_has_the_kernel(build: Build) -> None:
    manifest = """\
    schema: executorch-model/v1
    name: net
    model: {factory: "model:create"}
    methods: {forward: {example_inputs: [{shape: [1, 3, 2, 4]}, {shape: [1, 3, 2, 4]}, {shape: [1, 3, 2, 4]}]}}
    custom_ops: {modules: [executorch.extension.llm.custom_ops.custom_ops]}
    """
    made = build(manifest, model=ATTENTION)
    assert operators(made)["llama::sdpa_with_kv_cache.out"] == 1
    from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401 - registers the kernel

    q, k, v = torch.randn(3, 1, 3, 2, 4)
    program = Runtime.get().load_program(made.directory / "net.pte")
    found = program.load_method("forward").execute([q, k, v])[0]
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
    ).transpose(1, 2)
    torch.testing.assert_close(found, expected)


def test_a_model_may_define_a_namespace_of_operators(build: Build) -> None:
    """PyTorch allows only one definition, and one process imports the source twice: to export and to lower."""
    defining = """\
lib = torch.library.Library("defining", "DEF")
lib.define("double(Tensor x) -> Tensor")
torch.library.impl(lib, "double", "CompositeImplicitAutograd")(lambda x: x * 2)

class Net("""
    model = MODEL.replace("class Net(", defining).replace(
        "self.linear(x).relu()", "torch.ops.defining.double(self.linear(x))"
    )
    built = [build(MANIFEST, model=model) for _ in range(2)]
    assert [made.code for made in built] == [0, 0], built[0].err + built[1].err
    assert built[0].read("net.pte") == built[1].read("net.pte")


def test_an_operator_of_an_installed_package_that_lowering_does_not_import(tmp_path: Path) -> None:
    """It runs in a process of its own: the operator stays registered in that which imported it."""
    pytest.importorskip("transformers")
    call = "torch.ops.transformers.grouped_mm_fallback(x, self.linear.weight[None].mT, torch.tensor([1]).int())"
    model = MODEL.replace("self.linear(x).relu()", call)
    model = model.replace("def create():\n", "def create():\n    import transformers.integrations.moe\n")
    (tmp_path / "model.py").write_text(model)
    (tmp_path / "model.yaml").write_text(MANIFEST)
    made = commands.etbuild("build", tmp_path / "model.yaml", "-o", tmp_path / "out")
    assert made.returncode == 2
    assert "methods.forward: lowering does not know the operator `transformers::grouped_mm_fallback`\n" in made.stderr
    assert 'call `model.set_experts_implementation("batched_mm")` in the factory' in made.stderr
