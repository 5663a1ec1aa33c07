"""Refuses reads of the declared sources that no key covers, while their code runs.

Python reports each file, library, process and connection that is opened to an audit hook. The stack shows who opened
it: the sources did if one of their functions is on the stack, even if a library is in between. What an installed
package reads while it is imported is left to the package: its version is in the key. Native code opens files without
reporting it; the functions of PyTorch and safetensors that do so are wrapped, so that they report it.

`docs/staleness.md` lists what is found this way and what is not.
"""

from __future__ import annotations

import _posixsubprocess
import contextlib
import functools
import importlib
import json
import locale
import os
import shutil
import sys
import sysconfig
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from etbuild.errors import BuildError, Problem
from etbuild.inputs.authors import IMPORT_MACHINERY, Author, author_of, is_compiling, is_running, known_sources
from etbuild.inputs.native_readers import native_readers, told_everywhere
from etbuild.inputs.readable_places import (
    installed_places,
    is_editable,
    lies_in,
    places_of,
    real_path,
    source_of_bytecode,
)
from etbuild.patching import replaced
from etbuild.processes.environment import dropped, is_fixed, stays_set
from etbuild.processes.process_state import high_copy

_posixshmem: Any = importlib.import_module("_posixshmem")  # has no types
# What makes interpreters from Python 3.13 on. Earlier versions report it to audit hooks.
_interpreters: Any = importlib.import_module("_interpreters") if sys.version_info >= (3, 13) else None
_FINDERS = (*IMPORT_MACHINERY, str(Path(importlib.__file__).parent))  # these list directories to find modules
_OF_THE_MACHINE = ("/etc/", "/usr/share/")  # libraries read their configuration here
_HARDWARE = ("/dev/", "/proc/", "/sys/")  # libraries look here for processors and devices
_SHARED_MEMORY = "/dev/shm/"
_DEVICES = {os.devnull, "/dev/full", "/dev/random", "/dev/urandom", "/dev/zero"}  # these have no content to declare
_DESCRIPTORS = "/proc/self/fd/"
_CONNECTORS = {f"multiprocessing.{name}" for name in ("forkserver", "managers", "resource_sharer")}
_READING = (None, "r", "rb", "rt")
_NOT_READING = os.O_ACCMODE | os.O_APPEND | os.O_CREAT | os.O_TRUNC  # O_RDONLY is 0
_TIME_ZONES = "/usr/share/zoneinfo/"  # native code of Python's own library opens these

_FILE = (
    "move its content to a Python source, to the `kwargs` of the model or to its weights; or declare the file: "
    "`--data {name}={path}`, in Bazel `data`"
)
_ABSENT = "it does not exist: create and declare it (`--data {name}={path}`, in Bazel `data`), or do not read it"
_SOURCE = (
    "declare it as a source (`--root DIR`, in Bazel `srcs` or `deps`) and import it by that name; list a name that is "
    "computed in `model.modules`"
)
_LIBRARY = "list it under `custom_ops.libraries`"
_PLACE = ("model", "factory")
_NOT_DECLARED = ", which is not a declared file"
_OUTSIDE = "do that before the build, and declare the result as a file"


class Undeclared(Exception):
    """Is raised in sources that read something that they may not read.

    The build reports the problem separately: another process may turn this exception into text.
    """


class _Told:
    """A list of rows of words. Forked processes can append to it. The process that made it reads it.

    The rows of its own process are also in memory, because a model may close descriptors that are not its own.
    """

    def __init__(self) -> None:
        low = os.memfd_create("told")
        try:
            self.file = high_copy(low)
        finally:
            os.close(low)
        self.process, self.own = os.getpid(), list[list[str]]()

    def append(self, *words: str) -> None:
        if [*words] in self.rows():
            return
        if os.getpid() == self.process:
            self.own.append([*words])
            return
        with contextlib.suppress(OSError):
            os.write(self.file, json.dumps(words).encode() + b"\n")

    def rows(self) -> list[list[str]]:
        try:
            text = os.pread(self.file, os.fstat(self.file).st_size, 0)
        except OSError:
            text = b""
        return [*self.own, *(json.loads(line) for line in text.splitlines())]

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.file)


