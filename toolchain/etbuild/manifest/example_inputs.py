"""Checks the example inputs of a manifest, and normalizes them and their dynamic shapes for the plan.

An input is a tensor, a plain value, or a list, tuple or mapping of inputs. Its dynamic shapes have the same form.
"""

from __future__ import annotations

from collections.abc import Iterator

from etbuild.errors import DocumentPath, Problem
from etbuild.files.value_limits import INT64
from etbuild.manifest import dynamic_shapes
from etbuild.manifest.dynamic_shapes import INPUTS, parts
from etbuild.manifest.file_names import check_example
from etbuild.manifest.sections import ExampleInput, Method

KEYS = ("example_inputs", "example_kwargs", "dynamic_shapes", "dynamic_kwargs_shapes")
_INTEGER_RANGES = {
    "int8": (-(2**7), 2**7 - 1),
    "uint8": (0, 2**8 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
}


def normalized(method: Method) -> dict[str, object]:
    """A method's inputs and their dynamic shapes for the plan, with all defaults."""
    inputs, keywords = method.get("example_inputs", []), method.get("example_kwargs", {})
    shapes, by_name = method.get("dynamic_shapes", [None] * len(inputs)), method.get("dynamic_kwargs_shapes", {})
    named = dynamic_shapes.named_dims([shapes, by_name])
    return {
        "example_inputs": inputs,
        "example_kwargs": keywords,
        "dynamic_shapes": [dynamic_shapes.normalized(each, named) for each in shapes],
        "dynamic_kwargs_shapes": {name: dynamic_shapes.normalized(by_name.get(name), named) for name in keywords},
    }


def check(method: Method, path: DocumentPath) -> Iterator[Problem]:
    """Yields the problems of a method's inputs that a schema cannot find.

    Args:
        method: The method.
        path: The place of the method.
    """
    inputs, keywords = method.get("example_inputs", []), method.get("example_kwargs", {})
    for index, example in enumerate(inputs):
        yield from check_one(example, (*path, "example_inputs", index))
    for name, example in keywords.items():
        yield from check_one(example, (*path, "example_kwargs", name))
    check_shapes = dynamic_shapes.Check()
    if "dynamic_shapes" in method:
        yield from check_shapes.of_sequence(inputs, method["dynamic_shapes"], (*path, "dynamic_shapes"))
    by_name = method.get("dynamic_kwargs_shapes", {})
    yield from check_shapes.of_mapping(keywords, by_name, (*path, "dynamic_kwargs_shapes"))
    yield from check_shapes.of_derived()


def check_one(example: ExampleInput, path: DocumentPath) -> Iterator[Problem]:
    """Yields the problems of one input that a schema cannot find.

    Args:
        example: The input.
        path: Its place.
    """
    if "of_model" in example:
        return
    sources = [key for key in INPUTS if key in example]
    if len(sources) != 1:
        got = " and ".join(f"`{key}`" for key in sources) or "none of them"
        known = f"{', '.join(f'`{key}`' for key in INPUTS[:-1])} and `{INPUTS[-1]}`"
        message = f"an input needs one of {known}; this one has {got}"
        yield Problem(message, path, "for example {shape: [1, 16], dtype: int64}")
        return
    owners = {"dtype": "shape", "fill": "shape", "kwargs": "factory", "key": "file", "loader": "file"}
    for key, owner in owners.items():
        if key in example and owner != sources[0]:
            yield Problem(f"`{key}` goes with `{owner}`, not with `{sources[0]}`", (*path, key), at_key=True)
    if "file" in example:
        yield from check_example(example["file"], (*path, "file"), "loader" in example)
        if "loader" in example and "key" in example:
            yield Problem("`key` does not go with `loader`, which reads the file", (*path, "key"), at_key=True)
        if example["file"].endswith(".safetensors") and not example.keys() & {"key", "loader"}:
            yield Problem("the key `key` is missing: it names the tensor in the file", path, "add `key: tokens`")
    yield from _check_fill(example, (*path, "fill"))
    for index_or_key, part in parts(example).items():
        yield from check_one(part, (*path, sources[0], index_or_key))
    value = example.get("value")
    if isinstance(value, int) and not INT64[0] <= value <= INT64[1]:
        yield Problem(f"{value} does not fit into 64 bits", (*path, "value"))


def _check_fill(example: ExampleInput, path: DocumentPath) -> Iterator[Problem]:
    fill, dtype = example.get("fill", "random"), example.get("dtype", "float32")
    if isinstance(fill, bool) or not isinstance(fill, (int, float)):
        return
    if dtype == "bool":
        if fill not in (0, 1):
            yield Problem(f"{fill} is not a value of bool", path, "write 0 or 1")
    elif dtype in _INTEGER_RANGES:
        low, high = _INTEGER_RANGES[dtype]
        if fill != int(fill) or not low <= fill <= high:
            yield Problem(f"{fill} is not a value of {dtype}", path, f"a whole number from {low} to {high}")
