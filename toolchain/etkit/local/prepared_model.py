"""The model of a plan in eager PyTorch, with its methods before the export."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from etbuild.export import example_values
from etbuild.export.export_methods import PreparedMethod, load_method
from etbuild.inputs.step_context import StepContext
from etbuild.plan.plan import Plan
from etbuild.plan.step_plans import ExportPlan
from etbuild.steps.create_module import create_module
from etbuild.steps.export import Modules, export_methods, prepare_methods

Inputs = tuple[tuple[Any, ...], dict[str, object]]
"""Positional inputs, and keyword inputs by name."""


@dataclass(frozen=True)
class PreparedModel:
    """A model whose methods are prepared.

    Attributes:
        plan: The plan of its export.
        context: The declared inputs.
        modules: The modules of the methods.
        prepared: The methods by name, which may be quantized. Methods from files are not among them.
    """

    plan: ExportPlan
    context: StepContext
    modules: Modules
    prepared: Mapping[str, PreparedMethod]

    @classmethod
    def of_module(cls, plan: ExportPlan, root: torch.nn.Module, context: StepContext) -> PreparedModel:
        """Prepares the methods of a module with weights.

        Raises:
            InputError: The inputs do not fit a method.
            BuildError: Preparing or quantizing a method failed.
        """
        modules = Modules(root, plan, free=False)
        return cls(plan, context, modules, prepare_methods(plan, modules, context))

    @classmethod
    def of_plan(cls, plan: Plan, context: StepContext) -> PreparedModel:
        """Makes the module of a plan, reads its weights, and prepares its methods."""
        return cls.of_module(plan.export_plan, made(plan, context), context)

    @property
    def inputs(self) -> dict[str, Inputs]:
        """The example inputs of each method, by name."""
        found = {name: (one.arguments, one.keywords) for name, one in self.prepared.items()}
        for name, program in self.files.items():
            leaves = example_values.inputs_of_program(program)
            positional, keywords = pytree.tree_unflatten(leaves, program.call_spec.in_spec)
            found[name] = (tuple(positional), dict(keywords))
        return dict(sorted(found.items()))

    @cached_property
    def files(self) -> dict[str, ExportedProgram]:
        """The methods that come from files, by name."""
        names = [name for name, method in self.plan.methods.items() if method.program is not None]
        return {name: load_method(self.plan, name, self.context.inputs) for name in names}

    def exported(self, name: str, *, passes: bool = True) -> ExportedProgram:
        """Exports a method, with its weights. Its nodes have the lines of the sources.

        Args:
            name: The method's name.
            passes: Whether the passes of the manifest change it.

        Raises:
            BuildError: It cannot be exported.
        """
        plan = self.plan.replace(methods={name: self.plan.methods[name]}, passes=self.plan.passes if passes else ())
        prepared = {each: replace(one, job=replace(one.job, plan=plan)) for each, one in self.prepared.items()}
        return export_methods(plan, self.modules, self.context, prepared)[name]


def made(plan: Plan, context: StepContext) -> torch.nn.Module:
    """Makes the module of a plan, and reads its weights."""
    from etbuild.export import custom_ops

    custom_ops.load(plan.custom_ops, context)
    with context.stage("create the module"):
        return create_module(plan.export_plan, context, plan.lower_plan.weights, floats=True)