@dataclass
class _Watch:
    """What the sources of one step may read, and what they have read in addition."""

    readable: set[str]  # declared files, and directories of installed code that the key covers
    others: set[str]  # other directories of installed code: what libraries read there prevents caching
    packages: set[str]  # the top-level names that the import statements of the sources name
    made: set[str] = field(default_factory=set)  # real paths of files and directories that the process has made
    told: _Told = field(default_factory=_Told)  # is reported at the end, even if the code went on


_watches: list[_Watch] = []  # a step in a forked process has its own watch, and reports to the outer one at its end
_unkeyed: list[set[str]] = []


@contextlib.contextmanager
def watched_reads(sources: Mapping[str, str], data: Iterable[Path], packages: set[str]) -> Iterator[None]:
    """Refuses, inside, what the sources open and no key covers.

    Args:
        sources: The import paths of the sources, by the file name of their code.
        data: Other files that the sources may open.
        packages: The top-level names that their import statements name.

    Raises:
        BuildError: The sources have opened something else, even if they went on without it.
    """
    _install_hook()
    known_sources.update(sources)
    files = {os.path.realpath(file) for file in [*sources, *map(str, data)]}
    installed, others = installed_places(sources)
    watch = _Watch(files | installed, others, packages)
    before = set(sys.modules)
    _watches.append(watch)
    try:
        with _telling():
            yield
        _check_modules(watch, before)
    except Exception as error:
        if problems := _problems(watch):
            raise BuildError(problems[:1]) from error
        raise
    finally:
        _watches.pop()
        for what in [words[0] for words in watch.told.rows() if len(words) == 1]:
            add_unkeyed({what})
            if _watches:
                _watches[-1].told.append(what)
        problems = _problems(watch)
        watch.told.close()
    if problems:
        raise BuildError(problems[:1])


def _problems(watch: _Watch) -> list[Problem]:
    return [Problem(words[0], _PLACE, words[1]) for words in watch.told.rows() if len(words) == 2]


@contextlib.contextmanager
def unkeyed() -> Iterator[set[str]]:
    """Collects, in words, allowed reads by sources whose result may be another one in the next build.

    A note is printed for each. The result of the build is then not cached.
    """
    reasons: set[str] = set()
    _unkeyed.append(reasons)
    try:
        yield reasons
    finally:
        _unkeyed.pop()


def add_unkeyed(found: set[str]) -> None:
    """Adds what another process has collected with `unkeyed`."""
    for reasons in _unkeyed:
        reasons |= found


def _note(watch: _Watch, line: str, what: str, hint: str) -> None:
    if not _unkeyed:
        return
    if what not in _unkeyed[0] and [what] not in watch.told.rows():
        note = f"note: {line}, {what}, which the key does not cover, so the result is not cached: {hint}"
        print(note, file=sys.stderr)
    watch.told.append(what)
    add_unkeyed({what})


@functools.cache
def _install_hook() -> None:
    sys.addaudithook(_hook)  # a hook cannot be removed


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _HANDLERS and _watches:
        _HANDLERS[event](_watches[-1], *arguments)
    elif event in _DEEDS and _watches:
        _did(_watches[-1], event, arguments)


def _refuse(watch: _Watch, author: Author, what: str, why: str, hint: str) -> None:
    """Ends what the sources do, with an error. In a thread no error could name their line: a note has to do."""
    if author.is_thread:
        _note(watch, author.line, what, hint)
        return
    problem = Problem(f"{author.line}, {what}{why}", _PLACE, hint)
    watch.told.append(problem.message, hint)
    raise Undeclared(str(problem))


def _is_left_to(author: Author, watch: _Watch, path: Any, what: str) -> bool:
    """Whether a library may read something that is not declared: what describes the machine, and its configuration.

    The configuration may change what the library does. If it reads any, the result is not cached.
    """
    real = os.path.realpath(os.fsdecode(path))
    if author.itself or f"{real}/".startswith(_SHARED_MEMORY):
        return False
    if real.startswith(_HARDWARE):
        return True
    if not (real.startswith(_OF_THE_MACHINE) or _is_in_others(watch, path)):
        return False
    _note(watch, author.line, what, "if the program depends on it, put its content into a source")
    return True


