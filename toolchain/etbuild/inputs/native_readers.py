"""Makes native functions that read files report it to Python's audit hooks. By themselves they do not."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from etbuild.patching import replaced

# Their first argument that can be a path is the path. The Python functions that call them need no wrapper.
_NATIVE = {
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


def native_readers() -> Iterator[tuple[Any, str]]:
    """The owner and the name of each function that reads files without reporting it.

    Imports their modules first: modules that a source imports later take the functions from them.
    """
    for module, names in _NATIVE.items():
        if "torch" not in sys.modules:  # code that runs a model has imported torch before
            return
        for name in names:
            above, _, attribute = name.rpartition(".")
            owner = importlib.import_module(module)
            yield functools.reduce(getattr, above.split(".") if above else [], owner), attribute


@contextlib.contextmanager
def told_everywhere(owner: Any, name: str) -> Iterator[None]:
    """Makes a function report what it reads, also in modules that have imported it from its own module."""
    opening = getattr(owner, name)
    told: Any = _told(opening)
    is_static = isinstance(owner, type) and name != "__init__"
    modules = [module for module in list(sys.modules.values()) if type(module) is type(sys)]
    with contextlib.ExitStack() as stack:
        for module in modules:
            if module is not owner and vars(module).get(name) is opening:
                stack.enter_context(replaced(module, name, told))
        stack.enter_context(replaced(owner, name, staticmethod(told) if is_static else told))
        yield


def _told(opening: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(opening)
    def told(*arguments: Any, **keywords: Any) -> Any:
        for file in (*arguments, keywords.get("filename"), keywords.get("f")):
            if isinstance(file, (str, bytes, os.PathLike)):
                sys.audit("open", file, "r", os.O_RDONLY)
                break
        return opening(*arguments, **keywords)

    return told
