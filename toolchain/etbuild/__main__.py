"""Entry point of `etbuild`, `python -m etbuild`, and `etbuild --persistent_worker`, as Bazel starts a worker.

A process that builds runs this file directly (see `surroundings.environment`). It then finds its own package and the
installed ones by itself.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

_SUPERVISED = "--supervised="
_WORKER = ["--persistent_worker"]
_WARM = "--warm-server="
_OTHER_PROTOCOL = """\
error: Buck2 started a local worker, which speaks gRPC; this one speaks Bazel's protocol, for remote executors
    set `use_persistent_workers = False` for this execution platform, or leave `worker` out of `executorch_toolchain`"""


def main() -> int:
    """Runs the command line."""
    # Signals wait until there is a handler. Python itself would print a traceback, or end without a message.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    if not os.environ.get("PYTHONSAFEPATH") and sys.path[0] in ("", _current_directory()):
        del sys.path[0]  # `python -m` put it there
    if os.environ.get("PYTHONPATH"):
        _look_where_builds_look()
    arguments = sys.argv[1:]
    if arguments == _WORKER and "WORKER_SOCKET" in os.environ:
        print(_OTHER_PROTOCOL, file=sys.stderr)
        return 2
    if arguments == _WORKER or arguments[:1] == ["watch"]:
        _restart(arguments)
    is_warm = bool(arguments) and arguments[0].startswith(_WARM)
    if arguments == _WORKER or is_warm:
        import etbuild.cli.main  # noqa: F401 - once, and not in the fork of each request
    if arguments == _WORKER:
        from etbuild import plugins

        code: int = plugins.load("server", "persistent_worker")(_run)
        return code
    if is_warm:
        from etbuild import plugins

        socket = Path(arguments[0].removeprefix(_WARM))
        return int(plugins.load("starter", "server")(functools.partial(_run, tell_interrupt=lambda: None), socket))
    if arguments and arguments[0].startswith(_SUPERVISED):
        from etbuild.processes.supervisor import work_for_parent

        descriptor, handed = map(int, arguments.pop(0).removeprefix(_SUPERVISED).split(","))
        # The parent knows why this process is interrupted, and prints the message.
        work_for_parent(descriptor, handed, lambda: _run(arguments, tell_interrupt=lambda: None))
    try:
        code = _run(arguments, restart=lambda limit, warm: _supervise(arguments, limit, warm))
    except SystemExit as asked:  # raised by the parser of the command line
        code = asked.code if isinstance(asked.code, int) else 1
    return _end(code)


def _run(arguments: list[str], **settings: Any) -> int:
    """Runs one command, which signals may interrupt. Returns its exit code."""
    from etbuild.cli.main import main as run_command
    from etbuild.processes.ending import Interrupts

    return run_command(arguments, interrupts=Interrupts(), **settings)


def _end(code: int) -> NoReturn:
    """Ends this process at once: while Python shuts down, it handles signals differently."""
    from etbuild.processes.ending import end_process

    end_process(code)


def _current_directory() -> str:
    """The current directory; empty if it was removed."""
    try:
        return os.getcwd()  # noqa: PTH109 - the same path as in `sys.path`
    except FileNotFoundError:
        return ""


def _supervise(arguments: list[str], limit: float | None, warm: bool) -> None:
    from etbuild.processes.supervisor import supervise

    supervise(f"{_SUPERVISED}{{}},{{}}", arguments, limit, warm)


def _restart(arguments: list[str]) -> None:
    """Restarts this process in fixed surroundings. It is for processes that live long and fork for each build."""
    from etbuild.surroundings import environment

    if not environment.is_fixed():
        os.execve(sys.executable, environment.command(arguments), environment.environment())


def _look_where_builds_look() -> None:
    """Removes the directories of PYTHONPATH that builds ignore, so that the key describes the packages of the build."""
    from etbuild.surroundings import environment

    left = set(environment.python_path())
    given = set(environment.absolute_paths(os.environ["PYTHONPATH"].split(os.pathsep)))
    sys.path[:] = [place for place in sys.path if Path(place) not in given - left]


def _start_as_file() -> None:
    """Does what Python does for `-m etbuild`, but does not run `sitecustomize` and `usercustomize`."""
    from importlib import util

    root = Path(__file__).parent
    sys.path[:] = [place for place in sys.path if place != str(root)]
    if sys.flags.no_site:
        import site

        site.execsitecustomize = site.execusercustomize = lambda: None
        site.main()
    spec = util.spec_from_file_location("etbuild", root / "__init__.py", submodule_search_locations=[str(root)])
    assert spec is not None
    assert spec.loader is not None
    package = util.module_from_spec(spec)
    sys.modules["etbuild"] = package
    spec.loader.exec_module(package)


if __name__ == "__main__":
    if not __package__:
        _start_as_file()
    sys.exit(main())