def _opened(watch: _Watch, path: Any, mode: str | None = None, flags: int = 0) -> None:
    if mode in _READING and flags & _NOT_READING == 0 and _is_named_readable(watch, path):
        return  # almost every file: following its links would take longer than reading a small module
    real = real_path(path)
    if real is None or real in _DEVICES or real.startswith(_TIME_ZONES):
        return
    if not _reads(watch, real, mode, flags) or _may_read(watch, path):
        return
    author = author_of(sys._getframe(2))
    if sys._getframe(2).f_code.co_name == "_fwalk":
        return  # it opens directories, by names that mean something else here, and lists each of them
    if author is None:
        if is_compiling(sys._getframe(2)):
            watch.made.add(real)  # a compiled module is imported from this file
        return
    shown = source_of_bytecode(os.fsdecode(path)) if author.importing else os.fsdecode(path)
    if is_editable(real, watch.packages) or is_running(sys._getframe(2), real):
        return
    if _is_left_to(author, watch, path, f"reads {shown}"):
        return
    if author.importing:
        _refuse(watch, author, f"imports {shown}", ", which is not a declared source", _SOURCE)
    else:
        hint = (_FILE if os.path.lexists(real) else _ABSENT).format(name=Path(shown).name, path=shown)
        _refuse(watch, author, f"opens {shown}", _NOT_DECLARED, hint)


def _reads(watch: _Watch, real: str, mode: str | None, flags: int) -> bool:
    """Whether a file is opened for reading. Records new files: the process itself writes their content."""
    if os.path.isdir(real):  # noqa: PTH112 - a file without a name is made by opening its directory
        return False
    mode = mode or ""
    appends = ("a" in mode or bool(flags & os.O_APPEND)) and "+" not in mode
    creates = bool(flags & os.O_CREAT)
    empty = "w" in mode or "x" in mode or bool(flags & os.O_TRUNC) or (creates and bool(flags & os.O_EXCL))
    if empty or ((appends or creates) and not os.path.lexists(real)):
        watch.made.add(real)
        return False
    return not appends and flags & os.O_ACCMODE != os.O_WRONLY


def _listed(watch: _Watch, path: Any = None) -> None:
    directory = os.curdir if path is None else f"{_DESCRIPTORS}{path}" if isinstance(path, int) else path
    frame = sys._getframe(2)
    if frame.f_code.co_filename.startswith(_FINDERS) or _is_named_readable(watch, directory):
        return
    real = real_path(directory)
    if real is None or _may_read(watch, directory):
        return
    author = author_of(frame)
    what = f"lists the directory {real if isinstance(path, int) else os.fsdecode(directory)}"
    if author is not None and not _is_left_to(author, watch, directory, what):
        hint = "name the files in a source or in the `kwargs` of the model"
        _refuse(watch, author, what, ", whose files the key does not hold", hint)


def _imported(watch: _Watch, module: str, file: Any, *rest: Any) -> None:
    del module, rest
    if file is not None:  # an extension module; other modules are files that are opened
        _opened(watch, file)


def _library_opened(watch: _Watch, name: Any) -> None:
    real = real_path(name) if name and os.sep in os.fsdecode(name) else None
    if not name or (_may_read(watch, name) if real is not None else _is_of_the_system(os.fsdecode(name))):
        return
    author = author_of(sys._getframe(2))
    if author is not None and (author.direct or real is not None):
        _refuse(watch, author, f"loads the library {os.fsdecode(name)}", ", which is not declared", _LIBRARY)


def _is_of_the_system(library: str) -> bool:
    """Whether the loader finds a library of this name in a directory of the system."""
    first = os.environ.get("LD_LIBRARY_PATH", "")
    if any(Path(directory, library).exists() for directory in first.replace(";", ":").split(":") if first):
        return False
    below = ("lib", "lib64", f"lib/{sysconfig.get_config_var('MULTIARCH') or ''}")
    return any(Path(root, directory, library).exists() for root in ("/", "/usr") for directory in below)


def _database_opened(watch: _Watch, name: Any) -> None:
    file = _file_of_database(os.fsdecode(name))
    if file:
        _opened(watch, file)


