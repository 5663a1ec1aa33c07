"""What XNNPACK keeps for a graph besides its packed weights, from the shapes in its delegate.

It follows XNNPACK. Values inside of a graph are in a workspace: `memory-planner.c` and `runtime.c`. A convolution, a
pooling or a resize keeps a table with the places of what it reads: `deconvolution-nhwc.c`, `resize-bilinear-nhwc.c`.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

from executorch.backends.xnnpack.serialization import xnnpack_graph_serialize
from executorch.exir._serialize._flatbuffer import _flatc_decompile

DELEGATE = "XnnpackBackend"
_NONE = 2**32 - 1
_ROUNDED = 128  # bytes of which the size of a place is a multiple
_OF_ROW, _ROWS_MORE = 8, 15  # the bytes of a scale and zero point, and how many follow those of the rows
_POINTER = 8
_BITS = {"32": 32, "16": 16, "int8": 8, "uint8": 8, "int4": 4}
"""Bits of an element, by how the name of its kind ends, such as `xnn_datatype_qdint8`."""
Graph = Mapping[str, Any]


def graph(compiled: bytes) -> Graph:
    """The graph in a delegate, as JSON in the form of ExecuTorch's `schema.fbs`."""
    header = xnnpack_graph_serialize.XNNHeader
    place = header.from_bytes(compiled[: header.EXPECTED_LENGTH])
    with tempfile.TemporaryDirectory() as name:
        schema, file = Path(name, "schema.fbs"), Path(name, "graph.bin")
        schema.write_bytes(xnnpack_graph_serialize._get_schema_bytes())
        file.write_bytes(compiled[place.flatbuffer_offset : place.flatbuffer_offset + place.flatbuffer_size])
        _flatc_decompile(name, str(schema), str(file))
        text = file.with_suffix(".json").read_text("ascii")  # bounds of an activation may be infinite
        made: Graph = json.loads(re.sub(r": (-?)inf\b", r": \1Infinity", text))
        return made


def workspaces(sizes: Iterable[int]) -> int:
    """The bytes of the workspace that all graphs of a process share, from what each needs, in the order of their first
    calls. A larger workspace is there before the smaller one is freed, so their places are not used again."""
    total = largest = 0
    for size in sizes:
        if size > largest:
            total, largest = total + size, size
    return total


def tables(made: Graph) -> int:
    """The bytes of the tables of a graph's convolutions, poolings and resizes, for one of a batch."""
    values = _values(made)
    return sum(_table(kind, node, values[node["output_id"]]) for kind, node in _nodes(made))


def _table(kind: str, node: Mapping[str, Any], result: Mapping[str, Any]) -> int:
    kernel = [node.get(f"{of}_{side}", 1) for of in ("kernel", "pooling") for side in ("height", "width")]
    if kind == "XNNStaticResizeBilinear2D":  # a pixel has four places, and two weights: floats, or integers of 16 bits
        weights = 2 * (4 if result["datatype"].endswith("32") else 2)
        pixels: int = prod(result["dims"][1:3])
        return pixels * (4 * _POINTER + weights)
    if prod(kernel) == 1 and kind != "XNNConvTranspose2d":
        return 0
    height, width = map(int, result["dims"][1:3])
    places: int = width * prod(kernel)
    if kind == "XNNConvTranspose2d" and _has_parts(node):
        places //= node["subsampling_height"] * node["subsampling_width"]
    if kind == "XNNDepthwiseConv2d" and node["dilation_width"] == 1:  # neighbours share columns
        step = min(node["subsampling_width"], node["kernel_width"]) * node["kernel_height"]
        places = prod(kernel) + (width - 1) * step
    return height * places * _POINTER


def _has_parts(node: Mapping[str, Any]) -> bool:
    """Whether a transposed convolution has a small kernel for each place in its stride. It reserves memory for the
    whole kernel, but a process keeps only what these write."""
    sides = ("height", "width")
    return all(node[f"dilation_{of}"] == 1 and node[f"subsampling_{of}"] <= node[f"kernel_{of}"] for of in sides)


def workspace(made: Graph) -> int:
    """The bytes that the values inside of a graph take in its workspace, at their upper bounds."""
    values, nodes = _values(made), [*_nodes(made)]
    readers = Counter(each for _, node in nodes for each in _inputs(node))
    used: dict[int, list[int]] = {}
    for index, (_, node) in enumerate(nodes):
        for each in (*_inputs(node), node["output_id"]):
            used.setdefault(each, [index, index])[1] = index
    inside = {each: _bytes(values[each]) for each in used if _is_inside(values[each])}
    at: dict[int, int] = {}  # which value gave a result its place
    for kind, node in nodes:
        result = node["output_id"]
        fits = (each for each in _inputs(node) if _by_element(kind, node) and inside.get(each) == inside.get(result))
        given = next((each for each in fits if each in inside and readers[each] == readers[result] == 1), None)
        if given is not None:
            at[result] = first = at.get(given, given)
            used[first][1] = max(used[first][1], used[result][1])
    return _planned([(size, used[each][0], used[each][1]) for each, size in inside.items() if each not in at])


def _planned(blocks: Iterable[tuple[int, int, int]]) -> int:
    """The end of the last block: the largest is placed first, each in the smallest gap among those of its time."""
    placed: list[tuple[int, int, int, int]] = []
    for size, first, last in sorted(blocks, key=lambda block: -block[0]):
        end, gaps = 0, []
        for start, until in sorted(each[:2] for each in placed if each[2] <= last and first <= each[3]):
            if start - end >= size:
                gaps.append((start - end, end))
            end = max(end, until)
        start = min(gaps)[1] if gaps else end
        placed.append((start, start + size, first, last))
    return max((each[1] for each in placed), default=0)


def _values(made: Graph) -> dict[int, dict[str, Any]]:
    unions = [each["xvalue_union"] for each in made["xvalues"]]
    return {each["id_out"]: each for each in (union.get("tensor_value", union) for union in unions)}


def _nodes(made: Graph) -> Iterator[tuple[str, dict[str, Any]]]:
    for each in made["xnodes"]:
        node = each["xnode_union"]
        yield each["xnode_union_type"], {**node, "output_id": node.get("output_id", node.get("output_value_id"))}


def _inputs(node: Mapping[str, Any]) -> list[int]:
    return [each for key, each in node.items() if key.endswith("_id") and "output" not in key and each != _NONE]


def _by_element(kind: str, node: Mapping[str, Any]) -> bool:
    """Whether a result may lie where an operand was: operators by element have no settings."""
    return kind == "XNNStaticReshape" or (
        kind != "XNNBatchMatrixMultiply" and all(key.endswith("_id") or key == "flags" for key in node)
    )


def _is_inside(value: Mapping[str, Any]) -> bool:
    return not value["flags"] and not value["constant_buffer_idx"]


def _bytes(value: Mapping[str, Any]) -> int:
    kind, dims = value["datatype"], value.get("dims", [])
    bits = next(bits for end, bits in _BITS.items() if kind.endswith(end))
    rows = _rounded(_OF_ROW * (prod(dims[:-1]) + _ROWS_MORE)) if kind.endswith("qdint8") else 0
    return _rounded(prod(dims) * bits // 8) + rows


def _rounded(size: int) -> int:
    return -(-size // _ROUNDED) * _ROUNDED
