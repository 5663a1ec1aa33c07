"""Makes ExecuTorch's `EdgeCompileConfig` and `ExecutorchBackendConfig` from the options of a lower plan."""

from __future__ import annotations

import dataclasses
import difflib
import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig
from executorch.exir.dialects._ops import ops
from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite, get_scan_nodes, greedy, naive
from executorch.exir.passes import MemoryPlanningPass, ToOutVarPass
from executorch.exir.passes.propagate_device_config import PropagateDeviceConfig
from executorch.exir.passes.sym_shape_eval_pass import HintBasedSymShapeEvalPass
from torch.export.graph_signature import ExportGraphSignature
from torch.fx import GraphModule
from torch.fx.passes.infra.pass_base import PassResult

from etbuild import workarounds
from etbuild.errors import BuildError, DocumentPath, InputError, Problem
from etbuild.inputs.user_code import load_callable, wrap_user_error
from etbuild.lower import runtime_kernels
from etbuild.plan.kinds import Names
from etbuild.plan.parts import MemoryPlanning
from etbuild.plan.step_plans import MethodPlan
from etbuild.workarounds import Plan

if TYPE_CHECKING:
    from executorch.export import LoweringRecipe

_WRITTEN = "write operators as `namespace::name` or `namespace::name.overload`, such as `aten::add.Tensor`"
_EXCEPTIONS = "core_aten_ops_exception_list"
_ALGORITHMS = {"greedy": greedy, "naive": naive}


def edge_compile_config(
    lower_plan: MethodPlan, recipe: LoweringRecipe | None, of_backends: Iterable[Mapping[str, Any]]
) -> EdgeCompileConfig:
    """The configuration of `to_edge_transform_and_lower`.

    Args:
        lower_plan: The lower plan.
        recipe: The recipe that the program starts from. Options in the manifest override it.
        of_backends: The fields of `EdgeCompileConfig` that the backends of each method need.

    Raises:
        InputError: The plan names an operator that does not exist.
    """
    settings, path = lower_plan.edge_compile, ("edge_compile",)
    fields: Mapping[str, Any] = {
        "_check_ir_validity": settings.check_ir_validity,
        "_skip_dim_order": settings.skip_dim_order,
        "_core_aten_ops_exception_list": _operators(settings.core_aten_ops_exception_list, (*path, _EXCEPTIONS)),
        "preserve_ops": _operators(settings.preserve_ops, (*path, "preserve_ops")),
    }
    if lower_plan.recipe is not None and recipe is not None and recipe.edge_compile_config is not None:
        own = {field for field in fields if field.removeprefix("_") in lower_plan.recipe.said["edge_compile"]}
        fields = {**vars(recipe.edge_compile_config), **{field: fields[field] for field in own}}
    with_kernels = {f"_{_EXCEPTIONS}": runtime_kernels.aten_operators()}
    return EdgeCompileConfig(**functools.reduce(merged, [*of_backends, with_kernels], fields))


def merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, object]:
    """Merges the fields of two `EdgeCompileConfig`s: joins lists, and takes the flag that permits more.

    Args:
        one: Fields by name.
        other: More fields by name. It need not have the same fields.
    """
    joined = dict(one)
    for field, value in other.items():
        known = joined.get(field)
        if isinstance(value, list):
            joined[field] = [*(known or []), *(item for item in value if item not in (known or []))]
        elif known is None or field == "_skip_dim_order":
            joined[field] = bool(known or value)
        else:
            joined[field] = known and value
    return joined


def backend_config(
    lower_plan: MethodPlan,
    passes: list[Any],
    external_constants: Callable[[torch.fx.Node], str | None] | bool,
    also_written: Collection[str] = (),
) -> ExecutorchBackendConfig:
    """The configuration of `to_executorch`.

    Args:
        lower_plan: The lower plan.
        passes: Passes that run before memory is planned, after those of the recipe.
        external_constants: ExecuTorch's option `external_constants`.
        also_written: With `share_mutable_buffers`, the buffers that any method of the program writes to.

    Raises:
        InputError: The plan names an operator or a planning algorithm that does not exist.
    """
    settings = lower_plan.executorch
    inplace = _operators(settings.reinplace_extra_ops, ("executorch", "reinplace_extra_ops"))
    bounds, fitting = workarounds.of_emission().size_bounds()
    if settings.sym_shape_eval_pass == "hint_based":
        bounds, fitting = HintBasedSymShapeEvalPass(), lambda algorithm: algorithm
    fields = {
        **settings.fields(),
        "memory_planning_pass": _memory_planning(lower_plan, also_written, fitting),
        "sym_shape_eval_pass": bounds,
        "to_out_var_pass": ToOutVarPass(**settings.to_out_var_pass.fields()),
        "propagate_device_config": _propagate_device_config(lower_plan),
        "reinplace_extra_ops": frozenset(map(_edge_operator, inplace)) or None,
    }
    del fields["external_mutable_weights"]  # these weights have tags like other weights: see `emit_program`
    first, fields = _started_from_recipe(lower_plan, fields)
    return ExecutorchBackendConfig(**{**fields, "passes": [*first, *passes], "external_constants": external_constants})


def _started_from_recipe(lower_plan: MethodPlan, fields: dict[str, object]) -> tuple[list[Any], dict[str, object]]:
    """Returns the recipe's passes, and the fields. A field has the recipe's value if the manifest sets none."""
    recipe = lower_plan.recipe
    if recipe is None:
        return [], fields
    from etbuild.export.recipe import load_recipe

    config = load_recipe(recipe).executorch_backend_config
    if config is None:
        return [], fields
    overridden = set(recipe.said["executorch"])
    overridden |= (
        {"memory_planning_pass"} if "memory_planning" in overridden or lower_plan.share_mutable_buffers else set()
    )
    # New passes replace ExecuTorch's default ones, which keep state for the whole process.
    kept = {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(config)
        if field.name not in overridden and getattr(config, field.name) is not field.default
    }
    return kept.pop("passes"), {**fields, **kept}


