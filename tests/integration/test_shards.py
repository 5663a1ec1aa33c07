"""Named data in several files: which file contains which weight, what an edit changes, and that the runtime reads
them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import executorch
import pytest
import torch

from etbuild.errors import InputError
from etplugins.runtime import program_files
from tests.helpers.runtime import run

from .conftest import Build, Outcome
from .sharded_net import LAYER, MANIFEST, built, weights


def shards(made: Outcome) -> list[str]:
    index = made.json("net.index.json")
    listed = [artifact["file"] for artifact in index["artifacts"] if artifact["kind"] == "named_data"]
    on_disk = [path.relative_to(made.directory).as_posix() for path in made.directory.rglob("*.ptd")]
    assert sorted(listed) == sorted(on_disk)
    assert index["named_data"]["all"] == [name.rpartition("-")[2].removesuffix(".ptd") for name in listed]
    return listed


def test_each_layer_has_a_shard_that_is_called_after_its_content(build: Build) -> None:
    made = built(build)
    assert len(shards(made)) == 4
    assert made.files == ["net.all", "net.index.json", "net.pte", "net.report.json"]


def test_a_changed_tensor_changes_only_its_shard(build: Build) -> None:
    before, after = shards(built(build)), shards(built(build, content=weights(layer2_weight=1.0)))
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, True, False, True]


def test_another_method_changes_no_shard(build: Build) -> None:
    more = MANIFEST.replace("named_data:", "  first: {example_inputs: [{shape: [1, 8]}]}\nnamed_data:")
    assert shards(built(build)) == shards(built(build, more))


def test_a_shard_may_hold_a_weight_larger_than_its_size(build: Build) -> None:
    made = built(build, MANIFEST.replace(f"shard_size: {LAYER}", "shard_size: 1"))
    assert len(shards(made)) == 8


@pytest.mark.parametrize("partitioners", ["xnnpack", ""])
def test_missing_named_data_is_an_error_before_the_runtime_reads_it(
    build: Build, tmp_path: Path, partitioners: str
) -> None:
    made = built(build, MANIFEST.replace("xnnpack", partitioners))
    program = Path(shutil.copy(made.directory / "net.pte", tmp_path))  # without its index
    parts = [made.directory / name for name in shards(made)]
    for some in ([], parts[:-1]):
        with pytest.raises(InputError, match=r"net\.pte needs a file of named data: it has no tensor `\w"):
            program_files.read(program, some)
    assert program_files.read(program, [made.directory / "net.all"]).named_data == tuple(sorted(parts))


def test_portable_operators_read_shards_too(build: Build, tmp_path: Path) -> None:
    made = built(build, MANIFEST.replace("[xnnpack]", "[]"))
    assert len(shards(made)) == 4
    assert_runs_as_eager(made, tmp_path)


def test_a_weight_that_two_shards_have_goes_to_the_first(build: Build, tmp_path: Path) -> None:
    same = weights()
    same["layers.3.bias"] = same["layers.0.bias"].clone()
    assert_runs_as_eager(built(build, content=same), tmp_path, same)


def test_a_folded_batchnorm_works_with_shards(build: Build) -> None:
    model = """\
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = nn.Conv1d(8, 8, 1)
                self.norm = nn.BatchNorm1d(8)

            def forward(self, x):
                return self.norm(self.conv(x.unsqueeze(-1)))

        def create():
            torch.manual_seed(1)
            return Net()
    """
    manifest = MANIFEST.replace(", weights: w.safetensors", "").replace(f"shard_size: {LAYER}", "shard_size: 32")
    made = build(manifest, model=model)
    assert made.code == 0, made.err
    assert shards(made)


def assert_runs_as_eager(made: Outcome, scratch: Path, content: dict[str, torch.Tensor] | None = None) -> None:
    ((outputs,),) = run(made.directory / "net.pte", [[("forward", [torch.ones(1, 8)])]], scratch)
    torch.testing.assert_close(outputs[0], eager(content))


def eager(content: dict[str, torch.Tensor] | None = None) -> torch.Tensor:
    names = content or weights()
    x = torch.ones(1, 8)
    for number in range(4):
        x = torch.nn.functional.linear(x, names[f"layers.{number}.weight"], names[f"layers.{number}.bias"]).relu()
    return x


def test_the_python_runtime_reads_shards_merged(build: Build, tmp_path: Path) -> None:
    assert_runs_as_eager(built(build), tmp_path)


@pytest.mark.skipif(shutil.which("g++") is None, reason="links a program with ExecuTorch's C++ runtime: install g++")
def test_the_cpp_runtime_reads_shards_as_they_are(build: Build, tmp_path: Path) -> None:
    package = Path(executorch.__path__[0])
    program = tmp_path / "run_with_shards"
    include = [f"-I{package}/include", f"-I{package}/include/executorch/runtime/core/portable_type/c10"]
    defines = ["-DC10_USING_CUSTOM_GENERATED_MACROS", "-DET_EVENT_TRACER_ENABLED"]
    libraries = [f"-L{package}/lib", "-lexecutorch", "-Wl,--no-as-needed", "-lexecutorch_kernels_optimized"]
    libraries += ["-lexecutorch_backend_xnnpack", "-lexecutorch_threadpool", f"-Wl,-rpath,{package}/lib"]
    source = Path(__file__).with_name("run_with_shards.cpp")
    subprocess.run(["g++", "-std=c++17", *defines, *include, str(source), "-o", str(program), *libraries], check=True)
    made = built(build)
    files = [str(made.directory / name) for name in shards(made)]
    done = subprocess.run([program, made.directory / "net.pte", *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    torch.testing.assert_close(torch.tensor([[float(line) for line in done.stdout.split()]]), eager())
