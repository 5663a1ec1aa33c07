"""Checks the example inputs of a manifest and their dynamic shapes, and normalizes them for the plan.

An input is a tensor, a plain value, or a list, tuple or mapping of inputs. Its dynamic shapes have the same form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from etbuild.errors import DocumentPath, Problem, unknown

Example = dict[str, Any]
CheckFile = Callable[[str, DocumentPath], Iterator[Problem]]

KEYS = ("example_inputs", "example_kwargs", "dynamic_shapes", "dynamic_kwargs_shapes")
CONTAINERS = ("list", "tuple", "dict")
_SOURCES = ("shape", "factory", "file", "value", *CONTAINERS)
_INTEGER_RANGES = {
    "int8": (-(2**7), 2**7 - 1),
    "uint8": (0, 2**8 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
}
INT64 = _INTEGER_RANGES["int64"]


def parts(example: Example) -> dict[int | str, Any]:
    """The elements of a list, tuple or mapping of inputs, by index or key. Empty for any other input."""
    content = next((example[kind] for kind in CONTAINERS if kind in example), ())
    return content if isinstance(content, dict) else dict(enumerate(content))


def normalized(method: dict[str, Any]) -> dict[str, Any]:
    """A method's inputs and their dynamic shapes for the plan, with all defaults."""
    inputs, keywords = method.get("example_inputs", []), method.get("example_kwargs", {})
    return {
        "example_inputs": [_reduce(example) for example in inputs],
        "example_kwargs": {name: _reduce(example) for name, example in keywords.items()},
        "dynamic_shapes": [_normalized_shapes(shapes) for shapes in method.get("dynamic_shapes", [None] * len(inputs))],
        "dynamic_kwargs_shapes": {
            name: _normalized_shapes(method.get("dynamic_kwargs_shapes", {}).get(name)) for name in keywords
        },
    }


def _reduce(example: Example) -> Example:
    for kind in CONTAINERS:
        if kind in example:
            reduced = {key: _reduce(part) for key, part in parts(example).items()}
            return {kind: reduced if kind == "dict" else list(reduced.values())}
    if "shape" in example:
        return {"dtype": "float32", "fill": "zeros", **example}
    return {"kwargs": {}, **example} if "factory" in example else dict(example)


def is_dim(shapes: Any) -> bool:
    """Whether a part of dynamic shapes is a dimension, and not the shapes of a mapping of inputs."""
    return isinstance(shapes, dict) and isinstance(shapes.get("dim"), str)


def _normalized_shapes(shapes: Any) -> Any:
    """Dynamic shapes with all defaults; None if nothing is dynamic."""
    if is_dim(shapes):
        return {"min": 1, **shapes}
    if isinstance(shapes, list):
        reduced = [_normalized_shapes(part) for part in shapes]
        return reduced if any(part is not None for part in reduced) else None
    if isinstance(shapes, dict):
        by_key = {key: _normalized_shapes(part) for key, part in shapes.items()}
        return by_key if any(part is not None for part in by_key.values()) else None
    return None


def check(method: dict[str, Any], path: DocumentPath, check_file: CheckFile) -> Iterator[Problem]:
    """Yields the problems of a method's inputs that a schema cannot find.

    Args:
        method: The method as its manifest has it. It may break the schema.
        path: The place of the method.
        check_file: Yields the problems of the name of a file.
    """
    inputs, keywords = method.get("example_inputs"), method.get("example_kwargs")
    inputs, keywords = inputs if isinstance(inputs, list) else [], keywords if isinstance(keywords, dict) else {}
    for index, example in enumerate(inputs):
        yield from _check(example, (*path, "example_inputs", index), check_file)
    for name, example in keywords.items():
        yield from _check(example, (*path, "example_kwargs", name), check_file)
    known: _KnownDims = {}
    shapes = method.get("dynamic_shapes")
    if isinstance(shapes, list) and (inputs or keywords):
        yield from _check_sequence(inputs, shapes, known, (*path, "dynamic_shapes"))
    by_name = method.get("dynamic_kwargs_shapes")
    if isinstance(by_name, dict):
        yield from _check_mapping(keywords, by_name, known, (*path, "dynamic_kwargs_shapes"))


