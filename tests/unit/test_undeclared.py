"""Which files sources may read. The tests here need no PyTorch."""

from __future__ import annotations

import importlib
import json
import multiprocessing.resource_tracker
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from etbuild.errors import BuildError
from etbuild.guard import reads
from etbuild.processes import forked
from etplugins.guard import readable_places, undeclared


def module(directory: Path, name: str) -> Path:
    directory.mkdir(parents=True)
    file = directory / f"{name}.py"
    file.write_text("VALUE = 1\n", "utf-8")
    return file


def test_an_installed_package_may_consist_of_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages from some installers consist of links, and so does the driver in Bazel's runfiles."""
    file = module(tmp_path / "store", "package_of_links")
    site = tmp_path / "site"
    site.mkdir()
    (site / file.name).symlink_to(file)
    monkeypatch.syspath_prepend(site)
    with undeclared.watched_reads({}, [], {"package_of_links"}):
        assert importlib.import_module("package_of_links").VALUE == 1


def run(directory: Path, code: str, *packages: str) -> None:
    """Runs this code as a source."""
    file = str(directory / "model.py")
    with undeclared.watched_reads({file: "model.py"}, [], set(packages)):
        exec(compile(code, file, "exec"), {})


ALLOWED = {
    "a process without its errors": "import subprocess, sys\n"
    "subprocess.run([sys.executable, '-c', ''], stderr=subprocess.DEVNULL, check=True)",
    "the platform": "import platform\nplatform.platform.__globals__['_platform_cache'].clear()\nplatform.platform()\n"
    "platform.libc_ver()",
    "finding a library": "import ctypes.util\nctypes.util.find_library('m')",
    "the null device": "import os\nopen(os.devnull).close()\nopen(os.devnull, 'w').close()",
    "a device of random numbers": "open('/dev/urandom', 'rb').read(1)",
    "a time zone": "import zoneinfo\nzoneinfo.ZoneInfo.no_cache('UTC')",
    "types of files": "import mimetypes\nmimetypes.inited = False\nmimetypes.guess_type('a.txt')",
    "a pool of processes": "import multiprocessing\nwith multiprocessing.get_context('fork').Pool(2) as pool:\n"
    "    assert pool.map(abs, [-1, 2]) == [1, 2]",
    "a forked process": "import multiprocessing\n"
    "process = multiprocessing.get_context('fork').Process(target=abs, args=(1,))\n"
    "process.start()\nprocess.join()\nassert process.exitcode == 0",
    "a temporary file without a name": "import tempfile\nwith tempfile.TemporaryFile() as f:\n    f.write(b'2')\n"
    "    f.seek(0)\n    assert f.read() == b'2'",
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_a_library_needs_of_the_machine_is_allowed(name: str, tmp_path: Path) -> None:
    # A command that ran in this process before may have left a handler. A process of a pool must end by the signal.
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        run(tmp_path, ALLOWED[name])
    finally:
        signal.signal(signal.SIGTERM, before)


REFUSED = {
    "a file": "open('/etc/passwd')",
    "a descriptor": "import os\nos.open('/etc/passwd', os.O_RDONLY)",
    "a directory": "import os\nos.listdir('/etc')",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_source_itself_reads_of_the_machine_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"model\.py:\d.*(opens|lists the directory) /etc"):
        run(tmp_path, REFUSED[name])


BY_LIBRARIES = {
    "by a path": "from pathlib import Path\nPath('/etc/passwd').read_text()",
    "by a module that opens what it is told to": "import fileinput\nlist(fileinput.input('/etc/passwd'))",
    "by a copy": "import shutil\nshutil.copyfile('/etc/passwd', '/dev/null')",
    "by a digest": "import linecache\nlinecache.getlines('/etc/passwd')",
    "as a pattern": "import glob\nglob.glob('/etc/pass*')",
}


@pytest.mark.parametrize("name", BY_LIBRARIES)
def test_what_a_library_reads_of_the_machine_for_a_source_is_known(name: str, tmp_path: Path) -> None:
    with reads.unkeyed() as found:
        run(tmp_path, BY_LIBRARIES[name])
    assert any("/etc" in what for what in found)


def test_a_temporary_file_without_a_name_makes_no_directory_readable(tmp_path: Path) -> None:
    (tmp_path / "left.txt").write_text("2", "utf-8")
    code = f"import tempfile\nd = {str(tmp_path)!r}\ntempfile.TemporaryFile(dir=d).close()\nopen(d + '/left.txt')"
    with pytest.raises(BuildError, match=r"opens .*left\.txt"):
        run(tmp_path, code)
    code = f"import os\nos.open({str(tmp_path / 'left.txt')!r}, os.O_RDWR | os.O_EXCL)"
    with pytest.raises(BuildError, match=r"opens .*left\.txt"):
        run(tmp_path, code)


def test_what_a_forked_process_is_refused_fails_the_build(tmp_path: Path) -> None:
    """It fails the build however the process ends, and even if it catches the error."""
    code = (
        "import os\nif os.fork() == 0:\n    try:\n        open('/etc/passwd')\n    finally:\n"
        "        os._exit(0)\nos.wait()"
    )
    with pytest.raises(BuildError, match=r"model\.py:4, in <module>, opens /etc/passwd"):
        run(tmp_path, code)


def test_undeclared_reads_of_a_forked_process_are_known(tmp_path: Path) -> None:
    code = "import os\nif os.fork() == 0:\n    os.environ.get('HOME')\n    os._exit(0)\nos.wait()"
    with reads.unkeyed() as found:
        run(tmp_path, code)
    assert found == {"reads the environment variable `HOME`"}


@pytest.fixture
def editable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project with an editable installation: a package, and in the same directory sources that do not belong to
    it."""
    project, facts = tmp_path / "proj", tmp_path / "site/flat_proj-1.0.dist-info"
    for file in ("flat_proj/__init__.py", "flat_proj/net.py", "manifests/helper_of_proj.py", "table.txt"):
        (project / file).parent.mkdir(parents=True, exist_ok=True)
        (project / file).write_text("", "utf-8")
    (project / "flat_proj/table.txt").write_text("2", "utf-8")
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: flat-proj\nVersion: 1.0\n", "utf-8")
    (facts / "top_level.txt").write_text("flat_proj\n", "utf-8")
    origin = {"url": project.as_uri(), "dir_info": {"editable": True}}
    (facts / "direct_url.json").write_text(json.dumps(origin), "utf-8")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.syspath_prepend(project)
    readable_places._editable_distributions.cache_clear()
    readable_places._edited_files.cache_clear()
    yield project
    readable_places._editable_distributions.cache_clear()
    readable_places._edited_files.cache_clear()
    for name in [name for name in sys.modules if name.startswith("flat_proj")]:
        del sys.modules[name]


def test_a_package_that_is_edited_beside_its_models_may_be_imported(editable: Path) -> None:
    run(editable / "manifests", "import flat_proj.net", "flat_proj")


def test_files_in_an_editable_package_may_be_read_because_the_key_holds_them(editable: Path) -> None:
    run(editable / "manifests", f"import flat_proj.net\nopen({str(editable / 'flat_proj/table.txt')!r})", "flat_proj")


@pytest.mark.parametrize("file", ["table.txt", "manifests/helper_of_proj.py"])
def test_undeclared_files_beside_an_editable_package_are_refused(file: str, editable: Path) -> None:
    with pytest.raises(BuildError, match="is not a declared file"):
        run(editable / "manifests", f"import flat_proj.net\nopen({str(editable / file)!r})", "flat_proj")


def test_an_editable_package_without_an_import_statement_is_refused(editable: Path) -> None:
    with pytest.raises(BuildError, match="flat_proj"):
        run(editable / "manifests", "__import__('flat_' + 'proj')")


def test_libraries_of_the_system_may_be_loaded_by_name(tmp_path: Path) -> None:
    run(tmp_path, "import ctypes\nctypes.CDLL('libc.so.6')\nctypes.CDLL('libm.so.6')")


OTHER_THREADS = {
    "a thread": "import threading\nthread = threading.Thread(target=Path(FILE).read_text)\n"
    "thread.start()\nthread.join()",
    "a timer": "import threading\ntimer = threading.Timer(0, Path(FILE).read_text)\ntimer.start()\ntimer.join()",
    "a thread without a class": "import _thread\nlock = _thread.allocate_lock()\nlock.acquire()\n"
    "_thread.start_new_thread(Path(FILE).read_text, ())\n"
    "lock.acquire(timeout=0.1)",
    "a pool": "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(1) as pool:\n"
    "    pool.submit(Path(FILE).read_text)",
    "a pool of multiprocessing": "from multiprocessing.pool import ThreadPool\nwith ThreadPool(1) as pool:\n"
    "    pool.map(os.listdir, [os.path.dirname(FILE)])",
    "an event loop": "import asyncio\nasyncio.run(asyncio.to_thread(Path(FILE).read_text))",
    "a thread of a thread": "import threading\n"
    "inner = threading.Thread(target=Path(FILE).read_text)\nouter = threading.Thread(target=inner.start)\n"
    "outer.start()\nouter.join()\ninner.join()",
    "a copy of a thread": "import multiprocessing, threading\n"
    "process = multiprocessing.get_context('fork').Process(target=Path(FILE).read_text)\n"
    "thread = threading.Thread(target=process.start)\nthread.start()\nthread.join()\nprocess.join()",
}


@pytest.mark.parametrize("name", OTHER_THREADS)
def test_what_another_thread_reads_is_known(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """No line of a source is on the stack of that thread, so the note does not name one."""
    (tmp_path / "table.txt").write_text("2", "utf-8")
    code = f"import os\nfrom pathlib import Path\nFILE = {str(tmp_path / 'table.txt')!r}\n{OTHER_THREADS[name]}"
    with reads.unkeyed() as found:
        run(tmp_path, code)
    (what,) = found
    assert re.match(r"(opens|lists the directory) .*", what)
    said = capfd.readouterr().err
    assert f"note: a thread of the model, {what}, which the key does not cover" in said
    assert "Traceback" not in said


def test_what_a_thread_of_a_package_reads_is_known_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that is imported may start threads. Nobody knows who told them what to read."""
    file = module(tmp_path / "site", "package_with_thread")
    (file.parent / "package_with_thread-1.dist-info").mkdir()
    (tmp_path / "table.json").write_text("2", "utf-8")
    file.write_text(
        "import threading\nfrom pathlib import Path\n"
        f"thread = threading.Thread(target=Path({str(tmp_path / 'table.json')!r}).read_text)\nthread.start()\n"
        "thread.join()\nerrors = []\n",
        "utf-8",
    )
    monkeypatch.syspath_prepend(file.parent)
    with reads.unkeyed() as found:
        run(tmp_path, "import package_with_thread", "package_with_thread")
    assert [what.rpartition("/")[2] for what in found] == ["table.json"]


LISTINGS = {
    "by a descriptor": "os.listdir(os.open(PLACE, os.O_RDONLY))",
    "by a path of a descriptor": "os.listdir(f'/proc/self/fd/{os.open(PLACE, os.O_RDONLY)}')",
    "by a scan": "list(os.scandir(os.open(PLACE, os.O_RDONLY)))",
    "by a walk": "list(os.fwalk(PLACE))",
    "by a pattern": "import glob\nlist(glob.iglob('*', root_dir=PLACE, dir_fd=os.open('/', os.O_RDONLY)))",
    "below another place": "os.chdir(PLACE)\nos.listdir()",
}


@pytest.mark.parametrize("name", LISTINGS)
def test_a_directory_that_is_listed_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "place").mkdir()
    with pytest.raises(BuildError, match=r"lists the directory .*, whose files the key does not hold"):
        run(tmp_path, f"import os\nPLACE = {str(tmp_path / 'place')!r}\n{LISTINGS[name]}")


