"""Reads Core ML's models as ExecuTorch's backend writes them: as flattened directories.

A flattened directory consists of the contents of the files, one after the other, and a JSON text whose bytes are
reversed. The text lists nodes. Each has its region of the contents, and the numbers of its children by name. The root
is the last node.

Written against ExecuTorch 1.5 and coremltools 9.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

_MOST_OF_NODES = 1 << 20  # bytes: enough, since a model has ten files
_REFERENCE = b"CMJR"  # precedes a JSON text in delegates that refer to a function of a model in named data


def nodes(flat: bytes) -> list[dict[str, Any]]:
    """Returns the nodes of a flattened directory."""
    tail = flat[: -_MOST_OF_NODES - 1 : -1].decode("latin-1")  # reversed
    listed: list[dict[str, Any]] = json.JSONDecoder().raw_decode(tail)[0]["nodes"]
    return listed


def reference(compiled: bytes) -> tuple[str, str] | None:
    """Returns the key of the model, and the function in it, that a delegate refers to. None if the delegate contains
    its model."""
    if compiled[: len(_REFERENCE)] != _REFERENCE:
        return None
    content = json.loads(compiled[len(_REFERENCE) :])
    return content["key"], content["functionName"]


def weights(flat: bytes, function: str) -> dict[str, tuple[str, int]]:
    """Finds the weights that a function of a model reads from the model's file.

    Returns:
        For each location in the file, the type of the weight, such as `FLOAT16`, and the number of its elements.
    """
    from coremltools.proto import MIL_pb2, Model_pb2

    sizes = {}
    model = Model_pb2.Model()
    model.ParseFromString(_file(flat, ".mlmodel"))
    for block in model.mlProgram.functions[function].block_specializations.values():
        for value in _values(block):
            if value.WhichOneof("value") == "blobFileValue":
                place, tensor = value.blobFileValue, value.type.tensorType
                count = math.prod(each.constant.size for each in tensor.dimensions)
                sizes[f"{place.fileName} {place.offset}"] = MIL_pb2.DataType.Name(tensor.dataType), count
    return sizes


def bits(kind: str) -> int:
    """Returns the size of an element in bits: the first number in the name of its type, such as 8 for `FLOAT8E4M3FN`. 8
    for a name without a number, such as `BOOL`."""
    size = re.search("[0-9]+", kind)
    return int(size[0]) if size else 8


def _file(flat: bytes, suffix: str) -> bytes:
    """Returns the content of the only file whose name has this suffix."""
    every = nodes(flat)
    [number] = [number for node in every for name, number in node["children"].items() if name.endswith(suffix)]
    region = every[number]["dataRegion"]
    return bytes(memoryview(flat)[region["offset"] : region["offset"] + region["size"]])


def _values(block: Any) -> Iterator[Any]:
    """Yields all values that are written out in a block and in the blocks inside it."""
    for operation in block.operations:
        yield from operation.attributes.values()
        for argument in operation.inputs.values():
            yield from (each.value for each in argument.arguments if each.WhichOneof("binding") == "value")
        for inner in operation.blocks:
            yield from _values(inner)
