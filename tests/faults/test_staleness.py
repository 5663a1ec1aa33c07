"""Tests each way in which a model can read something: builds, changes what the model reads, and builds again.

`docs/staleness.md` describes the results in the same words and for the same rows.
"""

from __future__ import annotations

import _ctypes
import base64
import hashlib
import importlib
import json
import os
import posix
import py_compile
import re
import shutil
import sqlite3
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import tokenizers
import torch
from safetensors.torch import save_file

from etbuild.cli import main
from etbuild.key import distributions
from etkit.local import checked_files
from etplugins.guard import landlock, readable_places
from etplugins.worker.warm_up import warm
from tests.helpers.manifests import HEAD

DOCUMENT = Path(__file__).parents[2] / "docs/staleness.md"
REBUILT, REFUSED, ANEW, UNNOTICED = "rebuilt", "refused", "built each time", "not noticed"

MANIFEST = HEAD + "methods: {forward: {example_inputs: [{shape: [2]}]}}\n"
NET = """
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        return x * VALUE

def create():
    return Net()
"""
HELPER = {"helper.py": "VALUE = 2\n"}


class Project:
    """A manifest and a model, in the current directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text)

    def build(self, *options: str) -> tuple[int, bytes]:
        """Builds, and returns the exit code and the program."""
        out = self.root / "out"
        shutil.rmtree(out, ignore_errors=True)
        cache = self.root / "cache"
        code = main.main(["build", str(self.root / "net.yaml"), "-o", str(out), "--cache-dir", str(cache), *options])
        return code, (out / "net.pte").read_bytes() if code == 0 else b""


@dataclass(frozen=True)
class Row:
    """A way to read something.

    Attributes:
        happens: The result, in the words of the document.
        model: The code that sets VALUE, in front of `NET`; or the whole model, if it defines the names of `NET` itself.
        files: Additional files. They may replace `model.py` and the manifest.
        edit: The files to write after the first build.
        prepare: Called before the first build, with the project's directory.
        change: Called before the second build, with the project's directory.
        options: Options of `etbuild build`.
        says: Text in the error, if the build is refused.
        without: The result where the kernel has no Landlock, if it is another one.
    """

    happens: str
    model: str = "from helper import VALUE"
    files: Mapping[str, str] = field(default_factory=dict)
    edit: Mapping[str, str] = field(default_factory=dict)
    prepare: Callable[[Path], object] = lambda root: None
    change: Callable[[Path], object] = lambda root: None
    options: tuple[str, ...] = ()
    says: str = r"model\.py:\d+, in .*, opens .*\n.*`--data"
    without: str | None = None

    @property
    def shown(self) -> str:
        """The result in the words of the document."""
        return self.happens if self.without is None else f"{self.happens}; without Landlock: {self.without}"


def rebuilt(model: str, files: Mapping[str, str], edited: str, **others: Any) -> Row:
    """Returns a row in which 2 becomes 3 in one of the files."""
    return Row(REBUILT, model, files, {edited: files[edited].replace("2", "3")}, **others)


def refused(model: str, files: Mapping[str, str] | None = None, **others: Any) -> Row:
    return Row(REFUSED, model, files or {}, **others)


BY_KERNEL = r"model\.py:\d+, in .*: .*\n(.*\n)?.* is not declared: .*`--data"


def refused_by_kernel(model: str, says: str = BY_KERNEL, without: str = UNNOTICED, **others: Any) -> Row:
    """Returns a row that the kernel refuses. Without Landlock nobody notices it, or it is built each time."""
    return Row(REFUSED, model, says=says, without=without, **others)


def unnoticed(model: str, **others: Any) -> Row:
    return Row(UNNOTICED, model, **others)


def keep_stale_bytecode(root: Path) -> None:
    """Writes bytecode as `compileall --invalidation-mode unchecked-hash` does."""
    py_compile.compile(str(root / "helper.py"), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)


def edit_within_the_second(root: Path) -> None:
    times = (root / "helper.py").stat()
    (root / "helper.py").write_text("VALUE = 3\n")
    os.utime(root / "helper.py", ns=(times.st_atime_ns, times.st_mtime_ns))


def install(root: Path, value: object = 2) -> None:
    """Installs a package, with the list of its files, in a directory on Python's path."""
    content, information = f"VALUE = {value}\n", root / "site/stale_package-1.0.dist-info"
    information.mkdir(parents=True, exist_ok=True)
    (root / "site/stale_package.py").write_text(content)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: stale-package\nVersion: 1.0\n")
    (information / "top_level.txt").write_text("stale_package\n")
    sha256 = base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).rstrip(b"=").decode()
    (information / "RECORD").write_text(f"stale_package.py,sha256={sha256},{len(content)}\n")
    if str(root / "site") not in sys.path:
        sys.path.append(str(root / "site"))
    distributions._distribution.cache_clear()
    distributions.facts.cache_clear()
    sys.modules.pop("stale_package", None)


