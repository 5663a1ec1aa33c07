"""Writes a workspace of many programs over few backbones, as a large repository has it.

    python -m benchmarks.monorepo.workspace DIRECTORY [--programs 1000] [--backbones 20] [--teams 10]

`backbones/b07` holds a library and its weights, `apps/team_3/p0123` one program: a head over a backbone. Each backbone
has the same number of programs. One program in ten has the backend `coreml`, the others `xnnpack`. Each has a lock test
with the tag `manual`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

ROOT = Path(__file__).resolve().parents[2]
WIDTH = 16

WORKSPACE = """\
workspace(name = "many")

local_repository(
    name = "rules_executorch",
    path = "{rules}",
)

load("@rules_executorch//rules:repositories.bzl", "executorch_repositories")

executorch_repositories()

local_repository(
    name = "rules_cc",
    path = "{rules}/tests/bazel/stubs/rules_cc",
)

local_repository(
    name = "remote_coverage_tools",
    path = "{rules}/tests/bazel/stubs/remote_coverage_tools",
)

local_repository(
    name = "rules_java",
    path = "{rules}/tests/bazel/stubs/rules_java",
)
"""
MODULE = """\
module(name = "many")

bazel_dep(name = "rules_executorch", version = "0.1.0")

local_path_override(
    module_name = "rules_executorch",
    path = "{rules}",
)
"""
BACKBONE_BUILD = """\
load("@rules_executorch//rules:defs.bzl", "executorch_library")

package(default_visibility = ["//apps:__subpackages__"])

executorch_library(
    name = "{name}",
    srcs = ["{name}.py"],
)

exports_files(["weights.safetensors"])
"""
BACKBONE = """\
import torch


class Backbone(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear({width}, {width})
        self.second = torch.nn.Linear({width}, {width})

    def forward(self, x):
        return self.second(self.first(x).relu())
"""
PROGRAM_BUILD = """\
load("@rules_executorch//rules:defs.bzl", "executorch_lock", "executorch_program")

executorch_program(
    name = "{name}",
    srcs = ["head.py"],
    backends = ["{backend}"],
    manifest = "{name}.yaml",
    named_data = {tags},
    weights = ["//backbones/{backbone}:weights.safetensors"],
    deps = ["//backbones/{backbone}"],
)

executorch_lock(
    name = "update",
    lock = "{name}.lock.json",
    program = ":{name}",
    tags = ["manual"],
)
"""
HEAD = """\
import torch
from backbones.{backbone}.{backbone} import Backbone


class Program(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone()

    def forward(self, x):
        return self.backbone(x) * {number}


def create():
    return Program()
"""
MANIFEST = """\
schema: executorch-model/v1
name: {name}
model: {{factory: "head:create", weights: backbones/{backbone}/weights.safetensors}}
defaults: {{partitioners: [{backend}]}}
methods:
  forward: {{example_inputs: [{{shape: [1, {width}]}}]}}
"""
NAMED_DATA = """\
named_data: {backbone: {parameters: ["backbone.*"]}}
"""


def write(directory: Path, programs: int, backbones: int, teams: int, rules: Path = ROOT) -> None:
    """Writes the workspace.

    Args:
        directory: Where to write; it is made if it is not there.
        programs: How many programs.
        backbones: How many backbones they share.
        teams: How many folders below `apps` they are in.
        rules: The checkout of the rules that the workspace uses.
    """
    for name, text in (("WORKSPACE", WORKSPACE), ("MODULE.bazel", MODULE)):
        _write(directory / name, text.format(rules=rules))
    _write(directory / "BUILD", "")
    _write(directory / ".bazelrc", "build --nosandbox_debug\n")  # which Debian's own turns on
    for number in range(backbones):
        name = f"b{number:02}"
        folder = directory / "backbones" / name
        _write(folder / "BUILD", BACKBONE_BUILD.format(name=name))
        _write(folder / f"{name}.py", BACKBONE.format(width=WIDTH))
        write_weights(folder / "weights.safetensors", number)
    for number in range(programs):
        core_ml = number // backbones % 10 == 9  # its delegates hold the weights, so that none is left for named data
        names = {
            "name": f"p{number:04}",
            "backbone": f"b{number % backbones:02}",
            "backend": "coreml" if core_ml else "xnnpack",
            "tags": "[]" if core_ml else '["backbone"]',
            "number": number + 1,
            "width": WIDTH,
        }
        folder = directory / f"apps/team_{number % teams}/{names['name']}"
        _write(folder / "BUILD", PROGRAM_BUILD.format(**names))
        _write(folder / "head.py", HEAD.format(**names))
        _write(folder / f"{names['name']}.yaml", MANIFEST.format(**names) + ("" if core_ml else NAMED_DATA))


def write_weights(file: Path, seed: int) -> None:
    """Writes the weights of a backbone, float32 [WIDTH, WIDTH] and [WIDTH] for each of its two layers."""
    random = np.random.default_rng(seed)
    shapes = {"weight": (WIDTH, WIDTH), "bias": (WIDTH,)}
    save_file(
        {
            f"backbone.{layer}.{name}": random.standard_normal(shape, np.float32)
            for layer in ("first", "second")
            for name, shape in shapes.items()
        },
        file,
    )


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, "utf-8")


def main() -> None:
    """Writes the workspace that the command line describes."""
    parser = argparse.ArgumentParser(description="Write a workspace of many programs over few backbones.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--backbones", type=int, default=20)
    parser.add_argument("--teams", type=int, default=10)
    options = parser.parse_args()
    write(options.directory, options.programs, options.backbones, options.teams)


if __name__ == "__main__":
    main()
