"""Lower: all methods in one `to_edge_transform_and_lower` call, so that each backend sees all of them at once."""

from __future__ import annotations

import copy
import operator
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from executorch import exir
from executorch.exir import EdgeProgramManager, to_edge_transform_and_lower
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.graph_module import get_control_flow_submodules
from torch.export import ExportedProgram

from etbuild import backends
from etbuild.backends import Edge
from etbuild.errors import BuildError, DocumentPath, InputError, Problem
from etbuild.exception_text import hints, shortened, summary, whole_error
from etbuild.export.recipe import load_recipe
from etbuild.inputs.user_code import SourceFinder, source_line
from etbuild.lower import dequantize, named_data, partitioners, passes, preprocess_results
from etbuild.lower.executorch_config import edge_compile_config, merged
from etbuild.lower.partition_counts import operator_name
from etbuild.plan.plan import MethodPlan

if TYPE_CHECKING:
    from executorch.export import LoweringRecipe


def lower(
    lower_plan: MethodPlan, programs: dict[str, ExportedProgram], shards: dict[str, str], finder: SourceFinder
) -> EdgeProgramManager:
    """Lowers methods together.

    Their named data has then to be arranged: `named_data.arrange`.

    Args:
        lower_plan: The lower plan.
        programs: The exported program of each method.
        shards: The named-data shard of each parameter that has a tag, by name.
        finder: The declared sources, for partitioners that come from there.

    Raises:
        InputError: The plan names an operator or a callable that there is not.
        BuildError: A backend or the edge dialect refuses a method; names the method and operator where ExecuTorch does.
    """
    methods = sorted(programs)  # the order of methods reaches the bytes
    _check_while_loops(programs)
    for name in methods:
        named_data.tag_placeholders(programs[name], shards)
        if not any(backends.get(backend).weight_only for backend in _backends(lower_plan, name)):
            dequantize.spell_out(programs[name])
    recipe = _recipe(lower_plan, finder)
    made = partitioners.make(lower_plan, programs, finder)
    edge_passes = passes.edge(lower_plan, programs, finder, recipe)
    around = backends.around(lower_plan.backends, made.lists)
    with (
        _blame_lowering(methods, finder),
        named_data.tag_folded_constants(shards),
        named_data.alignments_kept(),
        named_data.clashes_told_later(),
        preprocess_results.checked(),
        around,
    ):
        wanted = _edges(lower_plan, programs)
        before = {name: [*edge_passes.get(name, []), *wanted[name].passes] for name in methods}
        edge = to_edge_transform_and_lower(
            {name: programs[name] for name in methods},
            # ExecuTorch takes an empty mapping for no names, and an empty list for a pass over nothing.
            transform_passes={name: passes for name, passes in before.items() if passes} or None,
            partitioner={name: made.lists[name] for name in methods},
            constant_methods=dict(sorted(lower_plan.constant_methods.items())) or None,
            compile_config=edge_compile_config(lower_plan, recipe, [edge.config for edge in wanted.values()]),
        )
        made.claims.check(edge)
    dequantize.fuse_embeddings(edge)
    edge = passes.edge_manager(lower_plan, edge, finder, recipe)
    _check_written_parameters(edge)
    _check_convolutions(lower_plan, edge)
    _check_zero_points(edge)
    return edge


def to_edge(lower_plan: MethodPlan, programs: dict[str, ExportedProgram], finder: SourceFinder) -> EdgeProgramManager:
    """Methods in the edge dialect, after the passes over it, for people to look at: lowering does not start from it,
    since backends may ask for other operators to be kept.

    Args:
        lower_plan: The lower plan.
        programs: The exported program of each method. They stay as they are.
        finder: The declared sources, for passes that come from there.

    Raises:
        InputError: The plan names an operator or a callable that there is not.
        BuildError: The edge dialect or a pass refuses a method.
    """
    methods, recipe = sorted(programs), _recipe(lower_plan, finder)
    config = edge_compile_config(lower_plan, recipe, [{"_check_ir_validity": False}])  # what a backend takes is there
    with _blame_lowering(methods, finder):
        copies = {name: copy.deepcopy(programs[name]) for name in methods}
        edge_passes = passes.edge(lower_plan, copies, finder, recipe)
        edge = exir.to_edge(copies, compile_config=config)
        return edge.transform(edge_passes) if any(edge_passes.values()) else edge


