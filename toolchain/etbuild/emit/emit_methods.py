"""Emits lowered methods: ExecuTorch plans their memory and writes down their instructions, constants and delegates.

Methods that were lowered one by one are also emitted one by one. `merge` then puts them into one program.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from executorch.exir import EdgeProgramManager, ExecutorchProgramManager
from executorch.exir._serialize._cord import Cord
from executorch.exir.emit import EmitterOutput
from executorch.exir.program import _program
from executorch.exir.schema import Tensor, TensorDataLocation
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind, TensorArgument

from etbuild import backends, plugins, workarounds
from etbuild.emit import mutable_buffers
from etbuild.emit.emitted import Emitted, MethodFacts, TaggedWeight
from etbuild.errors import BuildError, DocumentPath, Problem
from etbuild.exception_text import hints
from etbuild.foreign_errors import from_exception, wrap_errors
from etbuild.inputs import source_lines
from etbuild.inputs.user_code import failed
from etbuild.lower import dtypes, dynamic_sizes, failed_nodes, method_graph, named_data, passes
from etbuild.lower.blobs import Blob
from etbuild.lower.executorch_config import backend_config
from etbuild.lower.finite_weights import NonFinite
from etbuild.lower.lower_methods import operator_counts
from etbuild.lower.partition_counts import operator_name
from etbuild.lower.weight_storage import Digests, weight_readers
from etbuild.patching import replaced
from etbuild.plan.step_plans import MethodPlan


@dataclass(frozen=True)
class Lowered:
    """Methods that were lowered together.

    Attributes:
        edge: The methods.
        shards: The shard of each parameter that has a tag, by name.
        non_finite: The weights with elements that are NaN or infinite.
        written: The buffers that methods of the program write to; None if it has no other methods.
        look: Is called with ExecuTorch's output. May be None.
    """

    edge: EdgeProgramManager
    shards: dict[str, str]
    non_finite: NonFinite
    written: frozenset[str] | None
    look: Callable[[ExecutorchProgramManager], None] | None = None


def emit_methods(lower_plan: MethodPlan, lowered: Lowered) -> Emitted:
    """Emits methods.

    Args:
        lower_plan: The lower plan.
        lowered: The methods. They are changed in place.

    Raises:
        InputError: The plan names an operator or a callable that does not exist.
        BuildError: ExecuTorch cannot emit a method.
    """
    edge, shards = lowered.edge, lowered.shards
    _check_outputs(edge)
    shared, sharing = frozenset[str](), lower_plan.share_mutable_buffers
    if sharing:
        shared = mutable_buffers.written_by(edge) | (lowered.written or frozenset())
    mutable_buffers.untag(edge, shared)
    mutable_buffers.keep_initial_values(edge, shared)
    digests = Digests()
    facts = {name: _facts(edge, name, lower_plan, digests) for name in sorted(edge.methods)}
    buffers = {name: mutable_buffers.describe(edge, name, shared, digests) for name in facts}
    compares_content = named_data.claims_compare_content(edge, shards, lower_plan.used_backends)
    claims, requests = named_data.claims(edge, shards, lower_plan.used_backends), list(named_data.requests(edge))
    names = {name: method_graph.names_by_handle(edge.exported_program(name)) for name in facts}
    manager, output = _to_executorch(lower_plan, lowered)
    if lowered.look is not None:
        lowered.look(manager)
    for name, of_method in facts.items():
        planned = mutable_buffers.planned(buffers[name], manager.exported_program(name)) if sharing else None
        facts[name] = replace(of_method, buffers=planned, instructions=_origins(output, name, names[name]))
    program = output.program
    _check_named_buffers(edge, output)
    return Emitted(
        plans=program.execution_plan,
        constants=[Blob(buffer.storage) for buffer in program.constant_buffer],
        mutable=[Blob(buffer.storage) for buffer in output.mutable_data or program.constant_buffer[:1]],
        delegates=[Blob(delegate.data) for delegate in program.backend_delegate_data],
        external=[Blob(content) for content in output.external_constant_buffer],
        external_names=output.external_constant_map or {},
        requests=requests,
        claims=claims,
        compares_content=compares_content,
        non_finite=lowered.non_finite,
        facts=facts,
    )


def _check_named_buffers(edge: EdgeProgramManager, output: EmitterOutput) -> None:
    """Fails if a buffer with a name and initial values has the content of a constant.

    ExecuTorch 1.5 then writes the constant's number in place of the number of an initial value.
    """
    initial = output.mutable_data or []
    for plan in output.program.execution_plan:
        for value in plan.values:
            tensor = value.val
            info = tensor.extra_tensor_info if isinstance(tensor, Tensor) else None
            if info is None or info.location == TensorDataLocation.EXTERNAL or tensor.allocation_info is None:
                continue
            name = info.fully_qualified_name
            content = named_data.tensor_content(named_data.tensor(edge.exported_program(plan.name), name))
            number = tensor.data_buffer_idx
            if number > 0 and (number >= len(initial) or initial[number].storage != content):
                message = f"the buffer `{name}` has the initial values of a constant, and ExecuTorch confuses them"
                hint = "remove `emit_mutable_buffer_names`, or give the buffer other initial values"
                raise BuildError.at(("executorch", "emit_mutable_buffer_names"), message, hint)


def _facts(edge: EdgeProgramManager, method: str, lower_plan: MethodPlan, digests: Digests) -> MethodFacts:
    program = edge.exported_program(method)
    graph, readers = method_graph.describe(program), weight_readers(program, digests, lower_plan.used_backends)
    notes = dtypes.notes_on_left_out(lower_plan, edge, method)
    counts = operator_counts(program)
    for delegate in sorted(counts["delegated"].keys() & plugins.group("delegate_estimate").keys()):
        graph.setdefault("estimates", {})[delegate] = plugins.load("delegate_estimate", delegate)(program)
    return MethodFacts(counts, graph, readers, _tagged(program, digests), _trained(program), None, [], notes)


def _origins(output: EmitterOutput, method: str, names: Mapping[int, list[str]]) -> list[list[str]]:
    """For each instruction of a method, the names of its nodes in the exported graph. Leaves out instructions in
    branches and loops, for which ExecuTorch keeps no handles."""
    (plan,) = (plan for plan in output.program.execution_plan if plan.name == method)
    of_method: Any = output.debug_handle_map.get(method, {})
    count = sum(len(chain.instructions) for chain in plan.chains)
    found = [
        dict.fromkeys(name for handle in method_graph.handles(of_method.get(number)) for name in names.get(handle, ()))
        for number in range(count)
    ]
    return [list(each) for each in found]


def _to_executorch(lower_plan: MethodPlan, lowered: Lowered) -> tuple[ExecutorchProgramManager, EmitterOutput]:
    """Runs ExecuTorch's `to_executorch` without writing a file: `write_program` writes one for all methods."""
    edge, workaround = lowered.edge, workarounds.of_emission()
    shard_of = named_data.shard_of if lowered.shards else None
    of_application = not all(each.alloc_graph_output for each in lower_plan.memory_planning.values())
    early = [*passes.executorch(lower_plan), *workaround.passes(shard_of, outputs=of_application)]
    config = backend_config(lower_plan, early, shard_of or False, lowered.written or ())
    with (
        wrap_errors(lambda error: _emission_error(error, lower_plan, edge)),
        replaced(_program, "serialize_for_executorch", lambda *arguments: (Cord(), {})),
        workaround.around(edge),
    ):
        manager = edge.to_executorch(config)
    for name in sorted(manager.methods):
        workaround.check(name, manager.exported_program(name).graph_module)
    return manager, manager._emitter_output


