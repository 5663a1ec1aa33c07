"""Refuses reads of the declared sources that no key covers, while their code runs.

In a process that ends after its work, the kernel refuses them (`landlock.py`), for code in any language. Python also
reports each file, process and connection to an audit hook before it opens it. The hook words the error: the stack shows
which line of the sources caused the read, even if a library is in between. Without Landlock, only the hook refuses
reads. The hook also finds reads that the kernel allows and no key covers, such as environment variables. Reads of an
installed package during its import are not checked.

`docs/staleness.md` lists what is refused and what is not.
"""

from __future__ import annotations

import _posixsubprocess
import contextlib
import errno
import functools
import importlib
import json
import locale
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

from etbuild.errors import BuildError, EtbuildError, Problem
from etbuild.exception_text import chain, hints, readable
from etbuild.files import scratch
from etbuild.guard.reads import add_unkeyed, collecting
from etbuild.patching import replaced
from etbuild.processes import sandbox
from etbuild.surroundings.environment import dropped, is_fixed, stays_set
from etbuild.surroundings.process_state import high_copy
from etplugins.guard import landlock
from etplugins.guard.authors import IMPORT_MACHINERY, Author, author_of, is_running, known_sources
from etplugins.guard.readable_places import (
    HARDWARE,
    edited_files,
    installed_places,
    is_editable,
    lies_in,
    places_of,
    places_of_machine,
    real_path,
    source_of_bytecode,
)

_posixshmem: Any = importlib.import_module("_posixshmem")  # has no types
_FINDERS = (*IMPORT_MACHINERY, str(Path(importlib.__file__).parent))  # they list directories to find modules
_SHARED_MEMORY = "/dev/shm/"
_DEVICES = {os.devnull, "/dev/full", "/dev/random", "/dev/urandom", "/dev/zero"}  # they have no content to declare
_DESCRIPTORS = "/proc/self/fd/"
_CONNECTORS = {f"multiprocessing.{name}" for name in ("forkserver", "managers", "resource_sharer")}
_TIME_ZONES = "/usr/share/zoneinfo/"  # native code of Python's own library opens these

_REFUSED = re.compile(r"permission denied|os error 13\b|errno\W*13\b|(unable|failed|not) (to )?open", re.IGNORECASE)
# The places where models and PyTorch's compilers write files that they read again.
_TEMPORARIES = ("TMPDIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR")

_FILE = (
    "move its content to a Python source, to the `kwargs` of the model or to its weights; or declare the file: "
    "`--data {name}={path}`, in Bazel `data`"
)
_NAMES = (
    "name the files in a source or in the `kwargs` of the model, and declare each with `--data`; or let the manifest "
    'read them: `samples: {NAME: {files: "FOLDER/*.npy"}}` with `calibration: samples`, or `calibration: {file: FILE}`'
)
_IN_HOME = (
    "it is a file of a library in the home directory, and so another one on each machine: give the library what it "
    "needs in its arguments. If it downloads something, do that before the build, and declare the result"
)
_ABSENT = "it does not exist: create and declare it (`--data {name}={path}`, in Bazel `data`), or do not read it"
_SOURCE = (
    "declare it as a source (`--root DIR`, in Bazel `srcs` or `deps`) and import it by that name; list a name that is "
    "computed in `model.modules`"
)
_LIBRARY = "list it under `custom_ops.libraries`"
_TEMPORARY = "a model may read again only what it has written below `tempfile.gettempdir()`"
_PLACE = ("model", "factory")
_NOT_DECLARED = ", which is not a declared file"
_OUTSIDE = "do that before the build, and declare the result as a file"


class Undeclared(Exception):
    """Is raised in sources if they may not read something.

    The build reports the problem separately, because another process may turn this exception into text.
    """