def _recipe(lower_plan: MethodPlan, finder: SourceFinder) -> LoweringRecipe | None:
    return load_recipe(lower_plan.recipe, finder).lowering_recipe if lower_plan.recipe is not None else None


def _backends(lower_plan: MethodPlan, name: str) -> list[str]:
    """The backends of a method, those of its recipe too."""
    method, recipe = lower_plan.methods[name], lower_plan.recipe
    of_recipe = recipe.backends if recipe is not None and method.from_recipe else ()
    return [*of_recipe, *(entry.backend for entry in method.partitioners)]


def _check_while_loops(programs: dict[str, ExportedProgram]) -> None:
    """ExecuTorch 1.5 gives no backend what is in a `while_loop`, and cannot emit one: known before all is lowered."""
    problems = [
        Problem(
            "the method has a `while_loop`, which ExecuTorch cannot put into a program",
            ("methods", name, "entry"),
            "use `scan` or `map` over a known number of steps, or let the application call the method in a loop",
        )
        for name, program in sorted(programs.items())
        for module in program.graph_module.modules()
        if isinstance(module, torch.fx.GraphModule)
        and any(node.target is torch.ops.higher_order.while_loop for node in module.graph.nodes)
    ]
    if problems:
        raise BuildError(problems)


def _check_written_parameters(edge: EdgeProgramManager) -> None:
    """ExecuTorch would return what a method writes to a parameter as one more output, and forget it."""
    problems = [
        Problem(
            f"the method writes to the parameter `{name}`",
            ("methods", method, "entry"),
            "register what a method writes to as a buffer",
        )
        for method in sorted(edge.methods)
        for name in sorted(edge.exported_program(method).graph_signature.parameters_to_mutate.values())
    ]
    if problems:
        raise BuildError(problems)


def _check_convolutions(lower_plan: MethodPlan, edge: EdgeProgramManager) -> None:
    """XNNPACK makes of a convolution under this option what its own runtime refuses to load (ExecuTorch 1.5)."""
    option = "force_non_static_weights_for_f32_linear"
    for name, method in lower_plan.methods.items():
        for index, entry in enumerate(method.partitioners):
            if not entry.options.get(option):
                continue
            delegated = _operator_counts(edge.exported_program(name).graph_module)["delegated"]
            if "aten::convolution" in delegated.get("XnnpackBackend", {}):
                path = ("methods", name, "partitioners", index, "options", option)
                message = f"the program could not be loaded: `{option}` and a convolution in one method"
                raise BuildError([Problem(message, path, "leave the option out for this method")])


def _check_zero_points(edge: EdgeProgramManager) -> None:
    """XNNPACK reads the scales of a weight's rows or groups, and takes their zero points for zero (ExecuTorch 1.5)."""
    problems = [
        Problem(
            f"XNNPACK would leave out the zero points of the quantized weight `{name}`, and compute something else",
            ("methods", method, "quantize"),
            "quantize weights symmetrically, as `8da4w` and `8da8w` do",
        )
        for method in sorted(edge.methods)
        for delegate in named_data.delegates(edge.exported_program(method).graph_module)
        if delegate.backend_id == "XnnpackBackend"
        for name in dequantize.asymmetric_weights(delegate.original_module)
    ]
    if problems:
        raise BuildError(problems)


def _edges(lower_plan: MethodPlan, programs: dict[str, ExportedProgram]) -> dict[str, Edge]:
    """What the backends of each method want of it before it is partitioned, in the order of its backends."""
    wanted = {}
    for name, method in sorted(lower_plan.methods.items()):
        passes: list[Any] = []
        config: dict[str, Any] = {}
        for entry in method.partitioners:
            edge = backends.get(entry.backend).edge
            if edge is not None:
                one = edge(entry.options, programs[name])
                passes += one.passes
                config = merged(config, one.config)
        wanted[name] = Edge(passes, config)
    return wanted


