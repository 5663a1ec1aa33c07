"""What is inside Core ML's models, as ExecuTorch's backend writes them: directories in one piece.

Such a piece is what the files hold, one after the other, and then, with its bytes reversed, a JSON text of nodes: each
with its region of those bytes, and the numbers of its children by name. The root comes last.

Written against ExecuTorch 1.5 and coremltools 9.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

_MOST_OF_NODES = 1 << 20  # bytes: a model has ten files
_REFERENCE = b"CMJR"  # before a JSON text, in delegates that are functions of a model in named data


def nodes(flat: bytes) -> list[dict[str, Any]]:
    """The nodes of a flattened directory."""
    tail = flat[: -_MOST_OF_NODES - 1 : -1].decode("latin-1")  # reversed
    found: list[dict[str, Any]] = json.JSONDecoder().raw_decode(tail)[0]["nodes"]
    return found


def reference(compiled: bytes) -> tuple[str, str] | None:
    """The key of the model and the function in it that a delegate names; None for one that holds its model."""
    if compiled[: len(_REFERENCE)] != _REFERENCE:
        return None
    content = json.loads(compiled[len(_REFERENCE) :])
    return content["key"], content["functionName"]


def weights(flat: bytes, function: str) -> dict[str, tuple[str, int]]:
    """The weights that a function of a model reads from the model's file.

    Returns:
        By place in the file the type of each weight, such as `FLOAT16`, and the number of its elements.
    """
    from coremltools.proto import MIL_pb2, Model_pb2

    found = {}
    model = Model_pb2.Model()
    model.ParseFromString(_file(flat, ".mlmodel"))
    for block in model.mlProgram.functions[function].block_specializations.values():
        for value in _values(block):
            if value.WhichOneof("value") == "blobFileValue":
                place, tensor = value.blobFileValue, value.type.tensorType
                count = math.prod(each.constant.size for each in tensor.dimensions)
                found[f"{place.fileName} {place.offset}"] = MIL_pb2.DataType.Name(tensor.dataType), count
    return found


def bits(kind: str) -> int:
    """The size of an element by the name of its type: the first number in it, as 8 of `FLOAT8E4M3FN`; 8 of `BOOL`."""
    size = re.search("[0-9]+", kind)
    return int(size[0]) if size else 8


def _file(flat: bytes, suffix: str) -> bytes:
    """The content of the only file with a name that ends so."""
    every = nodes(flat)
    [number] = [number for node in every for name, number in node["children"].items() if name.endswith(suffix)]
    region = every[number]["dataRegion"]
    return bytes(memoryview(flat)[region["offset"] : region["offset"] + region["size"]])


def _values(block: Any) -> Iterator[Any]:
    """All values that are written out in a block, and in those inside it."""
    for operation in block.operations:
        yield from operation.attributes.values()
        for argument in operation.inputs.values():
            yield from (each.value for each in argument.arguments if each.WhichOneof("binding") == "value")
        for inner in operation.blocks:
            yield from _values(inner)