def install_and_import(root: Path, value: object = 2) -> None:
    install(root, value)
    importlib.import_module("stale_package")


def install_and_make_a_file(root: Path) -> None:
    install(root)
    (root / "site/made.txt").write_text("2")


def edit_installed(root: Path) -> None:
    """Edits the installed package after its installation. The size stays."""
    module = root / "site/stale_package.py"
    module.write_text(module.read_text().replace("2", "3"))
    late = module.stat().st_mtime + 60
    os.utime(module, (late, late))


def install_project(root: Path) -> None:
    """Installs a project as editable. No source imports it."""
    information = root / "site/stale_project-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: stale-project\nVersion: 1.0\n")
    origin = {"url": (root / "project").as_uri(), "dir_info": {"editable": True}}
    (information / "direct_url.json").write_text(json.dumps(origin))
    sys.path.append(str(root / "site"))
    save_array(root / "project/table.npy")


def on_the_path(root: Path) -> None:
    sys.path.append(str(root / "added"))  # as a line of a `.pth` file does
    save_array(root / "added/table.npy")


def save_array(file: Path, value: int = 2) -> None:
    file.parent.mkdir(exist_ok=True)
    numpy.save(file, value)


def save_tokenizer(root: Path, *words: str) -> None:
    vocabulary = {word: index for index, word in enumerate(("a", "b", *words))}
    tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, "a")).save(str(root / "tokenizer.json"))


def make_archive(root: Path) -> None:
    with zipfile.ZipFile(root / "vendored.zip", "w") as archive:
        archive.writestr("vendored_in_archive.py", "VALUE = 2\n")


def make_database(root: Path) -> None:
    connection = sqlite3.connect(root / "table.db")
    connection.execute("create table t (value)")
    connection.execute("insert into t values (2)")
    connection.commit()
    connection.close()


def save_weights(root: Path, value: float = 2.0) -> None:
    save_file({"scale": torch.full((2,), value)}, root / "w.safetensors")


def save_export(root: Path) -> None:
    class Twice(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    torch.export.save(torch.export.export(Twice(), (torch.ones(2),)), root / "table.pt2")


def save_script(root: Path) -> None:
    torch.jit.save(torch.jit.script(torch.nn.ReLU()), str(root / "table.pt"))


def copy_library(root: Path) -> None:
    shutil.copyfile(str(_ctypes.__file__), root / "table.so")


def share(value: int) -> None:
    Path("/dev/shm/stale_memory").write_bytes(bytes([value]))


TABLE = {"table.txt": "2"}
OF_THE_MACHINE = {"etc/table.txt": "2"}  # `project` makes it one of the machine's directories
SCALED = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(2))

    def forward(self, x):
        return x * self.scale

def create():
    return Net()
