"""What the inputs and outputs of a program mean: `metadata.inputs` and `outputs`, checked against the program."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from etbuild.errors import CheckError, DocumentPath, Problem, counted
from etbuild.report.parts import Added, Reported
from etbuild.results import ProgramMethod, TensorValue, Value
from etplugins.applications.manifest import by_method
from etplugins.applications.parts import CHANNELS
from etplugins.applications.sections import Described

_RANGES = {"bool": (0, 1), "uint8": (0, 255), "int8": (-128, 127), "int16": (-32768, 32767), "uint16": (0, 65535)}
"""The limits of dtypes that are narrow enough for a range to be wrong."""
_READ = ("colors", "layout", "mean", "deviation")


def report(program: Reported) -> Added:
    """The inputs and outputs of each described method, in the program's report and in its index. A program may say the
    names itself, with the constant methods `get_input_names` and `get_output_names`, JSON arrays, or
    `get_METHOD_input_names` for one method.

    Raises:
        CheckError: The program has other inputs or outputs than the manifest describes. The error lists all of them.
    """
    metadata: Mapping[str, Any] = program.plan.metadata or {}
    methods = program.lowering["program"]["methods"]
    problems: list[Problem] = []
    described: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for side in ("inputs", "outputs"):
        written = by_method(metadata.get(side), program.plan.methods)
        for method, entries in {**_named(program, methods, side), **written}.items():
            values = _values(methods[method], side)
            of_manifest: DocumentPath = ("metadata", side)
            path = (*of_manifest, method) if isinstance(metadata.get(side), dict) else of_manifest
            problems += _problems(entries, values, side, method, path)
            described.setdefault(method, {})[side] = [
                {**entry, **_facts(value)} for entry, value in zip(entries, values, strict=False)
            ]
    CheckError.raise_if(problems)
    for method, sides in described.items():
        _add_reading(sides.get("inputs", []), program.plan.methods[method].samples)
    return Added(content={"interface": described}, indexed=("interface",))


def _named(program: Reported, methods: Mapping[str, ProgramMethod], side: str) -> dict[str, list[Described]]:
    """The names that a program says, for each method that has as many inputs or outputs."""
    constants, found = program.lowering["constant_methods"], dict[str, list[Described]]()
    for method in program.plan.methods:
        of_all = constants.get(f"get_{side[:-1]}_names")
        try:
            names = json.loads(str(constants.get(f"get_{method}_{side[:-1]}_names", of_all)))
        except ValueError:  # the constant of a user may be another text
            continue
        if isinstance(names, list) and len(names) == len(_values(methods[method], side)):
            found[method] = [{"name": str(name)} for name in names]
    return found


def _values(method: ProgramMethod, side: str) -> list[Value]:
    return method["inputs"] if side == "inputs" else method["outputs"]


def _facts(value: Value) -> dict[str, Any]:
    """What the program says of a value."""
    return {**value} if "dtype" in value else {"type": value["type"]}


def _add_reading(inputs: list[dict[str, Any]], samples: Any) -> None:
    """Adds how the samples of a method are read to its first input, if it is a picture and the manifest is silent."""
    image = getattr(samples, "image", None)
    if image is not None and inputs:
        read = image.to_json()
        inputs[0].update({key: read[key] for key in _READ if key not in inputs[0]})


def _problems(
    entries: list[Described], values: list[Value], side: str, method: str, path: DocumentPath
) -> Iterator[Problem]:
    if len(entries) > len(values):
        message = f"{len(entries)} {side} are described, and `{method}` has {len(values)}"
        yield Problem(message, (*path, len(values)), "the report lists them in their order")
    for index, (entry, value) in enumerate(zip(entries, values, strict=False)):
        place = (*path, index)
        if "dtype" in value:
            yield from _of_tensor(entry, value, side, place)
            continue
        for key in ("layout", "colors", "mean", "deviation", "labels"):
            if key in entry:
                message = f"`{key}` is for tensors, and this is a value of type {value['type']}"
                yield Problem(message, (*place, key), "leave it out", at_key=True)


def _of_tensor(entry: Described, value: TensorValue, side: str, path: DocumentPath) -> Iterator[Problem]:
    shape, layout = value["shape"], entry.get("layout")
    of = f"{value['dtype']}{shape}"
    if layout is not None and len(layout) != len(shape):
        letters, dimensions = counted(len(layout), "letter"), counted(len(shape), "dimension")
        message = f"`{layout}` has {letters}, and the tensor has {dimensions} ({of})"
        yield Problem(message, (*path, "layout"), "write one letter for each dimension")
        return
    axis = layout.index("c") if layout is not None and "c" in layout else None
    size = None if axis is None else shape[axis]
    if "colors" in entry and size != CHANNELS[entry["colors"]]:
        message = (
            f"`{entry['colors']}` has {CHANNELS[entry['colors']]} channels, and the tensor has {size} at `c` ({of})"
        )
        yield Problem(message, (*path, "layout"), "write the layout that the model takes, or other colors")
    for key, numbers in (("mean", entry.get("mean")), ("deviation", entry.get("deviation"))):
        if numbers is not None and size is not None and len(numbers) not in (1, size):
            message = f"{counted(len(numbers), 'number')} for {counted(size, 'channel')} ({of})"
            yield Problem(message, (*path, key), "write one number for all channels, or one for each")
        if numbers is not None and not _is_float(value):
            message = f"`{key}` makes numbers with fractions, and the tensor is {of}"
            yield Problem(message, (*path, key), "leave it out, or let the model take floats", at_key=True)
    limits, narrow = entry.get("range"), _RANGES.get(value["dtype"])
    if limits is not None and narrow is not None and not narrow[0] <= limits[0] < limits[1] <= narrow[1]:
        message = f"{value['dtype']} holds {narrow[0]} to {narrow[1]}, and the range is {limits[0]} to {limits[1]}"
        yield Problem(message, (*path, "range"), f"write a range inside [{narrow[0]}, {narrow[1]}]")
    if "labels" in entry and _is_float(value):
        yield from _of_labels(entry["labels"], value, axis, side, path)


def _of_labels(
    labels: list[str], value: TensorValue, axis: int | None, side: str, path: DocumentPath
) -> Iterator[Problem]:
    """Compares the number of labels with the size of their dimension."""
    shape = value["shape"]
    if not shape:
        yield Problem("the tensor has no dimensions, so its value has no labels", (*path, "labels"), "leave them out")
        return
    size = shape[len(shape) - 1 if axis is None else axis]
    if len(labels) != size:
        where = "its last dimension" if axis is None else "the dimension `c`"
        message = f"{counted(len(labels), 'label')} for {counted(size, 'value')}: "
        message += f"{side[:-1]} {path[-1]} is {value['dtype']}{shape}, {where} counts"
        hint = "write a label for each value" + (
            "; if another dimension counts, write a `layout`" if axis is None else ""
        )
        yield Problem(message, (*path, "labels"), hint)


def _is_float(value: TensorValue) -> bool:
    return value["dtype"].startswith(("float", "bfloat"))
