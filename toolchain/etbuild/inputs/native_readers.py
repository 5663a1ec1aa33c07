"""Makes functions that read something report it to Python's audit hooks. By themselves they do not."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from etbuild.patching import replaced

ENVIRONMENT_READ = "etbuild.environment_read"
"""The event of a variable that is read. Its arguments: the mapping, and the name."""
ENVIRONMENT_LISTED = "etbuild.environment_listed"
"""The event of all variables that are listed. Its argument: the mapping."""
SHARED_MEMORY_OPENED = "etbuild.shared_memory_opened"
"""The event of shared memory that is opened by its name. Its arguments are those of the system's function."""
_OF_PYTHON = (
    (os._Environ, "__getitem__", ENVIRONMENT_READ),
    (os._Environ, "__iter__", ENVIRONMENT_LISTED),
    (importlib.import_module("_posixsubprocess"), "fork_exec", "subprocess.Popen"),  # `multiprocessing` calls it
    (importlib.import_module("_posixshmem"), "shm_open", SHARED_MEMORY_OPENED),
)
# Native functions that open files. Their first argument that can be a path is the path. The Python functions that call
# them need no wrapper.
_OF_PACKAGES = {
    "safetensors": ["safe_open"],
    "torch": ["from_file", "UntypedStorage.from_file"],  # all other storages are made by `UntypedStorage.from_file`
    "torch.jit": ["load"],  # it checks first whether the file exists
    "torch._C": [
        "PyTorchFileReader.__init__",
        "import_ir_module",
        "_load_jit_module_from_file",
        "_load_mobile_module_from_file",
        "_load_for_lite_interpreter",
    ],
}


@contextlib.contextmanager
def reported() -> Iterator[None]:
    """Within this context, the functions report what they do.

    Those of packages only do so if PyTorch is imported before: code that runs a model has done that.
    """
    with contextlib.ExitStack() as stack:
        for owner, name, event in _OF_PYTHON:
            stack.enter_context(replaced(owner, name, _reporting(getattr(owner, name), event)))
        for module, names in _OF_PACKAGES.items() if "torch" in sys.modules else ():
            for name in names:
                above, _, attribute = name.rpartition(".")
                owner = functools.reduce(getattr, above.split(".") if above else [], importlib.import_module(module))
                _replace_everywhere(stack, owner, attribute)
        yield


def _replace_everywhere(stack: contextlib.ExitStack, owner: Any, name: str) -> None:
    """Makes a function report the file that it opens, also in modules that have imported it from its own module."""
    opening = getattr(owner, name)
    reporting = _reporting_file(opening)
    is_static = isinstance(owner, type) and name != "__init__"
    for module in [module for module in list(sys.modules.values()) if type(module) is type(sys)]:
        if module is not owner and vars(module).get(name) is opening:
            stack.enter_context(replaced(module, name, reporting))
    stack.enter_context(replaced(owner, name, staticmethod(reporting) if is_static else reporting))


def _reporting(function: Callable[..., Any], event: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def reporting(*arguments: Any, **keywords: Any) -> Any:
        sys.audit(event, *arguments)
        return function(*arguments, **keywords)

    return reporting


def _reporting_file(opening: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(opening)
    def reporting(*arguments: Any, **keywords: Any) -> Any:
        for file in (*arguments, keywords.get("filename"), keywords.get("f")):
            if isinstance(file, (str, bytes, os.PathLike)):
                sys.audit("open", file, "r", os.O_RDONLY)
                break
        return opening(*arguments, **keywords)

    return reporting
