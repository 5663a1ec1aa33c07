"""Lowers all methods in one call of `to_edge_transform_and_lower`, so that each backend sees all of them at once."""

from __future__ import annotations

import copy
import operator
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from executorch import exir
from executorch.exir import EdgeProgramManager, to_edge_transform_and_lower
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.graph_module import get_control_flow_submodules
from torch.export import ExportedProgram

from etbuild import backends, plugins, workarounds
from etbuild.backends import EdgeRequirements
from etbuild.errors import BuildError, DocumentPath, Problem
from etbuild.exception_text import first_cause, hints, shortened, summary
from etbuild.export.read_archive import EXPERTS
from etbuild.foreign_errors import from_exception, wrap_errors
from etbuild.inputs import source_lines
from etbuild.inputs.user_code import failed
from etbuild.lower import (
    blob_weights,
    dtypes,
    dynamic_sizes,
    failed_nodes,
    method_graph,
    named_data,
    partitioners,
    passes,
    preprocess_results,
)
from etbuild.lower.executorch_config import edge_compile_config, merged
from etbuild.lower.partition_counts import operator_name
from etbuild.plan.step_plans import MethodPlan
from etbuild.results import OperatorCounts

if TYPE_CHECKING:
    from executorch.export import LoweringRecipe


def lower_programs(
    lower_plan: MethodPlan,
    programs: dict[str, ExportedProgram],
    shards: dict[str, str],
    etrecord: bool = False,
) -> EdgeProgramManager:
    """Lowers methods together.

    Args:
        lower_plan: The lower plan.
        programs: The exported program of each method, by name. They are changed in place.
        shards: The named-data shard of each parameter that has a tag, by name.
        etrecord: Whether ExecuTorch keeps the graphs before partitioning for an ETRecord. It does not change the
            program.

    Raises:
        InputError: The plan names an operator or a callable that does not exist.
        BuildError: A backend or the edge dialect refuses a method. The error names the method and the operator if
            ExecuTorch names them.
    """
    _check_while_loops(programs)
    dtypes.check_quantized(lower_plan, programs)
    dynamic, conditions = dynamic_sizes.of_inputs(programs), dynamic_sizes.Conditions()
    with conditions.watched():
        edge = _lowered(lower_plan, programs, shards, etrecord)
    dynamic_sizes.check(dynamic, edge, conditions, programs)
    _check_written_parameters(edge)
    _check_delegated(lower_plan, edge)
    _check_zero_points(edge, lower_plan.used_backends)
    return edge


def _lowered(
    lower_plan: MethodPlan, programs: dict[str, ExportedProgram], shards: dict[str, str], etrecord: bool
) -> EdgeProgramManager:
    methods, workaround = sorted(programs), workarounds.of_lowering()  # the order of methods changes the bytes
    for name in methods:
        named_data.tag_placeholders(programs[name], shards)
        plugins.load("edges", "facts").note(programs[name])
        of_method = [backends.get(backend) for backend in _backends(lower_plan, name)]
        workaround.change_exported(
            programs[name],
            exact_gelu={dtype for backend in of_method for dtype in backend.exact_gelu_only},
            weight_only_linear=any(backend.takes_weight_only_linear for backend in of_method),
        )
    recipe = _recipe(lower_plan)
    lists = partitioners.make(lower_plan, programs)
    edge_passes = passes.edge(lower_plan, programs, recipe)
    named = lower_plan.used_backends
    with (
        wrap_errors(lambda error: _lowering_error(error, programs)),
        workaround.around(),
        named_data.tag_folded_constants(shards),
        blob_weights.noted(),
        named_data.alignments_kept(),
        named_data.clashes_told_later(),
        preprocess_results.checked(),
        method_graph.reasons_kept(),
        backends.lowering_context(named, lists.lists),
    ):
        wanted = _edge_requirements(lower_plan, programs)
        before = {name: [*edge_passes.get(name, []), *wanted[name].passes] for name in methods}
        edge = to_edge_transform_and_lower(
            {name: programs[name] for name in methods},
            # For ExecuTorch, an empty mapping or list does not mean "no passes".
            transform_passes={name: passes for name, passes in before.items() if passes} or None,
            partitioner={name: lists.lists[name] for name in methods},
            compile_config=edge_compile_config(lower_plan, recipe, [edge.config for edge in wanted.values()]),
            generate_etrecord=etrecord,
        )
        lists.claims.check(edge)
    workaround.change_lowered(edge)
    edge = passes.edge_manager(lower_plan, edge, recipe)
    workaround.finish(edge)
    return edge