def test_its_own_directories_may_be_listed_and_removed_by_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = "import os, shutil, tempfile\nd = tempfile.mkdtemp()\nos.makedirs(d + '/a/b')\n"
    code += "assert len(list(os.fwalk(d))) == 3\nassert os.listdir(os.open(d, os.O_RDONLY)) == ['a']\nshutil.rmtree(d)"
    run(tmp_path, code)
    (tmp_path / "old/a").mkdir(parents=True)
    run(tmp_path, f"import shutil\nshutil.rmtree({str(tmp_path / 'old')!r})")


PROCESSES = {
    "os.spawnv": "os.spawnv(os.P_WAIT, '/bin/true', ['true'])",
    "os.spawnlp": "os.spawnlp(os.P_WAIT, 'true', 'true')",
    "os.posix_spawnp": "os.waitpid(os.posix_spawnp('true', ['true'], {}), 0)",
    "os.fork and os.execv": "pid = os.fork()\nif not pid:\n    os.execv('/bin/true', ['true'])\nos.waitpid(pid, 0)",
    "os.popen": "os.popen('true').close()",
    "pty.fork": "import pty\npid, _ = pty.fork()\nif not pid:\n    os.execv('/bin/true', ['true'])\nos.waitpid(pid, 0)",
    "multiprocessing": "import multiprocessing\n"
    "process = multiprocessing.get_context('spawn').Process(target=abs, args=(1,))\nprocess.start()\nprocess.join()",
    "a thread": "import threading\nthread = threading.Thread(target=os.system, args=('true',))\n"
    "thread.start()\nthread.join()",
}