def _file_of_database(name: str) -> str | None:
    """The file of a name that sqlite knows, which may be a URI; None for a database in memory."""
    if name.startswith("file:"):
        address = urllib.parse.urlsplit(name)
        name = urllib.parse.unquote(address.path)
        if "memory" in urllib.parse.parse_qs(address.query).get("mode", ()):
            return None
    return None if name in ("", ":memory:") else name


# What no key covers, whatever its arguments are: in words, why it is refused (None: it is noted), and a hint.
_NETWORK = ("uses the network", ": the key does not cover its answers", _OUTSIDE)
_PROCESS = ("starts a process", None, _OUTSIDE)
_INTERPRETER = ("starts another interpreter", None, "call the code here: nobody sees what it reads there")
# Python reports these three to no hook. `_telling` makes their functions do so.
_FORK_EXEC, _SHM_OPEN, _CREATE = (f"etbuild.{name}" for name in ("fork_exec", "shm_open", "create"))
_DEEDS: dict[str, tuple[str, str | None, str]] = {
    "builtins.input": ("asks for input", ": the key does not cover the answer", "pass it in the `kwargs`"),
    **dict.fromkeys(("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"), _NETWORK),
    "urllib.Request": _NETWORK,
    # `os.spawnv` and similar functions fork; the child then calls `os.exec`.
    **dict.fromkeys(("subprocess.Popen", "os.system", "os.posix_spawn", "os.exec", "pty.spawn", _FORK_EXEC), _PROCESS),
    **dict.fromkeys(("cpython.PyInterpreterState_New", _CREATE), _INTERPRETER),
    _SHM_OPEN: ("reads shared memory", None, _OUTSIDE),
}


def _did(watch: _Watch, event: str, arguments: tuple[Any, ...]) -> None:
    frame = sys._getframe(2)
    what, why, hint = deed = _DEEDS[event]
    if event == _SHM_OPEN and len(arguments) > 1 and arguments[1] & os.O_CREAT:
        return
    # The process that removes shared memory after others have ended.
    if event == _FORK_EXEC and _is_called_by({"multiprocessing.resource_tracker"}, frame):
        return
    # `multiprocessing` connects to a process that it has started. The other side has to know its secret.
    if deed is _NETWORK and isinstance(arguments[-1], (str, bytes)) and _is_called_by(_CONNECTORS, frame):
        return
    author = author_of(frame)
    if author is not None and why is not None:
        _refuse(watch, author, what, why, hint)
    elif author is not None:
        _note(watch, author.line, what, hint)


def _is_called_by(modules: set[str], frame: FrameType | None) -> bool:
    while frame is not None and frame.f_globals.get("__name__") not in modules:
        frame = frame.f_back
    return frame is not None


def _directory_made(watch: _Watch, path: Any, *rest: Any) -> None:
    del rest
    real = real_path(path)
    if real is not None and not os.path.lexists(real):
        watch.made.add(real)


def _renamed(watch: _Watch, old: Any, new: Any, *rest: Any) -> None:
    """A file or directory gets another name, which it keeps beside its own one if it is linked."""
    del rest
    source, target = real_path(old), real_path(new)
    if source is None or target is None:
        return
    if lies_in(source, watch.made):
        watch.made.add(target)
    elif lies_in(target, watch.made) and os.path.lexists(source) and not _may_read(watch, old):
        author = author_of(sys._getframe(2))
        if author is not None:
            shown = os.fsdecode(old)
            hint = _FILE.format(name=Path(shown).name, path=shown)
            _refuse(watch, author, f"moves or links {shown}", _NOT_DECLARED, hint)


_HANDLERS: dict[str, Callable[..., None]] = {
    "open": _opened,
    "import": _imported,
    "os.listdir": _listed,
    "os.scandir": _listed,
    "os.mkdir": _directory_made,
    "os.link": _renamed,
    "os.rename": _renamed,
    "ctypes.dlopen": _library_opened,
    "sqlite3.connect": _database_opened,
}


def _may_read(watch: _Watch, path: Any) -> bool:
    """Whether a file is readable by its name or at its place, or was made at its place. What was made may be a link.

    Bytecode counts as its source: Python looks for it beside a module that a package generates, and checks its time.
    """
    real = os.path.realpath(os.fsdecode(path))
    made = any(lies_in(each, watch.made) for each in (real, source_of_bytecode(real)))
    return made or any(lies_in(each, watch.readable) for each in places_of(path))


