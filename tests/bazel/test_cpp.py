"""Programs in C++ compute what the Python runtime computes, bit for bit: from files and embedded."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest
import torch
from executorch.runtime import Runtime

from tests.helpers.workspaces import Workspace

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(shutil.which("g++") is None, reason="Bazel compiles C++: install g++"),
]

LABEL = "//examples/cpp"
TEXT, COUNT = "Hello", 4


@pytest.fixture(scope="module")
def compiled(checkout: Workspace, disk_cache: Path) -> Workspace:
    checkout.build(f"{LABEL}:generate", f"{LABEL}:generate_embedded", f"--disk_cache={disk_cache}")
    return checkout


@pytest.fixture(scope="module")
def expected(compiled: Workspace) -> str:
    """What the Python runtime computes."""
    directory = compiled.output("examples/tiny_lm")
    program = Runtime.get().load_program(directory / "tiny_lm.pte", data_path=directory / "tiny_lm.weights.ptd")
    prefill, decode = program.load_method("prefill"), program.load_method("decode")
    tokens = list(TEXT.encode())
    [scores] = prefill.execute([torch.tensor([tokens])])
    lines = []
    for position in range(len(tokens), len(tokens) + COUNT):
        token = int(scores.argmax())
        bits = struct.unpack("<3I", scores.flatten()[:3].numpy().tobytes())
        lines.append(" ".join([str(token), *(f"{each:08x}" for each in bits)]))
        [scores] = decode.execute([torch.tensor([[token]]), torch.tensor([position])])
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("binary", ["generate", "generate_embedded"])
def test_cpp_computes_what_python_computes(binary: str, compiled: Workspace, expected: str) -> None:
    command = [str(compiled.output(f"examples/cpp/{binary}")), TEXT, str(COUNT)]
    runfiles = compiled.output(f"examples/cpp/{binary}.runfiles/rules_executorch")
    done = subprocess.run(command, cwd=runfiles, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == expected


def test_a_missing_file_is_an_error_and_no_crash(compiled: Workspace, tmp_path: Path) -> None:
    binary = compiled.output("examples/cpp/generate")
    shutil.copy(compiled.output("examples/tiny_lm/tiny_lm.pte"), tmp_path)
    done = subprocess.run([binary, TEXT, "1", tmp_path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot load the program: error 0x22" in done.stderr
    (tmp_path / "tiny_lm.weights.ptd").write_bytes(b"of another build")
    done = subprocess.run([binary, TEXT, "1", tmp_path], capture_output=True, text=True, check=False)
    assert "cannot load the program: error 0x24" in done.stderr
