"""The model in eager PyTorch, quantized as its program and without quantization: what a program is compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from etbuild.comparison.calls import UNLIMITED
from etbuild.comparison.graph import arguments, copied, outputs_of
from etbuild.export import saved_examples
from etbuild.export.export_methods import PreparedMethod, load_method, root_of
from etbuild.inputs.step_context import StepContext
from etbuild.inputs.user_code import wrap_user_error
from etbuild.plan.parts import Dim, ExportMethod, Shapes
from etbuild.plan.plan import Plan
from etbuild.plan.step_plans import ExportPlan
from etbuild.steps.create_module import create_module
from etbuild.steps.export import Modules, export_methods, prepare_methods

Inputs = tuple[tuple[Any, ...], dict[str, object]]
"""Positional inputs, and keyword inputs by name."""


@dataclass(frozen=True)
class MethodCall:
    """A call with its inputs.

    Attributes:
        method: The method's name.
        inputs: The positional inputs, and the keyword inputs by name.
    """

    method: str
    inputs: Inputs

    @property
    def leaves(self) -> list[Any]:
        """The inputs in the order in which the program takes them."""
        leaves: list[Any] = pytree.tree_leaves(self.inputs, is_leaf=lambda value: value is None)
        return leaves


class Reference:
    """The model of a plan in eager PyTorch. Calls change its state: make those of a case in a child process."""

    def __init__(self, plan: Plan, root: torch.nn.Module, context: StepContext) -> None:
        """Prepares the methods of a model.

        Args:
            plan: The plan, whose methods may be quantized.
            root: The module with its weights.
            context: The declared inputs.

        Raises:
            InputError: The inputs do not fit a method.
            BuildError: Preparing or quantizing a method failed.
        """
        self._plan, self._root, self.context = plan.export_plan, root, context
        self._modules = Modules(root, self._plan, free=False)
        self._prepared = prepare_methods(self._plan, self._modules, context)
        for one in self._prepared.values():
            if one.quantized is not None:
                one.quantized.recompile()  # the export takes the graph, whose code a pass may have left as it was

    @classmethod
    def of_plan(cls, plan: Plan, context: StepContext) -> Reference:
        """Makes the module of a plan, reads its weights, and prepares its methods."""
        from etbuild.export import custom_ops

        custom_ops.load(plan.custom_ops, context)
        with context.stage("create the module"):
            root = create_module(plan.export_plan, context, plan.lower_plan.weights, floats=True)
        return cls(plan, root, context)

    @property
    def methods(self) -> dict[str, Inputs]:
        """The example inputs of each method, by name."""
        found = {name: (one.arguments, one.keywords) for name, one in self._prepared.items()}
        for name, program in self._files.items():
            found[name] = arguments(program.call_spec.in_spec, saved_examples.of_program(program))
        return dict(sorted(found.items()))

    def planned(self, name: str) -> ExportMethod:
        """A method in the export plan, with its dynamic shapes: those of an exported program come from its file."""
        method = self._plan.methods[name]
        if name not in self._files:
            return method
        positional, keywords = _shapes_of(self._files[name])
        return method.replace(dynamic_shapes=positional, dynamic_kwargs_shapes=keywords)

    def is_quantized(self, name: str) -> bool:
        """Whether the plan or its recipe quantizes a method."""
        method = self._plan.methods[name]
        return method.program is None and (method.quantize is not None or "quantize" in method.from_recipe)

    def keeps_state(self, name: str) -> bool:
        """Whether a method may write to a buffer."""
        module = self._files_as_modules.get(name, self._root)
        return next(module.buffers(), None) is not None

    def module(self, name: str) -> torch.nn.Module:
        """The module that has a method; the default one for an exported program from a file."""
        return self._prepared[name].module if name in self._prepared else self._root

    def run(self, calls: Sequence[MethodCall]) -> list[list[Any]]:
        """The outputs of calls, one after the other, as lists of tensors and numbers.

        Raises:
            BuildError: The model failed. The error names its line.
        """
        return [self._call(self._prepared, self._modules, call) for call in calls]

    def run_float(self, calls: Sequence[MethodCall]) -> list[list[Any]]:
        """The same without quantization."""
        prepared, modules = self._float
        return [self._call(prepared, modules, call) for call in calls]

    def state(self, name: str) -> dict[str, torch.Tensor]:
        """The buffers of a method, by name, with their values of now."""
        graph = self._prepared[name].quantized if name in self._prepared else None
        module = self._files_as_modules[name] if name in self._files else graph if graph is not None else self._root
        return {key: buffer.detach().clone() for key, buffer in module.named_buffers()}

    def exported(self, name: str, quantized: bool = True, passes: bool = True) -> ExportedProgram:
        """Exports a method, with its weights. Its nodes have the lines of the sources.

        Args:
            name: The method's name.
            quantized: Whether it is quantized as the plan says.
            passes: Whether the passes of the manifest change it.
        """
        plan = self._plan if quantized else self._float_plan
        plan = plan.replace(methods={name: plan.methods[name]}, passes=plan.passes if passes else ())
        prepared, modules = (self._prepared, self._modules) if quantized else self._float
        return export_methods(plan, modules, self.context, _of_plan(prepared, plan))[name]

    @property
    def has_passes(self) -> bool:
        """Whether the manifest has passes over exported methods."""
        return bool(self._plan.passes)

    def prepare_float(self) -> None:
        """Prepares the methods without quantization, before the child processes that run them begin."""
        _ = self._float

    @cached_property
    def _float_plan(self) -> ExportPlan:
        """The plan without quantization."""
        methods = {
            name: method.replace(
                quantize=None, from_recipe=tuple(each for each in method.from_recipe if each != "quantize")
            )
            for name, method in self._plan.methods.items()
        }
        return self._plan.replace(methods=methods)

    @cached_property
    def _float(self) -> tuple[Mapping[str, PreparedMethod], Modules]:
        modules = Modules(self._root, self._float_plan, free=False)
        return prepare_methods(self._float_plan, modules, self.context), modules

    @cached_property
    def _files(self) -> dict[str, ExportedProgram]:
        """The methods that come from files, by name."""
        names = [name for name, method in self._plan.methods.items() if method.program is not None]
        return {name: load_method(self._plan, name, self.context.inputs) for name in names}

    @cached_property
    def _files_as_modules(self) -> dict[str, torch.nn.Module]:
        return {name: program.module(check_guards=False) for name, program in self._files.items()}

    def _call(self, prepared: Mapping[str, PreparedMethod], modules: Modules, call: MethodCall) -> list[Any]:
        positional, keywords = pytree.tree_map(copied, call.inputs)
        path = ("methods", call.method)
        with torch.no_grad(), wrap_user_error(path, f"running `{call.method}`"):
            if call.method in self._files:
                return outputs_of(self._files_as_modules[call.method](*positional, **keywords))
            with modules.of(call.method):
                one = prepared[call.method]
                run: Callable[..., Any] = one.quantized if one.quantized is not None else root_of(one)
                return outputs_of(run(*positional, **keywords))


def _of_plan(prepared: Mapping[str, PreparedMethod], plan: ExportPlan) -> dict[str, PreparedMethod]:
    """Prepared methods that are exported by another plan."""
    return {name: replace(one, job=replace(one.job, plan=plan)) for name, one in prepared.items()}


def _shapes_of(program: ExportedProgram) -> tuple[tuple[Shapes, ...], dict[str, Shapes]]:
    """The dynamic shapes of the inputs of an exported program: positional ones, and those by name.

    Each dynamic size is a symbol: programs in which sizes are computed from others cannot be lowered.
    """

    def dim(size: int | torch.SymInt) -> Dim | None:
        if isinstance(size, int):
            return None
        limits = program.range_constraints[size.node.expr]
        most = int(limits.upper) if bool(limits.upper < UNLIMITED) else None
        return Dim(str(size), int(limits.lower), most, 1, 1, 0)

    def shape(value: Any) -> Shapes:
        return tuple(map(dim, value.shape)) if isinstance(value, torch.Tensor) else None

    return arguments(program, [*map(shape, saved_examples.inputs_of_graph(program))])