def _check(example: Any, path: DocumentPath, check_file: CheckFile) -> Iterator[Problem]:
    if not isinstance(example, dict):
        return
    sources = [key for key in _SOURCES if key in example]
    if len(sources) != 1:
        got = " and ".join(f"`{key}`" for key in sources) or "none of them"
        known = f"{', '.join(f'`{key}`' for key in _SOURCES[:-1])} and `{_SOURCES[-1]}`"
        yield Problem(
            f"an input needs one of {known}; this one has {got}", path, "for example {shape: [1, 16], dtype: int64}"
        )
        return
    for key, owner in {"dtype": "shape", "fill": "shape", "kwargs": "factory", "key": "file"}.items():
        if key in example and owner != sources[0]:
            yield Problem(f"`{key}` goes with `{owner}`, not with `{sources[0]}`", (*path, key), at_key=True)
    if isinstance(example.get("file"), str) and example["file"]:
        yield from check_file(example["file"], (*path, "file"))
        if example["file"].endswith(".safetensors") and "key" not in example:
            yield Problem("the key `key` is missing: it names the tensor in the file", path, "add `key: tokens`")
    yield from _check_fill(example, (*path, "fill"))
    if sources[0] in CONTAINERS and isinstance(example[sources[0]], (list, dict)):
        for index_or_key, part in parts(example).items():
            yield from _check(part, (*path, sources[0], index_or_key), check_file)
    value = example.get("value")
    if isinstance(value, int) and not INT64[0] <= value <= INT64[1]:
        yield Problem(f"{value} does not fit into 64 bits", (*path, "value"))


def _check_fill(example: Example, path: DocumentPath) -> Iterator[Problem]:
    fill, dtype = example.get("fill", "zeros"), example.get("dtype", "float32")
    if isinstance(fill, bool) or not isinstance(fill, (int, float)):
        return
    if dtype == "bool":
        if fill not in (0, 1):
            yield Problem(f"{fill} is not a value of bool", path, "write 0 or 1")
    elif dtype in _INTEGER_RANGES:
        low, high = _INTEGER_RANGES[dtype]
        if fill != int(fill) or not low <= fill <= high:
            yield Problem(f"{fill} is not a value of {dtype}", path, f"a whole number from {low} to {high}")


_KnownDims = dict[str, tuple[tuple[int, int], int | None]]
"""For each dimension by name: its range, and its size in the first example input that has it (None if unknown)."""


def _check_sequence(inputs: list[Any], shapes: list[Any], known: _KnownDims, path: DocumentPath) -> Iterator[Problem]:
    if len(shapes) != len(inputs):
        yield Problem(
            f"{_entries(shapes)} for {len(inputs)} {'input' if len(inputs) == 1 else 'inputs'}",
            path,
            "write one entry for each input, `null` for a fixed one",
        )
        return
    for index, (example, part) in enumerate(zip(inputs, shapes, strict=True)):
        yield from _check_shapes(example, part, known, (*path, index))


def _check_mapping(
    inputs: dict[str, Any], shapes: dict[str, Any], known: _KnownDims, path: DocumentPath
) -> Iterator[Problem]:
    """Checks the shapes of a mapping of inputs. An input without shapes is fixed."""
    for key, hint in unknown(shapes, inputs):
        yield Problem(f"there is no input `{key}`", (*path, key), hint, at_key=True)
    for key, part in shapes.items():
        if key in inputs:
            yield from _check_shapes(inputs[key], part, known, (*path, key))


