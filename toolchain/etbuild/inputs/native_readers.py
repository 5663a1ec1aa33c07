"""Functions that read files in native code, of which Python tells no audit hook, made to tell it."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from etbuild.patching import replaced

import_module = importlib.import_module
"""Python's own, which `undeclared` replaces while the sources run."""

# A path is their first argument that can be one. Functions of Python's that they are called through need no wrapper.
_NATIVE = {
    "safetensors": ["safe_open"],
    "torch": ["from_file", "UntypedStorage.from_file"],  # all other storages are made by that of `UntypedStorage`
    "torch.jit": ["load"],  # it first looks whether the file is there
    "torch._C": [
        "PyTorchFileReader.__init__",
        "import_ir_module",
        "_load_jit_module_from_file",
        "_load_mobile_module_from_file",
        "_load_for_lite_interpreter",
    ],
}


def native_readers() -> Iterator[tuple[Any, str]]:
    """The owner of each function that reads without telling, and its name.

    What a source imports later takes the functions from these modules, so that they are imported before.
    """
    for module, names in _NATIVE.items():
        if "torch" not in sys.modules:  # whoever runs a model's code has imported it
            return
        for name in names:
            above, _, attribute = name.rpartition(".")
            owner = import_module(module)
            yield functools.reduce(getattr, above.split(".") if above else [], owner), attribute


@contextlib.contextmanager
def told_everywhere(owner: Any, name: str) -> Iterator[None]:
    """Has a function tell, in the modules too that have taken it from its own."""
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
