"""Reads of native code, which Python reports to nobody. Where the kernel has Landlock, it refuses them."""

from __future__ import annotations

import _ctypes
import shutil
import socket
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
import torch
from safetensors.torch import save_file

from etbuild.errors import BuildError
from etbuild.guard import reads
from etbuild.processes import forked
from etplugins.guard import landlock, undeclared

pytestmark = pytest.mark.skipif(not landlock.version(), reason="the kernel has no Landlock")

C = """
import ctypes, os, tempfile
C = ctypes.CDLL(None)
own = tempfile.mkdtemp().encode()

def done(result):
    if result in (-1, None):
        raise OSError("it was refused")
    return result

"""
READERS = {
    "open": f"{C}done(C.open(b'bytes', 0))",
    "open for reading and writing": f"{C}done(C.open(b'bytes', os.O_RDWR))",
    "openat2": f"{C}import struct\ndone(C.syscall(437, -100, b'bytes', struct.pack('QQQ', 0, 0, 0), 24))",
    "a second open of a path": f"{C}done(C.open(b'/proc/self/fd/%d' % C.open(b'bytes', os.O_PATH), 0))",
    "fopen": f"{C}C.fopen.restype = ctypes.c_void_p\ndone(C.fopen(b'bytes', b'r'))",
    "opendir": f"{C}C.opendir.restype = ctypes.c_void_p\ndone(C.opendir(b'.'))",
    "a name in /proc": f"{C}done(C.open(b'/proc/self/cwd/bytes', 0))",
    "a symbolic link": f"{C}C.symlink(os.path.abspath(b'bytes'), own + b'/a')\ndone(C.open(own + b'/a', 0))",
    "a link": f"{C}done(C.link(b'bytes', own + b'/a'))",
    "a rename": f"{C}done(C.rename(b'moved', own + b'/a'))",
    "another root": f"{C}C.chroot(os.path.abspath(b'.'))\ndone(C.open(b'/bytes', 0))",
    "a mount": f"{C}C.unshare(0x20000)\nC.mount(os.path.abspath(b'.'), own, None, 4096, None)\n"
    "done(C.open(own + b'/bytes', 0))",
    "a shared library": "import ctypes\nctypes.CDLL('./library.so')",
    "operators": "import torch\ntorch.ops.load_library('library.so')",
    "another process": "import subprocess\nsubprocess.run(['cat', 'bytes'], check=True)",
    "another process of Python": "import subprocess, sys\n"
    "subprocess.run([sys.executable, '-S', '-c', 'open(\"bytes\")'], check=True)",
    "a thread": "from concurrent.futures import ThreadPoolExecutor\nfrom pathlib import Path\n"
    "list(ThreadPoolExecutor(1).map(Path.read_bytes, [Path('bytes')]))",
    "safetensors.torch": "from safetensors.torch import load_file\nload_file('w.safetensors')",
    "safetensors.numpy": "from safetensors.numpy import load_file\nload_file('w.safetensors')",
    "safetensors.safe_open": "from safetensors import safe_open\nsafe_open('w.safetensors', framework='pt')",
    "tokenizers": "import tokenizers\ntokenizers.Tokenizer.from_file('tokenizer.json')",
    "torch.from_file": "import torch\ntorch.from_file('bytes', size=1, dtype=torch.uint8)",
    "the operator from_file": "import torch\ntorch.ops.aten.from_file('bytes', False, 4, dtype=torch.uint8)",
    "torch.UntypedStorage": "import torch\ntorch.UntypedStorage.from_file('bytes', False, 4)",
    "torch.load with mmap": "import torch\ntorch.load('table.pt', mmap=True)",
    "torch.jit.load": "import torch\ntorch.jit.load('script.pt')",
    "torch.package": "import torch.package\ntorch.package.PackageImporter('script.pt')",
    "sqlite3": "import sqlite3\nsqlite3.connect('table.db').execute('select * from t')",
    "sqlite3 by ATTACH": "import sqlite3\nsqlite3.connect(':memory:').execute('attach \"table.db\" as t')",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("native")
    save_file({"scale": torch.ones(2)}, root / "w.safetensors")
    torch.save(torch.ones(2), root / "table.pt")
    torch.jit.script(torch.nn.Identity()).save(root / "script.pt")
    tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, "a")).save(str(root / "tokenizer.json"))
    with sqlite3.connect(root / "table.db") as connection:
        connection.execute("create table t (value)")
    for name in ("bytes", "moved"):
        (root / name).write_bytes(b"1234")
    shutil.copyfile(str(_ctypes.__file__), root / "library.so")
    return root


def in_a_process(task: Callable[[], None], given: list[Path], data: list[Path], packages: set[str]) -> None:
    def confined() -> None:
        with (
            undeclared.ending_process(),
            reads.unkeyed(),
            undeclared.watched_reads({str(Path.cwd() / "reader.py"): "reader.py"}, data, packages, given),
        ):
            task()

    forked.run({"the reader": confined}, 1)


def run(code: str) -> None:
    exec(compile(code, str(Path.cwd() / "reader.py"), "exec"), {})


@pytest.mark.parametrize("name", READERS)
def test_a_native_reader_is_refused(name: str, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files)
    with pytest.raises((BuildError, forked.ChildFailed)) as raised:
        in_a_process(lambda: run(READERS[name]), [], [], {"torch"})
    assert (
        "No such file" not in str(raised.value) or "safetensors" in name
    )  # which says so of each file that it cannot open


def test_what_is_declared_or_given_can_be_read(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files)
    opens = f"{C}done(C.open(b'bytes', 0))\ndone(C.open(b'moved', 0))"
    in_a_process(lambda: run(opens), [files / "moved"], [files / "bytes"], set())


def test_a_process_has_no_network(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not reach a server of this machine."""
    monkeypatch.chdir(files)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        connects = f"{C}import struct\naddress = struct.pack('=H', 2) + struct.pack('!H', {port}) + b'\\x7f\\0\\0\\1'\n"
        connects += "done(C.connect(C.socket(2, 1, 0), address + bytes(8), 16))"
        forked.run({"outside": lambda: run(connects)}, 1)
        with pytest.raises(forked.ChildFailed, match="it was refused"):
            in_a_process(lambda: run(connects), [], [], set())


def test_reads_of_a_process_that_goes_on_are_not_refused_by_the_kernel(files: Path) -> None:
    with undeclared.watched_reads({}, [], set()):
        pass
    assert (files / "bytes").read_bytes() == b"1234"