def _check_outputs(edge: EdgeProgramManager) -> None:
    """Fails if a method returns no tensor: ExecuTorch cannot plan its memory, and names no method."""
    problems = [
        Problem(
            "the method returns no tensor",
            ("methods", method, "entry"),
            "return a number as torch.tensor(number); move numbers that never change to `constant_methods`",
        )
        for method in sorted(edge.methods)
        if not any(
            isinstance(spec.arg, TensorArgument) for spec in edge.exported_program(method).graph_signature.output_specs
        )
    ]
    if problems:
        raise BuildError(problems)


def _tagged(program: ExportedProgram, digests: Digests) -> dict[str, TaggedWeight]:
    written = set(program.graph_signature.buffers_to_mutate.values())
    found = {}
    for node, name in named_data.weights(program):
        shard = named_data.shard_of(node)
        if shard is not None:
            tensor = named_data.tensor(program, name)
            content = digests.weight(name, tensor)
            found[name] = TaggedWeight(shard, f"{tensor.dtype} {list(tensor.shape)} {content}", name in written)
    return found


def _trained(program: ExportedProgram) -> list[str]:
    specs = program.graph_signature.output_specs
    return sorted(
        {spec.target for spec in specs if spec.kind == OutputKind.GRADIENT_TO_PARAMETER and spec.target is not None}
    )