def to_edge(lower_plan: MethodPlan, programs: dict[str, ExportedProgram]) -> EdgeProgramManager:
    """Converts methods to the edge dialect and runs the edge passes, so that a user can look at the result.

    Lowering does not start from this result: backends may need operators that are decomposed here.

    Args:
        lower_plan: The lower plan.
        programs: The exported program of each method, by name. They are not changed.

    Raises:
        InputError: The plan names an operator or a callable that does not exist.
        BuildError: The edge dialect or a pass refuses a method.
    """
    methods, recipe = sorted(programs), _recipe(lower_plan)
    # Without ExecuTorch's check: the graphs still contain operators that only backends take.
    config = edge_compile_config(lower_plan, recipe, [{"_check_ir_validity": False}])
    with wrap_errors(lambda error: _lowering_error(error, programs)):
        copies = {name: copy.deepcopy(programs[name]) for name in methods}
        edge_passes = passes.edge(lower_plan, copies, recipe)
        edge = exir.to_edge(copies, compile_config=config)
        return edge.transform(edge_passes) if any(edge_passes.values()) else edge


def _recipe(lower_plan: MethodPlan) -> LoweringRecipe | None:
    if lower_plan.recipe is None:
        return None
    from etbuild.export.recipe import load_recipe

    return load_recipe(lower_plan.recipe).lowering_recipe


def _backends(lower_plan: MethodPlan, name: str) -> list[str]:
    """The backends of a method, including those of its recipe."""
    method, recipe = lower_plan.methods[name], lower_plan.recipe
    of_recipe = recipe.backends if recipe is not None and method.from_recipe else ()
    return [*of_recipe, *(entry.backend for entry in method.partitioners)]


_INSTEAD_OF_LOOPS = "use `scan` or `map` over a known number of steps, or let the application call the method in a loop"


def _check_while_loops(programs: dict[str, ExportedProgram]) -> None:
    """Fails if a method has a `while_loop`.

    ExecuTorch 1.5 does not delegate operators inside a `while_loop` and cannot emit one. This check reports it before
    lowering starts.
    """
    problems = [
        Problem(
            "the method has a `while_loop`, which ExecuTorch cannot put into a program",
            ("methods", name, "entry"),
            hints(source_lines.shown(failed_nodes.lines_of_nodes(loops, {name: program})), _INSTEAD_OF_LOOPS),
        )
        for name, program in sorted(programs.items())
        for module in program.graph_module.modules()
        if isinstance(module, torch.fx.GraphModule)
        for loops in [[node for node in module.graph.nodes if node.target is torch.ops.higher_order.while_loop]]
        if loops
    ]
    BuildError.raise_if(problems)


def _check_written_parameters(edge: EdgeProgramManager) -> None:
    """Fails if a method writes to a parameter: ExecuTorch would return the value as an extra output and not keep it."""
    problems = [
        Problem(
            f"the method writes to the parameter `{name}`",
            ("methods", method, "entry"),
            "register it as a buffer: a method can write only to buffers",
        )
        for method in sorted(edge.methods)
        for name in sorted(edge.exported_program(method).graph_signature.parameters_to_mutate.values())
    ]
    BuildError.raise_if(problems)


def _check_delegated(lower_plan: MethodPlan, edge: EdgeProgramManager) -> None:
    """Makes each backend check whether its runtime accepts the operators that it took."""
    counts = {name: operator_counts(edge.exported_program(name)) for name in edge.methods}
    problems = [
        problem
        for name, method in lower_plan.methods.items()
        for index, entry in enumerate(method.partitioners)
        for problem in backends.check_delegated(
            entry.backend, entry.options, counts[name]["delegated"], ("methods", name, "partitioners", index, "options")
        )
    ]
    BuildError.raise_if(problems)


def _check_zero_points(edge: EdgeProgramManager, named: Collection[str]) -> None:
    """Fails if a delegate has weights with zero points other than zero and its backend ignores zero points."""
    problems = [
        Problem(
            f"`{backend.name}` would ignore the zero points of the quantized weight `{name}` and compute wrong results",
            ("methods", method, "quantize"),
            "quantize weights symmetrically, as `8da4w` and `8da8w` do",
        )
        for method in sorted(edge.methods)
        for delegate in named_data.delegates(edge.exported_program(method).graph_module)
        for backend in [backends.of_delegate(delegate.backend_id, named)]
        if backend is not None and backend.ignores_zero_points
        for name in _asymmetric_weights(delegate.original_module)
    ]
    BuildError.raise_if(problems)