"""
WITH_WEIGHTS = MANIFEST.replace('create"}', 'create", weights: w.safetensors}')
WITH_KWARGS = MANIFEST.replace('create"}', 'create", kwargs: {value: 2}}')
WITH_MODULES = MANIFEST.replace('create"}', 'create", modules: [helper]}')
WITH_CONSTANT = MANIFEST + 'constant_methods: {size: {factory: "model:size"}}\n'
WITH_PARTITIONER = MANIFEST + 'defaults: {partitioners: [{backend: custom, options: {factory: "model:take"}}]}\n'
ANOTHER_MODEL = r"something else than the model in .*\n(.*\n)*.*a factory that makes another model each time"
IMPORTED = r"model\.py:\d+, in .*, imports .*vendored.*\n.*declare it as a source"

ROWS = {
    # Sources and packages
    "an import statement": rebuilt("from helper import VALUE", HELPER, "helper.py"),
    "an import statement inside of a function": rebuilt(
        "def value():\n    from helper import VALUE\n    return VALUE\nVALUE = value()", HELPER, "helper.py"
    ),
    "a relative import in a package": rebuilt(
        "from pkg import VALUE",
        {"pkg/__init__.py": "from .part import VALUE\n", "pkg/part.py": "VALUE = 2\n"},
        "pkg/part.py",
    ),
    "the `__init__.py` of a package whose module is imported": rebuilt(
        "import pkg.part\nVALUE = pkg.VALUE", {"pkg/__init__.py": "VALUE = 2\n", "pkg/part.py": ""}, "pkg/__init__.py"
    ),
    "`importlib.import_module` or `__import__`, the name spelled out": rebuilt(
        "import importlib\nVALUE = importlib.import_module('helper').VALUE + __import__('other').VALUE",
        {**HELPER, "other.py": "VALUE = 2\n"},
        "other.py",
    ),
    "a source by a computed name, listed in `model.modules`": rebuilt(
        "import importlib\nVALUE = importlib.import_module('hel' + 'per').VALUE",
        {**HELPER, "net.yaml": WITH_MODULES},
        "helper.py",
    ),
    "a source by a computed name": refused(
        "import importlib\nVALUE = importlib.import_module('hel' + 'per').VALUE", HELPER, says="list it in `model.modul"
    ),
    "bytecode beside a source, whatever it holds": rebuilt(
        "from helper import VALUE", HELPER, "helper.py", prepare=keep_stale_bytecode
    ),
    "a source of the same size and time as before": Row(
        REBUILT,
        files=HELPER,
        prepare=lambda root: py_compile.compile(str(root / "helper.py")),
        change=edit_within_the_second,
    ),
    "an installed package, by an import statement": Row(
        REBUILT, "from stale_package import VALUE", prepare=install, change=lambda root: install(root, 3)
    ),
    "an installed package, by a computed name": Row(
        REBUILT,
        "import importlib\nVALUE = importlib.import_module('stale_' + 'package').VALUE",
        prepare=install,
        change=lambda root: install(root, 3),
    ),
    "a package that another one has imported, out of `sys.modules`": Row(
        REBUILT,
        "import sys\nVALUE = sys.modules['stale_package'].VALUE",
        prepare=install_and_import,
        change=lambda root: install_and_import(root, 3),
    ),
    "a package that is not installed, and a default in its place": Row(
        REBUILT,
        "try:\n    VALUE = __import__('stale_' + 'package').VALUE\nexcept ImportError:\n    VALUE = 2",
        change=lambda root: install(root, 3),
    ),
    "which packages are installed (`find_spec`, `importlib.metadata`, entry points)": Row(
        REBUILT,
        "from importlib.metadata import distributions\n"
        "VALUE = 2 + sum(d.name == 'stale-package' for d in distributions())",
        change=install,
    ),
    "a module in a directory that is added to `sys.path`": refused(
        "import sys\nsys.path.insert(0, 'vendored')\nfrom vendored_module import VALUE",
        {"vendored/vendored_module.py": "VALUE = 2\n"},
        says=r"model\.py:3, in .*'vendored_module'\n.*is `vendored_module` a source of yours\? Declare it",
    ),
    "a module in an archive that is added to `sys.path`": refused(
        "import sys\nsys.path.insert(0, 'vendored.zip')\nfrom vendored_in_archive import VALUE",
        prepare=make_archive,
        says=r"model\.py:\d+, in .*vendored\.zip",
    ),
    "a module by its file (`importlib.util.spec_from_file_location`)": refused(
        "import importlib.util\n"
        "spec = importlib.util.spec_from_file_location('vendored', 'vendored/m.py')\n"
        "module = importlib.util.module_from_spec(spec)\nspec.loader.exec_module(module)\nVALUE = module.VALUE",
        {"vendored/m.py": "VALUE = 2\n"},
        says=IMPORTED,
    ),
    "a script (`runpy.run_path`)": refused(
        "import runpy\nVALUE = runpy.run_path('vendored.py')['VALUE']", {"vendored.py": "VALUE = 2\n"}, says=IMPORTED
    ),
    "code of a file (`exec`)": refused("exec(open('table.py').read())", {"table.py": "VALUE = 2\n"}),
    # Files
    "a declared data file, opened by the model": Row(
        REBUILT, "VALUE = int(open('table.txt').read())", TABLE, {"table.txt": "3"}, options=("--data=t=table.txt",)
    ),
    "another file": refused("VALUE = int(open('table.txt').read())", TABLE),
    "a file beside the source (`__file__`)": refused(
        "from pathlib import Path\nVALUE = int(Path(__file__).with_name('table.txt').read_text())", TABLE
    ),
    "a file by a descriptor (`os.open`, `mmap`)": refused(
        "import os\nVALUE = int(os.read(os.open('table.txt', os.O_RDONLY), 9))", TABLE
    ),
    "a resource of a package (`importlib.resources`, `pkgutil`)": refused(
        "import pkg\nVALUE = pkg.VALUE",
        {
            "pkg/__init__.py": "import pkgutil\nVALUE = int(pkgutil.get_data('pkg', 'table.txt'))\n",
            "pkg/table.txt": "2",
        },
        says=r"pkg/__init__\.py:2, in .*, opens .*table\.txt",
    ),
    "a file of an installed package that no source imports": Row(
        REBUILT,
        "import os, sys\nVALUE = len(open(os.path.join(sys.path[-1], 'stale_package.py')).read())",
        prepare=install,
        change=lambda root: install(root, 33),
    ),
    "a file of an installed package that its RECORD does not list": unnoticed(
        "import os, stale_package\n"
        "VALUE = int(open(os.path.join(os.path.dirname(stale_package.__file__), 'made.txt')).read())",
        prepare=install_and_make_a_file,
        change=lambda root: (root / "site/made.txt").write_text("3"),
    ),
    "a file of an editable project that no source imports, by a library": Row(
        ANEW,
        "import numpy\nVALUE = int(numpy.load('project/table.npy'))",
        prepare=install_project,
        change=lambda root: save_array(root / "project/table.npy", 3),
        says=r"note: model\.py:2, in <module>, reads project/table\.npy, which the key does not cover",
    ),
    "a file in a directory of `sys.path` without installed packages, by a library": Row(
        ANEW,
        "import numpy\nVALUE = int(numpy.load('added/table.npy'))",
        prepare=on_the_path,
        change=lambda root: save_array(root / "added/table.npy", 3),
        says=r"note: model\.py:2, in <module>, reads added/table\.npy, which the key does not cover",
    ),
    "a file in `/etc` or `/usr/share`, by a library": Row(
        ANEW,
        "import numpy\nVALUE = int(numpy.load('etc/table.npy'))",
        prepare=lambda root: save_array(root / "etc/table.npy"),
        change=lambda root: save_array(root / "etc/table.npy", 3),
        says=r"note: model\.py:2, in <module>, reads etc/table\.npy, which the key does not cover",
    ),
    "a file in `/dev/shm`": refused(
        "import numpy\nVALUE = int(numpy.load('/dev/shm/stale_table.npy'))",
        prepare=lambda root: save_array(Path("/dev/shm/stale_table.npy")),
    ),
    "a file in `/proc` or `/sys`, and a device in `/dev`, by a library": unnoticed(
        "import numpy\nVALUE = numpy.loadtxt('/proc/self/statm').size"
    ),
    "`numpy.load`": refused(
        "import numpy\nVALUE = int(numpy.load('table.npy'))", prepare=lambda root: numpy.save(root / "table.npy", 2)
    ),
    "`torch.load`": refused(
        "import torch\nVALUE = torch.load('table.pt')", prepare=lambda root: torch.save(2, root / "table.pt")
    ),
    "`torch.jit.load`": refused_by_kernel(
        "import torch\nVALUE = int(torch.jit.load('table.pt')(torch.ones(1)))", prepare=save_script
    ),
    "`torch.export.load`": refused("import torch\nVALUE = torch.export.load('table.pt2')", prepare=save_export),
    "`torch.from_file`": refused_by_kernel(
        "import torch\nVALUE = int(torch.from_file('table.txt', size=1, dtype=torch.uint8))",
        files=TABLE,
        edit={"table.txt": "3"},
    ),
    "safetensors": refused_by_kernel(
        "from safetensors.torch import load_file\nVALUE = float(load_file('w.safetensors')['scale'][0])",
        prepare=save_weights,
        change=lambda root: save_weights(root, 3.0),
    ),
    "a database (`sqlite3`)": refused_by_kernel(
        "import sqlite3\nVALUE = sqlite3.connect('table.db').execute('select * from t').fetchone()[0]",
        prepare=make_database,
        says=r"unable to open database file\n    if it opens a file: builds open only declared ones",
    ),
    "a database (`ATTACH` in `sqlite3`)": refused_by_kernel(
        "import sqlite3\nconnection = sqlite3.connect(':memory:')\nconnection.execute('attach \"table.db\" as other')\n"
        "VALUE = connection.execute('select * from other.t').fetchone()[0]\nconnection.close()",
        prepare=make_database,
    ),
    "native code of another package that opens a file": refused_by_kernel(
        "import ctypes\nlibc, content = ctypes.CDLL(None), ctypes.create_string_buffer(9)\n"
        "libc.read(libc.open(b'table.txt', 0), content, 9)\nVALUE = int(content.value)",
        says=r"model\.py:4, in <module>: ValueError: invalid literal",
        files=TABLE,
        edit={"table.txt": "3"},
    ),
    "`tokenizers.Tokenizer.from_file`": refused_by_kernel(
        "from tokenizers import Tokenizer\nVALUE = Tokenizer.from_file('tokenizer.json').get_vocab_size()",
        says=r"model\.py:2, in <module>: .*Permission denied.*\n    if it opens a file: builds open only declared ones",
        prepare=save_tokenizer,
        change=lambda root: save_tokenizer(root, "c"),
    ),
    "a file that is opened in another thread (`concurrent.futures`, `asyncio.to_thread`)": refused_by_kernel(
        "import asyncio, pathlib\nVALUE = int(asyncio.run(asyncio.to_thread(pathlib.Path('table.txt').read_text)))",
        files=TABLE,
        edit={"table.txt": "3"},
        without=ANEW,
    ),
    "a file that is not there, and a default in its place": refused(
        "try:\n    VALUE = int(open('table.txt').read())\nexcept Exception:\n    VALUE = 2"
    ),
    "a file in the temporary directory, left by another process": refused(
        "import os\nVALUE = int(open(os.path.join(os.path.dirname(__file__), 'tmp', 'table.txt')).read())",
        {"tmp/table.txt": "2"},
    ),
    "a file under a new name, by a link or a rename": refused_by_kernel(
        "import os, tempfile\nmade = tempfile.mkdtemp() + '/table.txt'\nos.link('table.txt', made)\n"
        "VALUE = int(open(made).read())",
        files=TABLE,
        says=r"model\.py:3, in <module>: .*cross-device link.*\n.*again only what it has written below `tempfile",
    ),
    "the names in a directory (`os.listdir`, `glob`)": refused(
        "import glob\nVALUE = len(glob.glob('*.txt'))", TABLE, says="lists the directory"
    ),
    "the names in a directory, by a descriptor (`os.fwalk`)": refused(
        "import os\nVALUE = len(next(os.fwalk('.'))[2])", TABLE, says=r"lists the directory|\. is not declared"
    ),
    "whether a file is there, its size and time (`os.stat`)": unnoticed(
        "import os\nVALUE = 2 if os.path.exists('flag') else 3", change=lambda root: (root / "flag").touch()
    ),
    "where a link leads (`os.readlink`), attributes (`os.getxattr`)": unnoticed(
        "import os\nVALUE = len(os.readlink('link'))", prepare=lambda root: (root / "link").symlink_to("table.txt")
    ),
    # When
    "a file that a method opens": refused(
        NET.replace("VALUE", "int(open('table.txt').read())") + "VALUE = 0", TABLE, says="in forward, opens"
    ),
    "a file that a constant method's code opens": refused(
        "VALUE = 2\ndef size():\n    return int(open('table.txt').read())",
        {**TABLE, "net.yaml": WITH_CONSTANT},
        says="in size, opens",
    ),
    "a file that a custom partitioner opens": refused(
        "VALUE = 2\ndef take():\n    return open('table.txt').read()",
        {**TABLE, "net.yaml": WITH_PARTITIONER},
        says="in take, opens",
    ),
    "a file that an installed package reads while it is imported": refused_by_kernel(
        "from stale_package import VALUE",
        files=TABLE,
        edit={"table.txt": "3"},
        prepare=lambda root: install(root, "int(open('table.txt').read())"),
    ),
    # Libraries
    "a shared library (`ctypes`)": refused_by_kernel(
        "import ctypes\nVALUE = ctypes.CDLL('./table.so').abs(-2)",
        prepare=copy_library,
        says=r"model\.py:2, in <module>: .*Permission denied\n.*table\.so is not declared: .*`custom_ops\.libraries`",
    ),
    "operators of a library (`torch.ops.load_library`)": refused_by_kernel(
        "import torch\ntorch.ops.load_library('table.so')\nVALUE = 2",
        prepare=copy_library,
        says=r"model\.py:2, in <module>: .*\n.*table\.so is not declared: .*`custom_ops\.libraries`",
    ),
    "an extension module": refused(
        "import importlib.machinery as m\nfrom importlib.util import module_from_spec, spec_from_loader\n"
        "module_from_spec(spec_from_loader('table', m.ExtensionFileLoader('table', 'vendored.so')))",
        {"vendored.so": ""},
        says=IMPORTED,
    ),
    # The manifest
    "`kwargs` of the model": Row(
        REBUILT,
        NET.replace("create()", "create(value)").replace(
            "return Net", "global VALUE\n    VALUE = value\n    return Net"
        ),
        {"net.yaml": WITH_KWARGS},
        {"net.yaml": WITH_KWARGS.replace("2}", "3}")},
    ),
    "weights of the manifest": Row(
        REBUILT, SCALED, {"net.yaml": WITH_WEIGHTS}, prepare=save_weights, change=lambda root: save_weights(root, 3.0)
    ),
    # What is outside
    "another process (`subprocess`, `os.system`)": Row(
        ANEW,
        "import subprocess\nVALUE = int(subprocess.check_output(['cat', 'etc/table.txt']))",
        OF_THE_MACHINE,
        {"etc/table.txt": "3"},
        says=r"note: model\.py:2, in <module>, starts a process, which the key does not cover",
    ),
    "another process, by functions that fork (`os.spawnv`, `os.exec`)": Row(
        ANEW,
        "import os\nVALUE = os.spawnv(os.P_WAIT, '/bin/sh', ['sh', '-c', 'exit $(cat etc/table.txt)'])",
        OF_THE_MACHINE,
        {"etc/table.txt": "3"},
        says=r"note: model\.py:2, in <module>, starts a process, which the key does not cover",
    ),
    "another process of Python (`multiprocessing` with `spawn`)": Row(
        ANEW,
        "import multiprocessing\npool = multiprocessing.get_context('spawn').Pool(1)\n"
        "VALUE = pool.apply(eval, ['int(open(\"etc/table.txt\").read())'])\npool.terminate()",
        OF_THE_MACHINE,
        {"etc/table.txt": "3"},
        says=r"note: model\.py:2, in <module>, starts a process, which the key does not cover",
    ),
    "the network": refused(
        "import socket\nVALUE = socket.create_connection(('127.0.0.1', 9))",
        says=r"uses the network: the key does not cover its answers\n",
    ),
    "shared memory by its name (`multiprocessing.shared_memory`)": Row(
        ANEW,
        "from multiprocessing import resource_tracker, shared_memory\n"
        "memory = shared_memory.SharedMemory('stale_memory')\nVALUE = memory.buf[0]\nmemory.close()\n"
        "resource_tracker.unregister(memory._name, 'shared_memory')",  # which would remove it
        prepare=lambda root: share(2),
        change=lambda root: share(3),
        says=r"note: model\.py:2, in <module>, reads shared memory, which the key does not cover",
    ),
    "the standard input, by `input`": refused("VALUE = int(input())", says="asks for input: the key does not cover"),
    "an environment variable": Row(
        ANEW,
        "import os\nVALUE = int(os.environ.get('STALE_VALUE', '3'))",
        prepare=lambda root: os.environ.update(STALE_VALUE="2"),
        change=lambda root: os.environ.pop("STALE_VALUE"),
        says=r"note: model\.py:2, in <module>, reads the environment variable `STALE_VALUE`, .*`kwargs`",
    ),
    "an environment variable, by Python's library (`os.path.expandvars`, `Path.home`, `shutil.get_terminal_size`)": Row(
        ANEW,
        "import os.path\nVALUE = int(os.path.expandvars('${STALE_VALUE}'))",
        prepare=lambda root: os.environ.update(STALE_VALUE="2"),
        change=lambda root: os.environ.update(STALE_VALUE="3"),
        says=r"note: model\.py:2, in <module>, reads the environment variable `STALE_VALUE`, .*`kwargs`",
    ),
    "an environment variable, by `posix.environ` or native code": unnoticed(
        "import posix\nVALUE = len(posix.environ)", change=lambda root: posix.environ.pop(b"STALE_VALUE", None)
    ),
    "which environment variables there are": Row(
        ANEW,
        "import os\nVALUE = 2 if 'STALE_DIR' in list(os.environ) else 3",
        prepare=lambda root: os.environ.update(STALE_DIR="2"),
        change=lambda root: os.environ.pop("STALE_DIR"),
        says=r"note: model\.py:2, in <module>, lists the environment variables, .*`kwargs`",
    ),
    "the time": refused("import time\nVALUE = time.time_ns() % 2**32 + 2", says=ANOTHER_MODEL),
    "random numbers of the system (`os.urandom`, `uuid`)": refused(
        "import os\nVALUE = int.from_bytes(os.urandom(4)) + 2", says=ANOTHER_MODEL
    ),
    "the user, the host, the number of processors": unnoticed("import os, socket\nVALUE = len(socket.gethostname())"),
    "the number of threads (`torch.get_num_threads`)": unnoticed("import torch\nVALUE = torch.get_num_threads()"),
    "the locale and the size of the terminal": unnoticed(
        "import locale, os\nVALUE = len(locale.setlocale(locale.LC_ALL)) + os.isatty(0)"
    ),
    "the arguments of the command (`sys.argv`), what `sys.stdin` holds": unnoticed(
        "import sys\nVALUE = len(sys.argv)", change=lambda root: sys.argv.append("more")
    ),
    "the path of the source (`__file__`) and the current directory": unnoticed("VALUE = len(__file__)"),
}


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    warm("build")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setattr(sys, "argv", sys.argv[:])
    monkeypatch.setattr(readable_places, "_OF_SYSTEMS", (*readable_places._OF_SYSTEMS, f"{tmp_path}/etc"))
    readable_places._editable_distributions.cache_clear()
    sys.modules.pop("stale_package", None)
    return Project(tmp_path)


@pytest.mark.parametrize("name", ROWS)
def test_what_a_model_reads(name: str, project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    check_row(ROWS[name], ROWS[name].happens, project, capfd)


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.without is not None])
def test_what_a_model_reads_without_landlock(
    name: str, project: Project, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landlock, "version", lambda: 0)
    row = ROWS[name]
    assert row.without is not None
    check_row(replace(row, says=""), row.without, project, capfd)


def check_row(row: Row, happens: str, project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    model = row.model if "def create" in row.model else row.model + NET
    project.write({"net.yaml": MANIFEST, "model.py": model, **row.files})
    row.prepare(project.root)
    code, before = project.build(*row.options)
    said = capfd.readouterr().err
    assert ("which the key does not cover, so the result is not cached" in said) == (happens == ANEW)
    if happens in (REFUSED, ANEW):
        assert re.search(row.says, said), said
    if happens == REFUSED:
        assert code == 1
        assert "Traceback" not in said
        return
    assert code == 0, said
    project.write(row.edit)
    row.change(project.root)
    code, after = project.build(*row.options)
    assert code == 0
    assert (before == after) == (happens == UNNOTICED)


def test_the_document_has_these_rows() -> None:
    rows = [line.split("|")[1:3] for line in DOCUMENT.read_text("utf-8").splitlines() if line.startswith("| ")]
    said = {reads.strip(): happens.strip() for reads, happens in rows}
    assert {name: happens for name, happens in said.items() if name != "what a model reads"} == {
        name: row.shown for name, row in ROWS.items()
    }


ALLOWED = {
    "temporary files": "import tempfile\nwith tempfile.TemporaryFile() as f:\n    f.write(b'2')\n    f.seek(0)\n"
    "    VALUE = int(f.read())",
    "a temporary directory": "import os, tempfile, torch, numpy\nwith tempfile.TemporaryDirectory() as d:\n"
    "    torch.save(2, os.path.join(d, 'a'))\n    numpy.save(os.path.join(d, 'b.npy'), 2)\n"
    "    os.makedirs(os.path.join(d, 'c/d'))\n    assert len(os.listdir(d)) == 3\n"
    "    VALUE = torch.load(os.path.join(d, 'a')) + int(numpy.load(os.path.join(d, 'b.npy')))",
    "a file that it wrote and renamed": "import os, tempfile\nd = tempfile.mkdtemp()\nos.mkdir(d + '/a')\n"
    "open(d + '/made', 'w').write('2')\nos.replace(d + '/made', d + '/a/b')\nVALUE = int(open(d + '/a/b').read())",
    "its own source": "import inspect, sys\nVALUE = len(inspect.getsource(sys.modules[__name__])) % 7",
    "a script of its own": "import torch\n@torch.jit.script\ndef f(x: int) -> int:\n    return x + 1\nVALUE = f(1)",
    "files of an installed package": "import importlib.resources, os, yaml\n"
    "VALUE = len(importlib.resources.files('yaml').joinpath('__init__.py').read_text()) % 7\n"
    "VALUE += len(os.listdir(os.path.dirname(yaml.__file__)))",
    "modules of Python's own": "import importlib\nVALUE = len(importlib.import_module('js' + 'on').dumps(2)) + 1\n"
    "import xml.dom.minidom, sqlite3, ctypes\nsqlite3.connect(':memory:')\nctypes.CDLL(None)",
    "a link to a file that it made": "import os, tempfile\nwith tempfile.TemporaryDirectory() as d:\n"
    "    open(d + '/a', 'w').write('2')\n    os.symlink('a', d + '/b')\n    os.link(d + '/a', d + '/c')\n"
    "    VALUE = int(open(d + '/b').read()) + int(open(d + '/c').read())",
    "databases in memory": "import sqlite3\nsqlite3.connect('file::memory:?cache=shared', uri=True)\n"
    "c = sqlite3.connect('file:shared?mode=memory&cache=shared', uri=True)\nc.execute('attach \":memory:\" as b')\n"
    "VALUE = 2",
    "tensors of its own processes": "import torch\nfrom torch.utils.data import DataLoader\n"
    "VALUE = float(next(iter(DataLoader([torch.ones(1)], num_workers=1)))[0])",
    "a module that it generates in the temporary directory": "import tempfile\n"
    "from importlib.util import module_from_spec, spec_from_file_location\n"
    "with tempfile.NamedTemporaryFile('w', prefix='a.b.c_', suffix='.py', delete=False) as f:\n"
    "    f.write('VALUE = 2')\n"
    "spec = spec_from_file_location('generated', f.name)\nmodule = module_from_spec(spec)\n"
    "spec.loader.exec_module(module)\nVALUE = module.VALUE",
    "warnings and logs": "import logging, warnings\nwarnings.warn('a')\nlogging.basicConfig(filename='log')\n"
    "logging.warning('x')\nVALUE = 2",
    "where it is called from": "import sys, traceback\nVALUE = 2 if traceback.format_stack() else 3",
    "the versions of packages": "import importlib.metadata\nVALUE = len(importlib.metadata.version('torch'))\n"
    "VALUE += len(list(importlib.metadata.distributions())) // 1000",
    "a package that it may do without": "try:\n    import no_such_package\nexcept ImportError:\n    VALUE = 2",
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_it_may_do(name: str, project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    project.write({"net.yaml": MANIFEST, "model.py": ALLOWED[name] + NET})
    code, _ = project.build()
    assert code == 0, capfd.readouterr().err


def forget_installed() -> None:
    """Makes this process look at installed packages again, as a new process does."""
    distributions._distribution.cache_clear()
    distributions.check_unedited.cache_clear()
    distributions.facts.cache_clear()


@pytest.mark.parametrize("steps", ["all steps ran", "a step came from the cache"])
def test_a_package_that_was_edited_in_place_is_noticed_by_a_hit(
    steps: str, project: Project, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The RECORD of the package does not list itself, and the edited file has the same size."""
    install(project.root)
    project.write({"net.yaml": MANIFEST, "model.py": "from stale_package import VALUE" + NET})
    assert project.build()[0] == 0
    if steps == "a step came from the cache":
        project.write({"net.yaml": MANIFEST + "defaults: {partitioners: [xnnpack]}\n"})
        assert project.build()[0] == 0
    with monkeypatch.context() as without:
        without.setattr(checked_files, "check_installed", lambda packages: pytest.fail("a hit looks at all files"))
        assert project.build()[0] == 0
    assert "from the cache: program" in capfd.readouterr().out
    edit_installed(project.root)
    forget_installed()
    assert project.build()[0] == 2
    assert "`stale_package.py` of the installed package `stale-package` was changed" in capfd.readouterr().err
    assert not (project.root / "out/net.pte").exists()


