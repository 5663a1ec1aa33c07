"""Facts of programs for `etbuild cpp`, and the header that it writes for them."""

from __future__ import annotations

from importlib import util
from pathlib import Path
from typing import Any

from etkit.native.cpp import wrapper

_FOUND = util.find_spec("executorch")
PACKAGE = Path(next(iter(_FOUND.submodule_search_locations or ()))) if _FOUND else Path()
"""The package of ExecuTorch, with headers and libraries."""
INCLUDE = [f"-I{PACKAGE}/include", f"-I{PACKAGE}/include/executorch/runtime/core/portable_type/c10"]
DEFINES = ["-DC10_USING_CUSTOM_GENERATED_MACROS", "-DET_EVENT_TRACER_ENABLED"]
COMPILE = ["g++", "-std=c++17", "-O0", "-Wall", "-Wextra", "-Werror=narrowing", *DEFINES, *INCLUDE]
"""The command that compiles C++ of an application."""
TENSOR = {"dtype": "float32", "shape": [1, 8], "dynamic": False}


def whole_header(inputs: list[Any], outputs: list[Any], method: str = "forward", **constants: object) -> str:
    """The header of a program `net` with one method."""
    report: Any = {
        "methods": {method: {"inputs": inputs, "outputs": outputs}},
        "constant_methods": constants,
    }
    index: Any = {
        "name": "net",
        "artifacts": [{"kind": "program", "file": "net.pte", "size": 3}],
        "inputs": {"plan": {}},
    }
    return wrapper.header(index, report)


def header(inputs: list[Any], outputs: list[Any], method: str = "forward", **constants: object) -> str:
    """What such a header has besides the part that all headers have."""
    whole = whole_header(inputs, outputs, method, **constants)
    return whole.partition("#endif // ETBUILD_TYPED_PROGRAM_H_")[2]