def _asymmetric_weights(program: ExportedProgram) -> list[str]:
    """Returns the names of the quantized weights that have a row or group with a zero point other than zero."""
    names = dict(named_data.weights(program))
    asymmetric: list[str] = []
    for node in program.graph.nodes:
        if not any(name in str(node.target) for name in ("dequantize_affine", "dequantize_per_channel")):
            continue
        weight, _, points, *_ = [*(names.get(source) for source in node.all_input_nodes), None, None, None]
        if weight and points and bool(named_data.tensor(program, points).count_nonzero()):
            asymmetric.append(weight)
    return asymmetric


def _edge_requirements(lower_plan: MethodPlan, programs: dict[str, ExportedProgram]) -> dict[str, EdgeRequirements]:
    """The passes and options that each method's backends need before partitioning, in the order of its backends."""
    wanted = {}
    for name, method in sorted(lower_plan.methods.items()):
        passes: list[Any] = []
        config: dict[str, object] = {}
        for entry in method.partitioners:
            one = backends.get(entry.backend).edge_requirements(entry.options, programs[name])
            passes += one.passes
            config = merged(config, one.config)
        wanted[name] = EdgeRequirements(passes, config)
    return wanted


def operator_counts(program: ExportedProgram) -> OperatorCounts:
    """Counts the operators of a lowered method."""
    graph_module = program.graph_module
    delegated: dict[str, Counter[str]] = {}
    for delegate in named_data.delegates(graph_module):
        counts = delegated.setdefault(delegate.backend_id, Counter())
        counts.update(_operators(delegate.original_module.graph_module))
    return {
        "delegated": {backend: dict(sorted(counts.items())) for backend, counts in sorted(delegated.items())},
        "fallback": dict(sorted(Counter(_operators(graph_module)).items())),
    }


def _operators(graph_module: torch.fx.GraphModule) -> Iterator[str]:
    """The operators of a graph, also those inside control flow, without `getitem` and calls of delegates."""
    for node in graph_module.graph.nodes:
        if node.op == "call_function" and node.target not in (operator.getitem, executorch_call_delegate):
            yield operator_name(node)
    for _, submodule, _ in get_control_flow_submodules(graph_module):
        yield from _operators(submodule)


# Words in ExecuTorch's messages, and the hint for each.
_HINTS = (
    ("should not modify the graph module", "the partitioner changed the graph: it may only tag nodes"),
    (
        "was not found",
        "the partitioner names a backend that no imported module defines: import it in the partitioner's module",
    ),
    (
        "was not decomposed or delegated",
        "the backend asked to keep this operator but did not take it, as XNNPACK inside torch.cond and map: "
        "remove the backend from this method",
    ),
    (
        "is mutated in the forward method",
        "a method writes to a tensor that is not a buffer: register it as a buffer. A module with buffers must be an "
        "attribute, or in a `torch.nn.ModuleList` or `torch.nn.ModuleDict`",
    ),
    (
        "invalid syntax (<eval_with_key>",
        "a parameter, buffer or module is called like a keyword of Python, such as `for` or `class`: rename it",
    ),
    (
        "found dependency cycles",
        "the backend's operators depend on each other through operators that it does not take: for dynamic int8 on "
        "XNNPACK, write `partitioners: [{backend: xnnpack, options: {config_precisions: [dynamic_quant]}}, xnnpack]`",
    ),
    (
        "must be provided to extract per channel params",
        "a quantized layer has a weight that the method computes: exclude the layer with `leave_out` of the quantizer, "
        "or write `quantize: null` for this method",
    ),
    ("mismatched dtypes", "convert the tensors in the model, for example with `x.to(y.dtype)` or `x.float()`"),
    *(
        (f"aten.{name}_like.", f"write `torch.{name}(x.shape)` in place of `torch.{name}_like(x)`")
        for name in ("rand", "randn")
    ),
    ("aten.histc", EXPERTS),
    (
        "only supports 1 dynamic dimension",
        "XNNPACK changes no shape with several dynamic sizes: leave out all but one in `dynamic_shapes`, or lower this "
        "method without `xnnpack`",
    ),
    (
        "Core ATen opset",
        "PyTorch cannot decompose this operator into core ATen operators: use a backend that takes it, or avoid it in "
        "the model. If the application links a kernel, write `edge_compile: {core_aten_ops_exception_list: [...]}`",
    ),
)


