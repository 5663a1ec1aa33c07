"""The model in eager PyTorch, with which a program is compared: quantized like it, and without quantization."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from etbuild.export import example_values
from etbuild.export.export_methods import root_of
from etbuild.inputs.step_context import StepContext
from etbuild.inputs.user_code import wrap_user_error
from etbuild.plan.parts import Dim, ExportMethod, Shapes
from etbuild.plan.plan import Plan
from etkit.local.prepared_model import Inputs, PreparedModel, made
from etplugins.comparison.calls import UNLIMITED
from etplugins.comparison.graph import arguments, copied, outputs_of
from etplugins.edges import facts as edges


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
        self._as_planned = PreparedModel.of_module(self._plan, root, context)
        self._prepared = self._as_planned.prepared
        for one in self._prepared.values():
            if one.quantized is not None:
                one.quantized.recompile()  # the export reads the graph, but a pass may not have updated its code

    @classmethod
    def of_plan(cls, plan: Plan, context: StepContext) -> Reference:
        """Makes the module of a plan, reads its weights, and prepares its methods."""
        return cls(plan, made(plan, context), context)

    @property
    def methods(self) -> dict[str, Inputs]:
        """The example inputs of each method, by name, as the model takes them."""
        found = self._as_planned.inputs
        for name in found.keys() & self._prepared.keys():
            leaves, form = pytree.tree_flatten(found[name], is_leaf=lambda value: value is None)
            found[name] = pytree.tree_unflatten(edges.dequantized(leaves, self._edges(name, len(leaves))[0]), form)
        return found

    def taken(self, method: str, leaves: Sequence[Any]) -> list[Any]:
        """Inputs as the program takes them: integers where the method has edges."""
        return edges.quantized(leaves, self._edges(method, len(leaves))[0])

    def numbers(self, method: str, outputs: Sequence[Any]) -> list[Any]:
        """Outputs of the program as numbers."""
        return edges.dequantized(outputs, self._edges(method, len(outputs))[1])

    def integers(self, method: str, outputs: Sequence[Any]) -> list[Any]:
        """Outputs as the program returns them. The reverse of `numbers`."""
        return edges.quantized(outputs, self._edges(method, len(outputs))[1])

    def _edges(self, method: str, count: int) -> list[edges.Edges]:
        """The edges of a method's inputs, and those of its outputs, where there are so many of them."""
        quantized = self._prepared[method].quantized if method in self._prepared else None
        found = edges.of_graph(quantized) if quantized is not None else ((), ())
        return [each if len(each) == count else [None] * count for each in found]

    def planned(self, name: str) -> ExportMethod:
        """A method of the export plan with its dynamic shapes. For an exported program, these come from its file."""
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
        """The module that has a method. For an exported program from a file, it is the default module."""
        return self._prepared[name].module if name in self._prepared else self._root

    def run(self, calls: Sequence[MethodCall]) -> list[list[Any]]:
        """The outputs of calls, one after the other, as lists of tensors and numbers.

        Raises:
            BuildError: The model failed. The error names its line.
        """
        return [self._call(self._as_planned, call) for call in calls]

    def run_float(self, calls: Sequence[MethodCall]) -> list[list[Any]]:
        """The same without quantization."""
        return [self._call(self._float, call) for call in calls]

    def state(self, name: str) -> dict[str, torch.Tensor]:
        """The buffers of a method, by name, with their present values."""
        graph = self._prepared[name].quantized if name in self._prepared else None
        module = self._files_as_modules[name] if name in self._files else graph if graph is not None else self._root
        return {key: buffer.detach().clone() for key, buffer in module.named_buffers()}

    def exported(self, name: str, quantized: bool = True, passes: bool = True) -> ExportedProgram:
        """Exports a method with its weights. The nodes know their lines in the sources.

        Args:
            name: The method's name.
            quantized: Whether to quantize it as the plan says.
            passes: Whether to run the passes of the manifest on it.
        """
        return (self._as_planned if quantized else self._float).exported(name, passes=passes)

    @property
    def has_passes(self) -> bool:
        """Whether the manifest has passes over exported methods."""
        return bool(self._plan.passes)

    def prepare_float(self) -> None:
        """Prepares the methods without quantization. Call it before the child processes that run them start."""
        _ = self._float

    @cached_property
    def _float(self) -> PreparedModel:
        """The model without quantization."""
        methods = {
            name: method.replace(
                quantize=None, from_recipe=tuple(each for each in method.from_recipe if each != "quantize")
            )
            for name, method in self._plan.methods.items()
        }
        return PreparedModel.of_module(self._plan.replace(methods=methods), self._root, self.context)

    @property
    def _files(self) -> dict[str, ExportedProgram]:
        return self._as_planned.files

    @cached_property
    def _files_as_modules(self) -> dict[str, torch.nn.Module]:
        return {name: program.module(check_guards=False) for name, program in self._files.items()}

    def _call(self, model: PreparedModel, call: MethodCall) -> list[Any]:
        positional, keywords = pytree.tree_map(copied, call.inputs)
        path = ("methods", call.method)
        with torch.no_grad(), wrap_user_error(path, f"running `{call.method}`"):
            if call.method in self._files:
                return outputs_of(self._files_as_modules[call.method](*positional, **keywords))
            with model.modules.module_for(call.method):
                one = model.prepared[call.method]
                if one.quantized is None:
                    return outputs_of(root_of(one)(*positional, **keywords))
                leaves, form = pytree.tree_flatten(positional)
                given = pytree.tree_unflatten(self.taken(call.method, leaves), form)
                return self.numbers(call.method, outputs_of(one.quantized(*given)))


def _shapes_of(program: ExportedProgram) -> tuple[tuple[Shapes, ...], dict[str, Shapes]]:
    """The dynamic shapes of the inputs of an exported program: positional ones, and those by name.

    Each dynamic size is a symbol: a program whose sizes are computed from others cannot be lowered.
    """

    def dim(size: int | torch.SymInt) -> Dim | None:
        if isinstance(size, int):
            return None
        limits = program.range_constraints[size.node.expr]
        most = int(limits.upper) if bool(limits.upper < UNLIMITED) else None
        return Dim(str(size), int(limits.lower), most, 1, 1, 0)

    def shape(value: Any) -> Shapes:
        return tuple(map(dim, value.shape)) if isinstance(value, torch.Tensor) else None

    return arguments(program.call_spec.in_spec, [*map(shape, example_values.inputs_of_graph(program))])