class _Told:
    """A list of rows of words. Forked processes can append rows. The process that made the list reads it.

    It also keeps its own rows in memory, because a model may close descriptors of others.
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
    """What the sources of one step may read, and what else they have read."""

    readable: set[str]  # declared files, installed code in the key, and the process's own directories
    others: set[str]  # more code, and places of the machine: reads of libraries there prevent caching
    packages: set[str]  # the top-level names that the import statements of the sources name
    given: set[str] | None  # files that the driver itself reads for the step; None: the process continues afterwards
    told: _Told = field(default_factory=_Told)  # is reported at the end, even if the code has gone on


_watches: list[_Watch] = []  # a step in a forked process has its own watch, and reports to the outer one at its end


@contextlib.contextmanager
def watched_reads(
    sources: Mapping[str, str], data: Iterable[Path], packages: set[str], given: Iterable[Path] | None = None
) -> Iterator[None]:
    """See `etbuild.guard.reads.watched_reads`."""
    _install_hook()
    known_sources.update(sources)
    files = {os.path.realpath(file) for file in [*sources, *map(str, data)]}
    installed, others = installed_places(sources)
    also = None if given is None else {*map(str, given)}
    watch = _Watch(files | installed, others | places_of_machine(sources), packages, also)
    _watches.append(watch)
    try:
        with _own_temporary_directory() as own, _telling():
            watch.readable.add(own)
            _confine()
            yield
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


@contextlib.contextmanager
def _own_temporary_directory() -> Iterator[str]:
    """A directory for the temporary files of the sources, apart from other temporary files, which are no inputs."""
    before = {name: os.environ.get(name) for name in _TEMPORARIES}
    with scratch.temporary("model") as own, replaced(tempfile, "tempdir", str(own.path)):
        os.environ.update(dict.fromkeys(_TEMPORARIES, str(own.path)))
        try:
            yield os.path.realpath(own.path)
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                os.environ.update({} if value is None else {name: value})


@dataclass
class _Process:
    """The state of this process. Forked processes inherit it."""

    is_ending: bool = False
    is_confined: bool = False  # whether the kernel refuses reads


_process = _Process()


@contextlib.contextmanager
def ending_process() -> Iterator[None]:
    """See `etbuild.guard.reads.ending_process`."""
    _process.is_ending = True
    try:
        _confine()
        yield
    except BuildError as error:
        if hint := _refused_by_kernel(error):
            error.problems = [replace(each, hint=hints(each.hint, hint)) for each in error.problems]
        raise


def _confine() -> None:
    """Lets this process read only files that are declared, installed or its own, and use no network."""
    watch = _watches[-1] if _watches else None
    if watch is None or watch.given is None or not _process.is_ending or _process.is_confined or not landlock.version():
        return
    _process.is_confined = True
    readable = {*watch.readable, *watch.others, *watch.given, *scratch.in_use, *HARDWARE}
    edited, listable = edited_files(watch.packages)
    landlock.restrict(readable | edited, listable, network=not sandbox.leave_network())


def _refused_by_kernel(error: BaseException) -> str | None:
    """A hint for an error of a library, if the kernel has refused something; otherwise None."""
    errors = [readable(each) for each in chain(error) if not isinstance(each, EtbuildError)]
    if not _process.is_confined or any(isinstance(each, Undeclared) for each in errors):
        return None
    if any(isinstance(each, OSError) and each.errno == errno.EXDEV for each in errors):
        return _TEMPORARY
    text = " ".join(map(str, errors))
    is_said = _REFUSED.search(text)
    if not is_said and not any(isinstance(each, FileNotFoundError) for each in errors):
        return None
    words = [word.rstrip(".:") for word in re.findall(r"[^\s'\"`,;()\[\]<>]+", text)]
    names = [each.filename for each in errors if isinstance(each, OSError) and isinstance(each.filename, str)]
    for path in (*names, *filter(os.path.isfile, words)):
        if os.access(path, os.R_OK) and not _opens(path):  # only Landlock forbids it
            hint = _LIBRARY if ".so" in Path(path).suffixes else _FILE.format(name=Path(path).name, path=path)
            hint = _NAMES if os.path.isdir(path) else hint  # noqa: PTH112
            return f"{path} is not declared: {hint}"
    if not is_said:
        return None
    return f"if it opens a file: builds open only declared ones (`--data NAME=FILE`, in Bazel `data`); {_TEMPORARY}"


def _opens(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY))
    except OSError:
        return False
    return True


def _problems(watch: _Watch) -> list[Problem]:
    return [Problem(words[0], _PLACE, words[1]) for words in watch.told.rows() if len(words) == 2]


def _note(watch: _Watch, line: str, what: str, hint: str) -> None:
    if not collecting:
        return
    if what not in collecting[0] and [what] not in watch.told.rows():
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


def _refuse(watch: _Watch, author: Author, what: str, why: str, hint: str, place: str | None = None) -> None:
    """Stops the sources with an error. In a thread, no error could name their line: prints a note instead, except for a
    place that the kernel never allows."""
    if author.is_thread:
        if place is None or not _process.is_confined or lies_in(place, {*HARDWARE}):
            _note(watch, author.line, what, hint)
        return
    problem = Problem(f"{author.line}, {what}{why}", _PLACE, hint)
    watch.told.append(problem.message, hint)
    raise Undeclared(str(problem))


def _is_left_to(author: Author, watch: _Watch, path: Any, what: str) -> bool:
    """Whether a library may read something that is not declared: descriptions of the machine, its own configuration,
    and other code. Each may change what the library does, so the result is then not cached."""
    real = os.path.realpath(os.fsdecode(path))
    if author.itself or f"{real}/".startswith(_SHARED_MEMORY):
        return False
    if lies_in(real, {*HARDWARE}):
        return True
    if not any(lies_in(each, watch.others) for each in places_of(path)):
        return False
    _note(watch, author.line, what, "if the program depends on it, put its content into a source")
    return True


def _opened(watch: _Watch, path: Any, mode: str | None = None, flags: int = 0) -> None:
    del mode
    if flags & os.O_ACCMODE == os.O_WRONLY or _is_named_readable(watch, path):
        return  # almost every file: following its links would take longer than reading a small module
    real = real_path(path)
    if real is None or real in _DEVICES or real.startswith(_TIME_ZONES) or _may_read(watch, path):
        return
    if os.path.isdir(real):  # noqa: PTH112 - a file without a name is made by opening its directory
        return
    author = author_of(sys._getframe(2))
    if author is None or is_editable(real, watch.packages) or is_running(sys._getframe(2), real):
        return
    if sys._getframe(2).f_code.co_name == "_fwalk":
        return  # it opens directories by relative names, and lists each of them
    shown = source_of_bytecode(os.fsdecode(path)) if author.importing else os.fsdecode(path)
    if _is_left_to(author, watch, path, f"reads {shown}"):
        return
    if author.importing:
        _refuse(watch, author, f"imports {shown}", ", which is not a declared source", _SOURCE, real)
    else:
        hint = _FILE if os.path.lexists(real) else _ABSENT
        if not author.itself and _is_of_a_library(real):
            hint = _IN_HOME
        hint = hint.format(name=Path(shown).name, path=shown)
        _refuse(watch, author, f"opens {shown}", _NOT_DECLARED, hint, real)


def _is_of_a_library(real: str) -> bool:
    """Whether a file is in a hidden directory of the home directory, where libraries keep their files."""
    hidden = os.path.realpath(os.path.expanduser("~")) + "/."  # noqa: PTH111 - there may be none
    return real.startswith(hidden) and not os.path.realpath(os.curdir).startswith(hidden)


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
        _refuse(watch, author, what, ", whose files the key does not hold", _NAMES, real)


def _imported(watch: _Watch, module: str, file: Any, *rest: Any) -> None:
    del module, rest
    if file is not None:  # an extension module; for other modules, Python opens a file
        _opened(watch, file)


# Calls that no key covers, whatever their arguments: a description, why it is refused (None: a note), and a hint.
_NETWORK = ("uses the network", ": the key does not cover its answers", _OUTSIDE)
_PROCESS = ("starts a process", None, _OUTSIDE)
# Python does not report these two to hooks. `_telling` makes their functions report them.
_FORK_EXEC, _SHM_OPEN = (f"etbuild.{name}" for name in ("fork_exec", "shm_open"))
_DEEDS: dict[str, tuple[str, str | None, str]] = {
    "builtins.input": ("asks for input", ": the key does not cover the answer", "pass it in the `kwargs`"),
    **dict.fromkeys(("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"), _NETWORK),
    "urllib.Request": _NETWORK,
    # `os.spawnv` and similar functions fork; the child then calls `os.exec`.
    **dict.fromkeys(("subprocess.Popen", "os.system", "os.posix_spawn", "os.exec", "pty.spawn", _FORK_EXEC), _PROCESS),
    _SHM_OPEN: ("reads shared memory", None, _OUTSIDE),
}


def _did(watch: _Watch, event: str, arguments: tuple[Any, ...]) -> None:
    frame = sys._getframe(2)
    what, why, hint = deed = _DEEDS[event]
    if event == _SHM_OPEN and len(arguments) > 1 and arguments[1] & os.O_CREAT:
        return
    # The process that removes shared memory after other processes have ended.
    if event == _FORK_EXEC and _is_called_by({"multiprocessing.resource_tracker"}, frame):
        return
    # `multiprocessing` connects to a process that it has started. The other side has to know a secret.
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


_HANDLERS: dict[str, Callable[..., None]] = {
    "open": _opened,
    "import": _imported,
    "os.listdir": _listed,
    "os.scandir": _listed,
}


def _may_read(watch: _Watch, path: Any) -> bool:
    """Whether a file is readable by its name or at its place."""
    return any(lies_in(each, watch.readable) for each in places_of(path))


def _is_named_readable(watch: _Watch, path: Any) -> bool:
    """Whether a file is readable by its name. Other names may be links to readable files."""
    if not isinstance(path, (str, bytes)):
        return False
    named = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - Path.resolve follows links
    return lies_in(named, watch.readable)


@contextlib.contextmanager
def _telling() -> Iterator[None]:
    """Wraps functions that read without an event of Python, so that they report one."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(replaced(os._Environ, "__getitem__", _environment_read))
        stack.enter_context(replaced(os._Environ, "__iter__", _environment_listed))
        stack.enter_context(_reporting(_posixsubprocess, "fork_exec"))
        stack.enter_context(_reporting(_posixshmem, "shm_open"))
        yield


def _reporting(module: Any, name: str) -> contextlib.AbstractContextManager[None]:
    """Makes a function report its calls."""
    function = getattr(module, name)

    def reporting(*arguments: Any, **named: Any) -> Any:
        sys.audit(f"etbuild.{name}", *arguments)
        return function(*arguments, **named)

    return replaced(module, name, reporting)


_own_getitem, _own_iter = os._Environ.__getitem__, os._Environ.__iter__
# Modules of Python's library that read variables for their callers.
_MAPPINGS = {
    function.__code__.co_filename
    for function in (os.getenv, Mapping.get, os.path.expandvars, Path.home, shutil.which, locale.setlocale)
}


def _read_variable(line: str, name: str, is_there: bool) -> None:
    """Refuses or notes that a source reads an environment variable.

    A building process sees few variables. Reading one that it never sees, or that never changes, is harmless.
    """
    if is_fixed():
        if name in dropped() and not is_there:
            author = Author(line, itself=True, importing=False)
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
