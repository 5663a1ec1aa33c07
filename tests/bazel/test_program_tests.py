"""`executorch_program_test`, `executorch_program_test_suite` and `executorch_benchmark`, run by Bazel."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Iterator

import pytest

from tests.helpers.manifests import one_method
from tests.helpers.snippets import snippets
from tests.helpers.workspaces import Workspace

PACKAGE = "tested"
BUILD = """\
load(":own.bzl", "team_program")
load(
    "//rules:defs.bzl",
    "executorch_benchmark",
    "executorch_program",
    "executorch_program_test",
    "executorch_program_test_suite",
)

executorch_program(
    name = "net",
    srcs = ["model.py"],
    manifest = "the net.yaml",
)

executorch_program(
    name = "net.device",
    srcs = ["model.py"],
    manifest = "the net.yaml",
    variant = "device",
)

executorch_program_test(
    name = "net_test",
    srcs = ["loading.py"],
    data = ["the numbers.txt"],
    program = ":net",
    shard_count = 2,
)

executorch_benchmark(
    name = "bench",
    against = ":net",
    options = ["--calls=2"],
    program = ":shipped",
)

executorch_program(
    name = "own",
    srcs = ["model.py"],
    manifest = "own.yaml",
)

team_program(
    name = "shipped",
    card = "model.py",
    program = ":own",
)

executorch_program_test(
    name = "own_test",
    program = ":shipped",
)

executorch_program_test_suite(
    name = "suite",
    srcs = ["loading.py"],
    data = ["the numbers.txt"],
    programs = [
        ":net",
        ":net.device",
    ],
)
"""
MANIFEST = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
methods:
  forward: {example_inputs: [{shape: [1, 4], fill: arange}]}
tests:
  cases:
    loaded: {method: forward, inputs: [{file: the numbers.txt, loader: "loading:numbers"}]}
variants:
  device: {defaults: {partitioners: [vulkan]}}
"""
OWN = next(each.text for each in snippets() if "team_program = rule(" in each.text)
MODEL = """\
import torch


class Net(torch.nn.Module):
    def forward(self, x):
        return x * 2


def create():
    return Net()
"""
LOADING = """\
import torch


def numbers(path):
    return torch.tensor([[float(number) for number in path.read_text().split()]])
"""


@pytest.fixture
def package(checkout: Workspace) -> Iterator[Workspace]:
    files = {
        "BUILD": BUILD,
        "the net.yaml": MANIFEST,
        "model.py": MODEL,
        "own.bzl": OWN,
        "own.yaml": one_method("[1, 4]").replace("name: net", "name: own"),
        "loading.py": LOADING,
        "the numbers.txt": "1 2 3 4",
    }
    for name, text in files.items():
        checkout.write(f"{PACKAGE}/{name}", text)
    checkout.write(f"{PACKAGE}/other/loading.py", "")
    yield checkout
    (checkout.directory / PACKAGE / "other/loading.py").unlink()
    for name in files:
        (checkout.directory / PACKAGE / name).unlink()


def cases(workspace: Workspace, log: str) -> dict[str, str]:
    """The state of each test in an XML file of Bazel, by its name."""
    tests = ET.parse(workspace.directory / "bazel-testlogs" / PACKAGE / log / "test.xml").iter("testcase")
    return {f"{each.get('classname')}.{each.get('name')}": each[0].tag if len(each) else "passed" for each in tests}


def test_shards_a_filter_and_a_suite(package: Workspace) -> None:
    """Also of the program of the rule in docs/custom-rules.md. The manifest and a file have a space in their names,
    which Bazel 4 allows in no path of the runfiles."""
    package.run("test", *(f"//{PACKAGE}:{test}" for test in ("net_test", "own_test", "suite")), "--test_output=errors")
    first, second = (cases(package, f"net_test/shard_{number}_of_2") for number in (1, 2))
    assert list(cases(package, "own_test")) == ["own.forward.example", "own.forward.random-1"]
    names = ["net.cases.loaded", "net.forward.example", "net.forward.random-1"]
    assert sorted([*first, *second]) == names
    assert sorted(cases(package, "suite.net")) == names
    skipped = cases(package, "suite.net.device")
    assert set(skipped.values()) == {"skipped"}
    assert sorted(skipped) == [name.replace("net.", "net.device.", 1) for name in names]


def test_a_benchmark_of_two_programs(package: Workspace) -> None:
    done = package.run("run", f"//{PACKAGE}:bench", "--", "--runs", "6", "--json", f"{PACKAGE}/results.json")
    results = package.directory / PACKAGE / "results.json"  # relative to where the command was called
    found = json.loads(results.read_text())
    results.unlink()
    assert "forward: " in done.out
    assert found["settings"]["runs"] == 6
    [forward] = found["phases"]
    assert (forward["inputs"], forward["inputs_from"]) == ([{"dtype": "float32", "shape": [1, 4]}], "manifest")
    assert forward["against"]["calls"] == forward["program"]["calls"] == 12
    assert "verdict" in forward


def test_a_filter_chooses_and_a_wrong_loader_fails(package: Workspace) -> None:
    package.edit(f"{PACKAGE}/loading.py", "[[float(number)", "[[int(number)")
    failed = package.run("test", f"//{PACKAGE}:suite.net", "--test_filter=cases/*", "--test_output=errors", expect=3)
    assert list(cases(package, "suite.net")) == ["net.cases.loaded"]
    assert "input 0 of `forward` is int64, and the program takes float32" in failed.out


def test_two_sources_of_one_name_are_named(package: Workspace) -> None:
    """Else it would be chance which one the test imports."""
    library = 'executorch_library(name = "library", srcs = ["other/loading.py"], import_root = "other")\n'
    package.edit(f"{PACKAGE}/BUILD", '"executorch_program",\n', '"executorch_library",\n    "executorch_program",\n')
    package.edit(f"{PACKAGE}/BUILD", "    shard_count = 2,", '    shard_count = 2,\n    deps = [":library"],')
    package.write(f"{PACKAGE}/BUILD", (package.directory / PACKAGE / "BUILD").read_text() + library)
    said = package.build(f"//{PACKAGE}:net_test", "--nobuild", expect=1).err
    assert f"deps: two files have the name 'loading.py': {PACKAGE}/loading.py and {PACKAGE}/other/loading.py" in said
