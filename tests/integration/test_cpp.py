"""The C++ class of a program computes what Python computes, from files and embedded, and checks its arguments."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from etbuild.cli import main
from etkit.native.cpp import wrapper
from etkit.native.cpp.wrapper import class_name, file_stem
from tests.helpers.cpp_headers import COMPILE, PACKAGE
from tests.helpers.runtime import run

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="compiles C++: install g++")

LIBRARIES = [
    f"-L{PACKAGE}/lib",
    f"-Wl,-rpath,{PACKAGE}/lib",
    "-Wl,--no-as-needed",
    "-lexecutorch",
    "-lexecutorch_kernels_optimized",
    "-lexecutorch_kernels_quantized",
    "-lexecutorch_backend_xnnpack",
    "-lexecutorch_threadpool",
]
CALLER = """\
#include <cstdio>
#include <cstdlib>
#include "@STEM@_data.h"

template <class Result>
static void print(const Result& results) {
  if (!results.ok()) {
    std::printf("error %x\\n", static_cast<unsigned>(results.error()));
    std::exit(1);
  }
  std::apply(
      [](const auto&... outputs) {
        ((std::printf("-"), std::for_each_n(
              reinterpret_cast<const unsigned char*>(outputs.data()),
              outputs.size() * sizeof(*outputs.data()),
              [](unsigned char byte) { std::printf("%02x", byte); })), ...);
      },
      *results);
  std::printf("\\n");
}

template <class T, size_t kCount>
static std::array<T, kCount> ramp() {
  std::array<T, kCount> made;
  for (size_t i = 0; i < kCount; ++i) {
    made[i] = static_cast<T>(i % 3);
  }
  return made;
}

static int run(@STEM@::@CLASS@& program) {
  if (program.load() != etbuild::Error::Ok) {
    return 1;
  }
@CALLS@
  return 0;
}

int main(int, char** arguments) {
  @STEM@::@CLASS@ from_files(arguments[1]);
  @STEM@::@CLASS@ embedded(@STEM@::embedded_files());
  return run(from_files) || run(embedded);
}
"""
TYPES = {"float32": "float", "int64": "int64_t"}


def calls(report: Any) -> str:
    """C++ that calls each method with numbers that repeat 0, 1, 2, at its largest sizes."""
    lines = []
    for name, method in sorted(report["methods"].items()):
        arguments = []
        for number, value in enumerate(method["inputs"]):
            made = f"{name}{number}"
            kind, count = TYPES[value["dtype"]], math.prod(value["shape"])
            lines.append(f"  static const auto {made} = ramp<{kind}, {count}>();")
            sizes = ", ".join(map(str, value["shape"]))
            arguments.append(f"{{{made}.data(), {{{sizes}}}}}" if value["dynamic"] else made)
        lines.append(f"  print(program.{name}({', '.join(arguments)}));")
    return "\n".join(lines)


def ramp(value: Any) -> torch.Tensor:
    count = math.prod(value["shape"])
    return (torch.arange(count) % 3).to(getattr(torch, value["dtype"])).reshape(value["shape"])


def compiled(source: str, directory: Path, *more: str) -> subprocess.CompletedProcess[str]:
    (directory / "caller.cc").write_text(source)
    command = [*COMPILE, str(directory / "caller.cc"), *more]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ["mlp", "tiny_lm", "spotter_int8", "vision"])
def test_cpp_computes_what_python_computes(name: str, cli_built: Callable[[str], Path], tmp_path: Path) -> None:
    program = cli_built(name)
    report = json.loads(program.with_suffix(".report.json").read_text())
    assert main.main(["cpp", str(program), "-o", str(tmp_path), "--embed"]) == 0
    stem = file_stem(name)
    source = CALLER.replace("@STEM@", stem).replace("@CLASS@", class_name(name)).replace("@CALLS@", calls(report))
    made = compiled("#include <algorithm>\n" + source, tmp_path, f"{stem}_data.cc", "-o", "caller", *LIBRARIES)
    assert made.returncode == 0, made.stderr
    done = subprocess.run([tmp_path / "caller", program.parent], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-300:] + done.stderr

    session = [(method, list(map(ramp, facts["inputs"]))) for method, facts in sorted(report["methods"].items())]
    [results] = run(program, [session], tmp_path)
    expected = ["".join(f"-{output.numpy().tobytes().hex()}" for output in outputs) for outputs in results]
    assert done.stdout.splitlines() == 2 * expected


@pytest.mark.parametrize(
    ("call", "error"),
    [
        pytest.param("program.forward(std::array<float, 8>{})", None, id="right"),
        pytest.param(
            "program.forward(std::array<float, 7>{})",
            "another number of elements than the method's tensor",
            id="elements",
        ),
        pytest.param(
            "program.forward(std::array<double, 8>{})",
            "no matching function|could not convert|cannot convert",
            id="dtype",
        ),
        pytest.param("program.forward()", "too few arguments|no matching function", id="missing"),
        pytest.param("program.forwards(std::array<float, 8>{})", "has no member named", id="name"),
        pytest.param(
            "std::get<1>(*program.forward(std::array<float, 8>{}))",
            "static assertion failed|no matching function",
            id="result",
        ),
    ],
)
def test_the_compiler_checks_a_call(call: str, error: str | None, tmp_path: Path) -> None:
    from tests.helpers.cpp_headers import TENSOR, header

    report: Any = header([TENSOR], [TENSOR])
    whole = Path(wrapper.__file__).with_name("typed_program.h")
    source = f'#include "{whole}"\n{report}\nvoid call(net::Net& program) {{ (void)({call}); }}\n'
    made = compiled(source, tmp_path, "-fsyntax-only")
    if error is None:
        assert made.returncode == 0, made.stderr
    else:
        assert made.returncode != 0
        assert any(each in made.stderr for each in error.split("|")), made.stderr
