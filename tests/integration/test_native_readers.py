"""Reads of native code for a model, in a process that has imported only the driver and PyTorch."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

READERS = {
    "safetensors.torch": "from safetensors.torch import load_file\nload_file('w.safetensors')",
    "safetensors.numpy": "from safetensors.numpy import load_file\nload_file('w.safetensors')",
    "safetensors.safe_open": "from safetensors import safe_open\nsafe_open('w.safetensors', framework='pt')",
    "safetensors.safe_open by keyword": "import safetensors\n"
    "safetensors.safe_open(filename='w.safetensors', framework='pt')",
    "torch.from_file": "import torch\ntorch.from_file('bytes', size=1, dtype=torch.uint8)",
    "torch.UntypedStorage": "import torch\ntorch.UntypedStorage.from_file('bytes', False, 4)",
    "torch.UntypedStorage, of an instance": "import torch\ntorch.UntypedStorage().from_file('bytes', False, 4)",
    "torch.Storage": "import torch\ntorch.Storage.from_file('bytes', False, 1)",
    "torch.ByteStorage": "import torch\ntorch.ByteStorage.from_file(filename='bytes', shared=False, size=4)",
    "torch.load with mmap": "import torch\ntorch.load('table.pt', mmap=True)",
    "torch.jit.load": "import torch\ntorch.jit.load('script.pt')",
    "torch.jit._serialization": "from torch.jit._serialization import load\nload('script.pt')",
    "torch.package": "import torch.package\ntorch.package.PackageImporter('script.pt')",
}

# Each reader runs in a fork of the process, which has imported nothing more.
PROCESS = """
import os, sys, torch
from pathlib import Path
from etbuild.inputs import undeclared
from etbuild.errors import BuildError

assert "safetensors" not in sys.modules
for file in sys.argv[1:]:
    if os.fork():
        os.wait()
        continue
    try:
        with undeclared.watched_reads({file: Path(file).name}, [], {"safetensors", "torch", "numpy"}):
            exec(compile(Path(file).read_text(), file, "exec"), {})
        print(file, "was not noticed", flush=True)
    except BuildError as error:
        print(file, error, flush=True)
    os._exit(0)
"""


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The message of the process about each reader, in order."""
    root = tmp_path_factory.mktemp("native")
    save_file({"scale": torch.ones(2)}, root / "w.safetensors")
    torch.save(torch.ones(2), root / "table.pt")
    torch.jit.script(torch.nn.Identity()).save(root / "script.pt")
    (root / "bytes").write_bytes(b"1234")
    files = [root / f"reader_{index}.py" for index in range(len(READERS))]
    for file, code in zip(files, READERS.values(), strict=True):
        file.write_text(code)
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, *map(str, files)], cwd=root, check=True, capture_output=True, text=True
    )
    said = done.stdout.split(f"{root}/reader_")[1:]
    assert len(said) == len(READERS), done.stdout
    return said


@pytest.mark.parametrize("name", READERS)
def test_a_native_reader_is_noticed(name: str, heard: list[str]) -> None:
    assert ", opens " in heard[list(READERS).index(name)]