def _lowering_error(error: BaseException, programs: Mapping[str, ExportedProgram]) -> BuildError:
    methods = sorted(programs)
    cause = first_cause(error)
    text = f"{type(error).__name__}: {error} {cause}"
    named = [name for name in methods if f"'{name}'" in text or f"`{name}`" in text or len(methods) == 1]
    path: DocumentPath = ("methods", named[0]) if len(named) == 1 else ("methods",)
    lines = failed_nodes.lines(error, programs)
    hint = _dtype_hint(error) or _hint_of_values(error, lines)
    hint = hint or next((hint for word, hint in _HINTS if word in text), None)
    why = _why(error)
    if cause is not error:
        why += f" Cause: {summary(cause, 300)}"
    action = failed(f"lowering {', '.join(named or methods)}", error)
    at = source_lines.shown(lines)
    unsupported = next((dtypes for dtypes, words in _UNSUPPORTED.items() if hint == words), None)
    origin = unsupported and failed_nodes.sources(programs, unsupported)
    return from_exception(error, BuildError, path, action, hints(at, origin, hint), said=why)


def _why(error: BaseException) -> str:
    """ExecuTorch's message without its advice to its own developers and without the schemas of operators."""
    function = failed_nodes.refused_function(error)
    if function is not None:
        return f"ExecuTorch cannot compute `{function}` of sizes: compute the size in another way, or make it fixed"
    refused = failed_nodes.refused_dtypes(error)
    if not refused:
        at = re.search(r"While executing %.*\[target=torch\.ops\.([\w.]+)\]", str(error))
        text = summary(error).partition(' (https://pytorch.org/docs/stable/torch.compiler_ir.html#core-aten-ir)."')[0]
        text = text.removesuffix(" This may occur when")  # XNNPACK's own part ends there
        operator = at[1] if at else failed_nodes.operator_in_work(error)
        return f"{text} (at `{operator}`)" if operator is not None and operator not in text else text
    shown = [f"`{name}` takes no tensors of {', '.join(calls[0])}" for name, calls in refused.items()]
    return shortened(f"{type(error).__name__}: {'; '.join(shown)}")


def _hint_of_values(error: BaseException, lines: Collection[source_lines.Line]) -> str | None:
    """What to do if an index or a size is a number in a tensor."""
    if "GuardOnDataDependent" not in type(error).__name__:
        return None
    if any(line.file.startswith("transformers/") for line in lines):
        return "the line is one of transformers: leave out `cache` of `huggingface`, or write a factory"
    if failed_nodes.operator_in_work(error) == "aten.select.int":
        return (
            "the index is a number that a tensor holds: index with the tensor, `x[i.reshape(1)][0]` in place of `x[i]`"
        )
    return (
        "a size or an index is a number that a tensor holds: write its limits in the model, for example "
        "`n = t.item(); torch._check(n >= 0); torch._check(n <= LIMIT)`"
    )


_UNSUPPORTED = {
    "complex": "ExecuTorch has few kernels for complex numbers: compute with real and imaginary parts, or cos and sin",
    "float8": "ExecuTorch has no kernels for 8-bit floats: convert these tensors in the factory",
}
_FLOATS = {"float64", "float32", "float16", "bfloat16"}


def _dtype_hint(error: BaseException) -> str | None:
    """What to do about dtypes that ExecuTorch refuses; None if only the general hint applies."""
    of_operators = [set(dtypes) for calls in failed_nodes.refused_dtypes(error).values() for dtypes in calls]
    dtypes = set().union(*of_operators)
    if any(dtype.startswith("complex") for dtype in dtypes) or "'complex' object has no attribute" in str(error):
        return _UNSUPPORTED["complex"]
    if any(dtype.startswith("float8") for dtype in dtypes):
        return _UNSUPPORTED["float8"]
    if any(len(each & _FLOATS) > 1 for each in of_operators):
        return (
            "the operands have different dtypes: give `example_inputs` the dtype of the weights, or convert the module"
        )
    return None