def _check_shapes(example: Any, shapes: Any, known: _KnownDims, path: DocumentPath) -> Iterator[Problem]:
    """Checks that dynamic shapes have the form of their input, and ranges against sizes and earlier uses of a name."""
    if not isinstance(example, dict) or shapes is None:
        return
    kind = next((kind for kind in _SOURCES if kind in example), None)
    if kind == "value":
        yield Problem("a plain value has no dimensions", path, "write `null`")
    elif kind in ("list", "tuple") and isinstance(example[kind], list):
        if isinstance(shapes, list):
            yield from _check_sequence(example[kind], shapes, known, path)
        else:
            yield Problem(f"the input is a {kind}", path, "write a list of one entry for each element, or `null`")
    elif kind == "dict" and isinstance(example[kind], dict):
        if isinstance(shapes, dict) and not is_dim(shapes):
            yield from _check_mapping(example[kind], shapes, known, path)
        else:
            yield Problem("the input is a mapping", path, "write a mapping by key, or `null`")
    elif kind == "factory":
        yield from _check_dims_within(shapes, known, path)
    elif isinstance(shapes, list):
        yield from _check_tensor_shapes(example.get("shape"), shapes, known, path)
    else:
        yield Problem("the input is a tensor", path, "write a list of one entry for each dimension, or `null`")


def _check_dims_within(shapes: Any, known: _KnownDims, path: DocumentPath) -> Iterator[Problem]:
    """Checks the ranges for the result of a factory. Its form is not known yet."""
    if _is_checkable(shapes):
        yield from _check_dim(shapes, None, known, path)
    elif isinstance(shapes, (list, dict)):
        for key, part in shapes.items() if isinstance(shapes, dict) else enumerate(shapes):
            yield from _check_dims_within(part, known, (*path, key))


def _is_checkable(dim: Any) -> bool:
    return is_dim(dim) and isinstance(dim.get("max"), int) and isinstance(dim.get("min", 1), int)


def _check_tensor_shapes(sizes: Any, dims: list[Any], known: _KnownDims, path: DocumentPath) -> Iterator[Problem]:
    if isinstance(sizes, list) and len(dims) != len(sizes):
        yield Problem(
            f"{_entries(dims)} for an input of {len(sizes)} dimensions",
            path,
            "write one entry for each dimension, `null` for a fixed one",
        )
        return
    for index, dim in enumerate(dims):
        if _is_checkable(dim):
            size = sizes[index] if isinstance(sizes, list) and isinstance(sizes[index], int) else None
            yield from _check_dim(dim, size, known, (*path, index))
        elif isinstance(dim, list) or (isinstance(dim, dict) and not is_dim(dim)):
            yield Problem("the input is a tensor", (*path, index), "a dimension is `null` or {dim: NAME, max: SIZE}")


def _entries(values: list[Any]) -> str:
    return f"{len(values)} {'entry' if len(values) == 1 else 'entries'}"


def _check_dim(dim: dict[str, Any], size: int | None, known: _KnownDims, path: DocumentPath) -> Iterator[Problem]:
    low, high, name = dim.get("min", 1), dim["max"], str(dim.get("dim"))
    if low >= high:
        yield Problem(f"min {low} is not less than max {high}", path, "write `null` for a fixed dimension")
    elif size is not None and not low <= size <= high:
        yield Problem(
            f"the example's size {size} is not between min {low} and max {high}",
            path,
            "change the range or the example's shape",
        )
    elif size is not None and size < 2:
        yield Problem(
            f"the example's size {size} would make the dimension fixed",
            path,
            f"torch.export treats sizes 0 and 1 as constants: give the example a size from 2 to {high}",
        )
    elif name in known and known[name][0] != (low, high):
        first = known[name][0]
        yield Problem(
            f"the dimension `{name}` has the range {first[0]} to {first[1]} in an earlier place",
            path,
            "dimensions of one name have one size: repeat the range, or use another name",
        )
    elif name in known and None not in (size, known[name][1]) and known[name][1] != size:
        yield Problem(
            f"the dimension `{name}` has size {known[name][1]} in another example input and {size} in this one",
            path,
            "dimensions of one name have one size: change a shape, or use another name",
        )
    known.setdefault(name, ((low, high), size))