def _emission_error(error: BaseException, lower_plan: MethodPlan, edge: EdgeProgramManager) -> BuildError:
    if "finite upper bound" in str(error) and (problems := _unlimited_sizes(edge)):
        return BuildError(problems)
    path, hint = _place_and_hint(str(error), lower_plan, edge)
    action = failed(f"emitting {', '.join(sorted(edge.methods))}", error)
    programs = {name: edge.exported_program(name) for name in edge.methods}
    at = source_lines.shown(failed_nodes.lines(error, programs))
    return from_exception(error, BuildError, path, action, hints(at, hint))


def _unlimited_sizes(edge: EdgeProgramManager) -> list[Problem]:
    """A problem for each method with a size that depends on values and has no limit: its memory cannot be planned."""
    problems = []
    for name in sorted(edge.methods):
        program = edge.exported_program(name)
        node = dynamic_sizes.first_unlimited(program)
        if node is not None:
            at = source_lines.shown(failed_nodes.lines_of_nodes([node], {name: program}))
            message = f"a size of what `{operator_name(node)}` returns depends on values and has no upper limit"
            hint = "memory is planned for the largest size: write `torch._check(x.shape[0] <= LIMIT)` in the model"
            problems.append(Problem(message, ("methods", name), hints(at, hint)))
    return problems


def _place_and_hint(text: str, lower_plan: MethodPlan, edge: EdgeProgramManager) -> tuple[DocumentPath, str | None]:
    """The document path of the value that caused ExecuTorch's message, and a hint."""
    if "Missing out variants" in text:
        return _of_missing_kernels(text, lower_plan, edge)
    if "without a name" in text:
        hint = "buffers without planned memory need names: write `executorch: {emit_mutable_buffer_names: true}`"
        return ("executorch", "memory_planning", "alloc_mutable_buffers"), hint
    return ("methods",), None


def _of_missing_kernels(text: str, lower_plan: MethodPlan, edge: EdgeProgramManager) -> tuple[DocumentPath, str | None]:
    if "torchao::" in text:
        return _of_quantized_layers(lower_plan, edge)
    if lower_plan.custom_ops.libraries or lower_plan.custom_ops.modules:
        hint = (
            "register an overload with `out` for each of these operators, such as "
            "`demo::twice.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)`"
        )
        return ("custom_ops",), hint
    missing = re.findall(r"'(\w+::\w+)'", text)
    calling = [name for name in sorted(edge.methods) if _calls(edge.exported_program(name), missing)]
    hint = (
        "ExecuTorch does not have these operators: write them with PyTorch's in the model, call them in the "
        "application, or bring kernels with `custom_ops`"
    )
    return ("methods", *calling) if len(calling) == 1 else ("methods",), hint


def _calls(program: ExportedProgram, operators: Collection[str]) -> bool:
    """Whether a method calls one of some operators."""
    modules = [each for each in program.graph_module.modules() if isinstance(each, torch.fx.GraphModule)]
    called = {operator_name(node).partition(".")[0] for each in modules for node in each.graph.nodes}
    return not called.isdisjoint(operators)


def _of_quantized_layers(lower_plan: MethodPlan, edge: EdgeProgramManager) -> tuple[DocumentPath, str]:
    """The place and a hint for the first method that calls operators of torchao. Only backends can run these."""
    for name in sorted(edge.methods):
        layers = _layers_of_torchao(edge.exported_program(name))
        if layers:
            method = lower_plan.methods[name]
            named = [entry.backend for entry in method.partitioners if backends.get(entry.backend).has_partitioner]
            shown = ", ".join(f"`{backend}`" for backend in named)
            left_out = f"{shown} did not take the quantized layer `{layers[0]}`: leave it out of `quantize`"
            missing = (
                "these quantized layers need a backend that takes them, such as `xnnpack`: add it to `partitioners`"
            )
            return ("methods", name, "quantize"), left_out if named else missing
    return ("methods",), "leave the layers out of `quantize`"


def _layers_of_torchao(program: ExportedProgram) -> list[str]:
    """The names of layers that call operators of torchao, in the order of the graph. A name may be empty."""
    modules = [each for each in program.graph_module.modules() if isinstance(each, torch.fx.GraphModule)]
    calls = [node for module in modules for node in module.graph.nodes if "torchao." in str(node.target)]
    # Weights are dequantized outside of their layer. The layer is that of the operator that reads them.
    readers = [reader for node in calls for reader in [*node.users, node]]
    stacks = [list(reader.meta.get("nn_module_stack", {}).values()) for reader in readers]
    return sorted((stack[-1][0] for stack in stacks if stack), key=lambda name: not name) or [""] * bool(calls)
