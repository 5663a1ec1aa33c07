"""Checks the manifest's options for ExecuTorch, which have ExecuTorch's names, and normalizes them for the plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from etbuild.errors import DocumentPath, Problem, unknown
from etbuild.manifest.sections import Manifest, Method

HOOKS = ("aten", "edge", "edge_manager", "executorch")
"""The points at which passes run, in order. The first one is in the export."""

EDGE_COMPILE: dict[str, bool | list[str]] = {
    "check_ir_validity": True,
    "skip_dim_order": False,
    "core_aten_ops_exception_list": [],
    "preserve_ops": [],
}
_DEVICE = {"skip_h2d_for_method_inputs": False, "skip_d2h_for_method_outputs": False}
_TO_OUT_VAR = {"ignore_to_out_var_failure": False}
_MEMORY: dict[str, str | bool | int] = {
    "memory_planning_algo": "greedy",
    "allow_lifetime_and_storage_overlap": False,
    "alloc_graph_input": True,
    "alloc_graph_output": True,
    "alloc_mutable_buffers": True,
    "alignment": 16,
}
_EXECUTORCH: dict[str, object] = {
    "extract_delegate_segments": True,
    "segment_alignment": 128,
    "constant_tensor_alignment": None,
    "delegate_alignment": None,
    "sym_shape_eval_pass": "constraint_based",
    "remove_view_copy": True,
    "external_mutable_weights": False,
    "emit_mutable_buffer_names": False,
    "do_quant_fusion_and_const_prop": False,
    "run_reinplace_pass": False,
    "reinplace_extra_ops": [],
    "enable_non_cpu_memory_planning": True,
}
_WITHOUT_EFFECT = {
    "emit_stacktrace": (True, "exports have no stack traces, since stack traces hold paths of the machine"),
    "dynamic_memory_planning_mode": ("symbolic", "ExecuTorch 1.5 always plans for upper bounds"),
}


def normalized(manifest: Manifest) -> dict[str, object]:
    """The plan's `edge_compile`, `executorch`, `passes` and `share_mutable_buffers`, with all defaults."""
    given = manifest.get("executorch", {})
    executorch = {**_EXECUTORCH, **{key: value for key, value in given.items() if key in _EXECUTORCH}}
    passes = manifest.get("passes", {})
    return {
        "edge_compile": _sorted_operators({**EDGE_COMPILE, **manifest.get("edge_compile", {})}),
        "executorch": {
            **_sorted_operators(executorch),
            "to_out_var_pass": {**_TO_OUT_VAR, **given.get("to_out_var_pass", {})},
            "propagate_device_config": {**_DEVICE, **given.get("propagate_device_config", {})},
        },
        "passes": {hook: passes.get(hook, []) for hook in HOOKS},
        "share_mutable_buffers": manifest.get("share_mutable_buffers", False),
    }


def normalized_memory(manifest: Manifest, method: Method) -> dict[str, str | bool | int]:
    """A method's `memory_planning` in the plan, with all defaults."""
    common = manifest.get("executorch", {}).get("memory_planning", {})
    return {**_MEMORY, **common, **method.get("memory_planning", {})}


def _sorted_operators(options: Mapping[str, object]) -> dict[str, object]:
    """Sorts lists of operators, because ExecuTorch ignores their order."""
    return {key: sorted(set(value)) if isinstance(value, list) else value for key, value in options.items()}


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
    places: dict[DocumentPath, dict[str, str | bool | int]] = {
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
