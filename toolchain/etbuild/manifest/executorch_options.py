"""Checks the manifest's options for ExecuTorch. They have ExecuTorch's names."""

from __future__ import annotations

from collections.abc import Iterator

from etbuild.errors import DocumentPath, Problem, unknown
from etbuild.manifest.sections import Manifest, MemoryPlanning, Method

_WITHOUT_EFFECT = {
    "emit_stacktrace": (True, "exports have no stack traces, since stack traces hold paths of the machine"),
    "dynamic_memory_planning_mode": ("symbolic", "ExecuTorch 1.5 always plans for upper bounds"),
}


def check(data: Manifest, methods: dict[str, Method]) -> Iterator[Problem]:
    """Yields the problems of these options that a schema cannot find.

    Args:
        data: The manifest.
        methods: The methods of the manifest.
    """
    executorch = data.get("executorch", {})
    for option, (value, why) in _WITHOUT_EFFECT.items():
        if executorch.get(option) == value:
            yield Problem(f"`{option}` would have no effect", ("executorch", option), why, at_key=True)
    for key in ("segment_alignment", "constant_tensor_alignment", "delegate_alignment"):
        yield from _check_power_of_two(executorch.get(key), ("executorch", key))
    for key, by_method in executorch.get("propagate_device_config", {}).items():
        for name, hint in unknown(by_method if isinstance(by_method, dict) else (), methods):
            path = ("executorch", "propagate_device_config", key, name)
            yield Problem(f"there is no method `{name}`", path, hint, at_key=True)
    yield from _check_memory(data, methods)


def _check_memory(data: Manifest, methods: dict[str, Method]) -> Iterator[Problem]:
    executorch, sharing = data.get("executorch", {}), data.get("share_mutable_buffers", False)
    places: dict[DocumentPath, MemoryPlanning] = {
        ("executorch", "memory_planning"): executorch.get("memory_planning", {}),
        **{("methods", name, "memory_planning"): method.get("memory_planning", {}) for name, method in methods.items()},
    }
    for path, memory in places.items():
        yield from _check_power_of_two(memory.get("alignment"), (*path, "alignment"))
        unplanned = memory.get("alloc_mutable_buffers") is False
        if sharing and unplanned:
            hint = "remove `alloc_mutable_buffers: false`, or remove `share_mutable_buffers`"
            message = "`share_mutable_buffers` needs buffers with planned memory"
            yield Problem(message, (*path, "alloc_mutable_buffers"), hint, at_key=True)
        elif sharing and memory and path[0] == "methods":
            hint = "move it to `executorch.memory_planning`, which holds for all methods"
            yield Problem("`share_mutable_buffers` needs one memory plan for all methods", path, hint, at_key=True)
        elif unplanned and not executorch.get("emit_mutable_buffer_names") and "recipe" not in data:
            hint = "write `executorch: {emit_mutable_buffer_names: true}` too"
            message = "the program finds buffers without planned memory by their names, but it would have no names"
            yield Problem(message, (*path, "alloc_mutable_buffers"), hint, at_key=True)


def _check_power_of_two(value: object, path: DocumentPath) -> Iterator[Problem]:
    if isinstance(value, int) and value & (value - 1):
        nearest = 1 << value.bit_length()
        yield Problem(f"{value} is not a power of two", path, f"write {nearest // 2} or {nearest}")