@pytest.mark.parametrize("name", PROCESSES)
def test_a_process_that_is_started_is_known(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """For each function that starts a process. Two processes give one note."""
    with reads.unkeyed() as found:
        run(tmp_path, f"import os\n{PROCESSES[name]}\n{PROCESSES[name]}")
    assert "starts a process" in found
    assert capfd.readouterr().err.count(", starts a process, which the key does not cover") == 1


def test_shared_memory_does_not_count_as_a_started_process(tmp_path: Path) -> None:
    """Python starts its own process that removes leftover shared memory."""

    def task() -> set[str]:
        tracker: Any = multiprocessing.resource_tracker._resource_tracker
        tracker._fd = None  # as if it had not been started
        with reads.unkeyed() as found:
            code = "from multiprocessing.shared_memory import SharedMemory\nm = SharedMemory(create=True, size=9)\n"
            run(tmp_path, code + "m.close()\nm.unlink()")
        return found

    assert forked.run({"task": task}, 1) == {"task": set()}


def test_what_a_watch_in_a_forked_process_finds_is_known(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Lowering watches again, in a process for each method, and finds the same as the export."""

    def task() -> None:
        run(tmp_path, "import os\nos.environ.get('HOME')")

    with reads.unkeyed() as built:
        with reads.unkeyed() as exported:
            task()
        with reads.unkeyed() as lowered, undeclared.watched_reads({}, [], set()):
            forked.run({"first": task, "second": task}, 1)
    assert built == exported == lowered == {"reads the environment variable `HOME`"}
    assert capfd.readouterr().err.count("note: ") == 1


def test_a_file_that_is_not_there_has_a_hint_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"it does not exist: create and declare it.*or do not read it"):
        run(tmp_path, f"open({str(tmp_path / 'no_such_file')!r})")


def test_a_file_of_a_library_in_the_home_directory_has_a_hint_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as the token of a login, which a library reads before it downloads something."""
    (tmp_path / "home/.cache/hub").mkdir(parents=True)
    (tmp_path / "home/.cache/hub/token").write_text("secret", "utf-8")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with pytest.raises(BuildError, match=r"opens .*token") as raised:
        run(
            tmp_path / "work",
            f"from pathlib import Path\nPath({str(tmp_path / 'home/.cache/hub/token')!r}).read_text()",
        )
    assert "If it downloads something, do that before the build" in str(raised.value)
    assert "--data" not in str(raised.value)
