"""Facts of programs for `etbuild cpp`, and the header that it writes for them."""

from __future__ import annotations

from typing import Any

from etkit.cpp import wrapper

TENSOR = {"dtype": "float32", "shape": [1, 8], "dynamic": False}


def header(inputs: list[Any], outputs: list[Any], method: str = "forward", **constants: object) -> str:
    report: Any = {
        "methods": {method: {"inputs": inputs, "outputs": outputs}},
        "constant_methods": constants,
    }
    index: Any = {
        "name": "net",
        "artifacts": [{"kind": "program", "file": "net.pte", "size": 3}],
        "inputs": {"plan": {}},
    }
    return wrapper.header(index, report).partition("#endif // ETBUILD_TYPED_PROGRAM_H_")[2]