def _is_in_others(watch: _Watch, path: Any) -> bool:
    return any(lies_in(each, watch.others) for each in places_of(path))


def _is_named_readable(watch: _Watch, path: Any) -> bool:
    """Whether the name of a file is that of a readable one. Other names may be links to readable files."""
    if not isinstance(path, (str, bytes)):
        return False
    named = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - Path.resolve follows links
    return lies_in(named, watch.readable)


def _check_modules(watch: _Watch, before: set[str]) -> None:
    """Checks that everything that was imported is declared or installed, however it was found."""
    for name in sorted(set(sys.modules) - before):
        spec = vars(sys.modules[name]).get("__spec__") if isinstance(sys.modules[name], type(sys)) else None
        file = spec.origin if spec is not None and spec.has_location else None
        real = real_path(file) if file else None
        if real is None or real in known_sources or _may_read(watch, file) or _is_in_others(watch, file):
            continue
        if is_editable(real, watch.packages):
            continue
        message = f"the module `{name}` was imported from {file}, which is neither declared nor installed"
        raise BuildError.at(_PLACE, message, _SOURCE)


@contextlib.contextmanager
def _telling() -> Iterator[None]:
    """Wraps the functions that read without reporting it. PyTorch is imported before, if its functions are used."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(replaced(os._Environ, "__getitem__", _environment_read))
        stack.enter_context(replaced(os._Environ, "__iter__", _environment_listed))
        stack.enter_context(_reporting(_posixsubprocess, "fork_exec"))
        stack.enter_context(_reporting(_posixshmem, "shm_open"))
        if _interpreters:
            stack.enter_context(_reporting(_interpreters, "create"))
        for owner, name in native_readers():
            stack.enter_context(told_everywhere(owner, name))
        yield


def _reporting(module: Any, name: str) -> contextlib.AbstractContextManager[None]:
    """Makes a function report its calls."""
    function = getattr(module, name)

    def reporting(*arguments: Any, **named: Any) -> Any:
        sys.audit(f"etbuild.{name}", *arguments)
        return function(*arguments, **named)

    return replaced(module, name, reporting)


_own_getitem, _own_iter = os._Environ.__getitem__, os._Environ.__iter__
# Modules of Python's library whose callers decide which variables they read.
_MAPPINGS = {
    function.__code__.co_filename
    for function in (os.getenv, Mapping.get, os.path.expandvars, Path.home, shutil.which, locale.setlocale)
}


def _read_variable(line: str, name: str, is_there: bool) -> None:
    """Refuses or notes that a source reads an environment variable.

    A building process sees few variables. Reading one that it never sees, or that always has the same value, is
    harmless.
    """
    if is_fixed():
        if name in dropped() and not is_there:
            author = Author(line, direct=True, itself=True, importing=False)
            why = ", which is set, but builds do not see it"
            hint = "pass the value in the `kwargs` of the model, which are in the key"
            _refuse(_watches[-1], author, f"reads the environment variable `{name}`", why, hint)
        if not (stays_set(name) or name == "PYTHONPATH"):
            return
    hint = "the `kwargs` of the model are in the key"
    _note(_watches[-1], line, f"reads the environment variable `{name}`", hint)


def _environment_read(environment: Any, name: Any) -> Any:
    line = _line_that_reads_variables(sys._getframe(1))
    if line is not None:
        _read_variable(line, os.fsdecode(name), name in environment)
    return _own_getitem(environment, name)


def _environment_listed(environment: Any) -> Iterator[Any]:
    line = _line_that_reads_variables(sys._getframe(1))
    if line is not None:
        hint = "the `kwargs` of the model are in the key"
        _note(_watches[-1], line, "lists the environment variables", hint)
    return _own_iter(environment)


def _line_that_reads_variables(frame: FrameType | None) -> str | None:
    while frame is not None and frame.f_code.co_filename in _MAPPINGS and frame.f_code.co_name != "setdefault":
        frame = frame.f_back
    if not _watches or frame is None or frame.f_code.co_filename not in known_sources:
        return None
    return f"{known_sources[frame.f_code.co_filename]}:{frame.f_lineno}, in {frame.f_code.co_name}"