def _propagate_device_config(lower_plan: MethodPlan) -> dict[str, PropagateDeviceConfig]:
    setting = lower_plan.executorch.propagate_device_config
    return {method: PropagateDeviceConfig(**setting.of_method(method).fields()) for method in lower_plan.methods}


class LoopMemoryPlanning(MemoryPlanningPass):  # type: ignore[misc]
    """Plans no memory for inputs of a `scan` body that come from outside in each round, such as weights.

    ExecuTorch plans memory for all inputs of the body, and then uses only the memory for the parts of a round.
    """

    def run(self, graph_module: GraphModule, graph_signature: ExportGraphSignature | None = None) -> PassResult:
        """Plans the memory of a method."""
        for node in get_scan_nodes(graph_module):
            body, carried, parts, given = node.args
            inputs = [each for each in getattr(graph_module, body.target).graph.nodes if each.op == "placeholder"]
            for inside, outside in zip(inputs[len(carried) + len(parts) :], given, strict=True):
                if inside.meta["spec"] is not outside.meta["spec"]:
                    inside.meta["spec"].const = True  # the program never reads it: the emitter uses `outside` instead
        return super().run(graph_module, graph_signature)


class SharedMemoryPlanning(LoopMemoryPlanning):
    """Plans buffers that only other methods write to like those that this method writes to.

    Args:
        written: The names of the buffers that methods of the program write to.
        options: The arguments of ExecuTorch's pass.
    """

    def __init__(self, written: Collection[str], **options: Any) -> None:
        super().__init__(**options, share_mutable_buffers=True)
        self._written = frozenset(written)

    def run_multimethod(self) -> None:
        """Gives the buffers their places after all methods are planned."""
        for name in sorted(self.state.maybe_mutable_buffers.keys() & self._written):
            self.state.mutable_buffers.setdefault(name, set())
        super().run_multimethod()


def _memory_planning(
    lower_plan: MethodPlan, also_written: Collection[str], fitting: Callable[[Plan], Plan]
) -> MemoryPlanningPass | dict[str, MemoryPlanningPass]:
    """Makes new passes, because passes keep state.

    If all methods have the same options, they get one pass, because one pass must plan the shared buffers of all.
    """
    by_method = lower_plan.memory_planning
    passes_by_method = {
        method: _memory_planning_pass(said, also_written if lower_plan.share_mutable_buffers else None, method, fitting)
        for method, said in sorted(by_method.items())
    }
    alike = len(set(by_method.values())) == 1
    return next(iter(passes_by_method.values())) if alike else passes_by_method


def _memory_planning_pass(
    said: MemoryPlanning, written: Collection[str] | None, method: str, fitting: Callable[[Plan], Plan]
) -> MemoryPlanningPass:
    name = said.memory_planning_algo
    if name in _ALGORITHMS:
        algorithm: Plan = MemoryPlanningAlgorithmSuite([_ALGORITHMS[name]])
    else:
        algorithm = _algorithm(name, ("methods", method, "memory_planning", "memory_planning_algo"))
    options = {**said.fields(), "memory_planning_algo": fitting(algorithm)}
    return LoopMemoryPlanning(**options) if written is None else SharedMemoryPlanning(written, **options)


def _algorithm(reference: str, path: DocumentPath) -> Callable[..., list[int]]:
    """Loads a planning algorithm from the declared sources and adds its name to its errors."""
    function = load_callable(reference, path)

    @functools.wraps(function, updated=())
    def plan(*arguments: Any) -> list[int]:
        with wrap_user_error(path, f"`{reference}`"):
            sizes = function(*arguments)
        if not isinstance(sizes, (list, tuple)) or not all(isinstance(size, int) for size in sizes):
            hint = "return the size in bytes of each memory, as MemoryPlanningAlgorithmSuite of ExecuTorch does"
            raise BuildError.at(path, f"`{reference}` returned {sizes!r}"[:200] + ", not a list of sizes", hint)
        return list(sizes)

    return plan


def _operators(names: Names, path: DocumentPath) -> list[torch._ops.OpOverload]:
    problems, operators = [], []
    for name in names:
        operator = _find(name)
        if operator is None:
            near = difflib.get_close_matches(name, sorted(torch._C._dispatch_get_all_op_names()), n=3)
            hint = f"did you mean {' or '.join(f'`{each}`' for each in near)}?" if near else _WRITTEN
            problems.append(Problem(f"there is no operator `{name}`", path, hint))
        else:
            operators.append(operator)
    InputError.raise_if(problems)
    return operators


def _find(name: str) -> torch._ops.OpOverload | None:
    """Finds the operator `namespace::name` or `namespace::name.overload`; None: it does not exist."""
    qualified, _, overload = name.partition(".")
    namespace, _, operator = qualified.partition("::")
    try:
        value = getattr(getattr(getattr(torch.ops, namespace), operator), overload or "default")
    except AttributeError:
        return None
    return value if isinstance(value, torch._ops.OpOverload) else None


def _edge_operator(operator: torch._ops.OpOverload) -> Any:
    namespace, _, name = operator._schema.name.partition("::")
    return getattr(getattr(getattr(ops.edge, namespace), name), operator._overloadname)