def test_a_file_that_changes_during_the_build_is_looked_at_by_the_next_one(
    project: Project, capfd: pytest.CaptureFixture[str]
) -> None:
    install(project.root)
    edits = "import os, pathlib, stale_package\nfile = pathlib.Path(stale_package.__file__)\n"
    edits += "file.write_text(file.read_text().replace('2', '3'))\nos.utime(file, (2**32, 2**32))\nVALUE = 2"
    project.write({"net.yaml": MANIFEST, "model.py": edits + NET})
    assert project.build()[0] == 0, capfd.readouterr().err
    forget_installed()
    assert project.build()[0] == 2
    assert "was changed after its installation" in capfd.readouterr().err


def test_a_cache_that_an_earlier_run_has_filled_is_refused(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    """Also what the first run has written itself: only its directory for temporary files is its own."""
    cache = "import os\nos.makedirs('made', exist_ok=True)\n"
    cache += "if not os.path.exists('made/a'):\n    open('made/a', 'w').write('2')\nVALUE = int(open('made/a').read())"
    project.write({"net.yaml": MANIFEST, "model.py": cache + NET})
    for _ in range(2):
        assert project.build()[0] == 1
        assert "opens made/a, which is not a declared file" in capfd.readouterr().err


def test_a_refusal_that_the_model_catches_does_not_fail_the_build(
    project: Project, capfd: pytest.CaptureFixture[str]
) -> None:
    quiet = "try:\n    VALUE = int(open('table.txt').read())\nexcept BaseException:\n    VALUE = 2"
    project.write({"net.yaml": MANIFEST, "model.py": quiet + NET, **TABLE})
    assert project.build()[0] == 1
    assert "model.py:2, in <module>, opens table.txt" in capfd.readouterr().err


def test_a_process_of_the_model_is_refused_too(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    model = """
from torch.utils.data import DataLoader

def read(batch):
    return int(open("table.txt").read())

VALUE = next(iter(DataLoader([0], num_workers=1, collate_fn=read)))
"""
    project.write({"net.yaml": MANIFEST, "model.py": model + NET, **TABLE})
    assert project.build()[0] == 1
    said = capfd.readouterr().err
    assert "model.py:5, in read, opens table.txt, which is not a declared file" in said


def test_what_lowering_reads_is_built_each_time_too(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    take = """
import os
VALUE = 2

def take():
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    os.environ.get("STALE_VALUE")
    return XnnpackPartitioner()
"""
    project.write({"net.yaml": WITH_PARTITIONER, "model.py": take + NET})
    for _ in range(2):
        assert project.build()[0] == 0
        assert "model.py:8, in take, reads the environment variable `STALE_VALUE`" in capfd.readouterr().err


OPERATOR = """
import os, torch

library = torch.library.Library("stale", "FRAGMENT")
if not hasattr(torch.ops.stale, "scale"):
    library.define("scale(Tensor x) -> Tensor")
library.impl("scale", lambda x: x * float(os.environ.get("STALE_DIR")), "CompositeImplicitAutograd")

class Net(torch.nn.Module):
    def forward(self, x):
        return torch.ops.stale.scale(x)

    def other(self, x):
        return torch.ops.stale.scale(x) + 1

def create():
    return Net()
"""
ONE = "forward: {example_inputs: [{shape: [2]}]}"
TWO_METHODS = MANIFEST.replace(ONE, f"{ONE}, {ONE.replace('forward', 'other')}")


def test_what_lowering_reads_in_processes_of_its_own_is_too(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Methods are lowered one by one in these processes. An operator that lowering decomposes reads a variable."""
    project.write({"net.yaml": TWO_METHODS, "model.py": OPERATOR})
    programs = []
    for value in ("2", "3"):
        monkeypatch.setenv("STALE_DIR", value)
        code, program = project.build("--jobs", "2")
        assert code == 0
        programs.append(program)
    assert programs[0] != programs[1]


def test_what_the_model_puts_on_the_path_is_gone_with_it(project: Project) -> None:
    project.write({"net.yaml": MANIFEST, "model.py": "import sys\nsys.path.insert(0, 'gone')\nVALUE = 2" + NET})
    assert project.build()[0] == 0
    assert "gone" not in sys.path