def operator_counts(edge: EdgeProgramManager) -> dict[str, dict[str, Any]]:
    """By method: how often each operator is `delegated`, by backend, and how often it falls back to portable ones."""
    return {name: _operator_counts(edge.exported_program(name).graph_module) for name in sorted(edge.methods)}


def _operator_counts(graph_module: torch.fx.GraphModule) -> dict[str, Any]:
    delegated: dict[str, Counter[str]] = {}
    for delegate in named_data.delegates(graph_module):
        counts = delegated.setdefault(delegate.backend_id, Counter())
        counts.update(_operators(delegate.original_module.graph_module))
    return {
        "delegated": {backend: dict(sorted(counts.items())) for backend, counts in sorted(delegated.items())},
        "fallback": dict(sorted(Counter(_operators(graph_module)).items())),
    }


def _operators(graph_module: torch.fx.GraphModule) -> Iterator[str]:
    """The operators of a graph, those inside control flow too; picking from tuples and calls of delegates are none."""
    for node in graph_module.graph.nodes:
        if node.op == "call_function" and node.target not in (operator.getitem, executorch_call_delegate):
            yield operator_name(node)
    for _, submodule, _ in get_control_flow_submodules(graph_module):
        yield from _operators(submodule)


# By a word in ExecuTorch's message: what it means.
_HINTS = (
    ("should not modify the graph module", "the partitioner changed the graph: it may only tag nodes"),
    (
        "was not found",
        "the partitioner names a backend that no imported module defines: import it in the partitioner's module",
    ),
    (
        "was not decomposed or delegated",
        "the backend asked to keep this operator and did not take it, as XNNPACK does not inside torch.cond and map: "
        "leave the backend out for this method",
    ),
    ("is mutated in the forward method", "a method writes to a tensor that is no buffer: register it as one"),
    (
        "GuardOnDataDependent",
        "a value of a tensor decides over a shape or an index: use torch._check, or tensor operations; for a model of "
        "`huggingface` leave out `cache`, or write a factory",
    ),
    (
        "mismatched dtypes",
        "convert the tensors in the model, as by `x.to(y.dtype)` or `x.float()`",
    ),
    (
        "Core ATen opset",
        "PyTorch cannot take this operator apart into those of core ATen: does a backend have to take it, or the model "
        "to avoid it? `edge_compile: {core_aten_ops_exception_list: [...]}` allows it where a kernel is linked",
    ),
)


@contextmanager
def _blame_lowering(methods: list[str], finder: SourceFinder) -> Iterator[None]:
    try:
        yield
    except (BuildError, InputError):
        raise
    except (Exception, SystemExit) as error:  # ExecuTorch and its backends raise what they like
        raise _lowering_error(error, methods, finder) from error


def _lowering_error(error: BaseException, methods: list[str], finder: SourceFinder) -> BuildError:
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    text = f"{type(error).__name__}: {error} {cause}"
    named = [name for name in methods if f"'{name}'" in text or f"`{name}`" in text or len(methods) == 1]
    path: DocumentPath = ("methods", named[0]) if len(named) == 1 else ("methods",)
    hint = next((hint for word, hint in _HINTS if word in text), None)
    place = source_line(error, finder)
    where = f" at {place}" if place else ""
    why = _why(error)
    if cause is not error:
        why += f" Cause: {summary(cause, 300)}"
    message = f"lowering {', '.join(named or methods)} failed{where}: {why}"
    return BuildError([Problem(message, path, hints(hint, whole_error(error, message)))])


def _why(error: BaseException) -> str:
    """ExecuTorch's message without what it advises its own developers to try, and without the operators' schemas."""
    refused = re.findall(r"Operator: <EdgeOpOverload: ([\w.]+)>.* with args: \{(.*)\}", str(error))
    if not refused:
        return summary(error).partition(' (https://pytorch.org/docs/stable/torch.compiler_ir.html#core-aten-ir)."')[0]
    taken = {name: ", ".join(re.findall(r"'(?!__ret)\w+': torch\.(\w+)", dtypes)) for name, dtypes in refused}
    shown = [f"`{name}` takes no tensors of {dtypes}" for name, dtypes in taken.items()]
    return shortened(f"{type(error).__name__}: {'; '.join(shown)}")
