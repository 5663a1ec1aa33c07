"""Reads exported methods with their weights and example inputs, to compare them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etbuild import plugins, switches
from etbuild.errors import InputError
from etbuild.inputs.step_context import StepContext
from etbuild.processes.import_without_gc import import_without_gc
from etbuild.steps.lowering_options import LoweringOptions
from etbuild.steps.method_change import adapters
from etbuild.steps.saved_export import LoweringJob, load_methods, open_content
from etplugins.comparison.known import NOT
from etplugins.comparison.parts import ComparePlan

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

    from etbuild.export.read_archive import Content, SavedExport
    from etplugins.comparison.compare import ComparedMethod

_LARGE = 1 << 20  # bytes: smaller weights are kept, because reading them for each call takes longer


def import_all(options: LoweringOptions) -> None:
    """Imports what comparing needs, before processes fork for it."""
    faster = switches.on("importing_without_lowering") if options.accelerate else nullcontext()
    with import_without_gc("executorch.runtime"), faster:
        import executorch.runtime  # noqa: F401
        from torch.export.pt2_archive import _package  # noqa: F401

        from etplugins.comparison import compare, eager, model  # noqa: F401


@dataclass(frozen=True)
class ComparedMethods:
    """The exported methods of a program, as they are compared.

    Attributes:
        job: The export, and how it was lowered.
        saved: The export.
        context: What every step needs.
        examples: The example inputs that the export saved.
        content: The parameters and buffers by name, which are read when they are asked for.
        adapters: The weights of adapters, by name.
        programs: The methods, if they were exported again because the saved export lacks the weights.
    """

    job: LoweringJob[ComparePlan]
    saved: SavedExport
    context: StepContext
    examples: Path
    content: Content | None
    adapters: dict[str, torch.Tensor]
    programs: dict[str, ExportedProgram]

    @classmethod
    def read(
        cls, job: LoweringJob[ComparePlan], saved: SavedExport, context: StepContext, examples: Path
    ) -> ComparedMethods:
        """Opens the weights, or exports the methods again with them. Call it before child processes start, so that it
        happens once."""
        if saved.export_plan is not None:
            from etbuild.steps.export import export_with_weights

            _, programs = export_with_weights(saved.export_plan, context, job.plan.weights, job.plan.adapters)
            for program in programs.values():  # the export has stand-ins for the weights of adapters: buffers
                program.constants.update(weights_of_adapters(job, program.constants.keys()))
            return cls(job, saved, context, examples, None, {}, programs)
        content = open_content(job, saved)
        return cls(job, saved, context, examples, content, weights_of_adapters(job, content.keys()), {})

    def methods(self, names: list[str], *, whole: bool = False) -> tuple[list[ComparedMethod], dict[str, str]]:
        """The methods with their weights and example inputs. Also notes about methods that cannot be compared, by name.

        Args:
            names: The names of the methods.
            whole: Whether the programs hold all of their weights. If not, large ones are read where they are needed.
        """
        from torch.export.graph_signature import OutputKind

        from etbuild.export import example_values
        from etplugins.comparison import layout
        from etplugins.comparison.compare import ComparedMethod

        methods, skipped = list[ComparedMethod](), dict[str, str]()
        large: Mapping[str, torch.Tensor] = {}
        loaded = self.programs
        if self.content is not None:
            content = self.content
            if not whole:
                large = content.only(self._large())
                content = content.only(content.keys() - large.keys())
            with switches.on("loading") if self.job.options.accelerate else nullcontext():
                in_memory = {**content.loaded(), **self.adapters}
                loaded = load_methods(self.saved, in_memory, names)
        converted = self.job.plan.exported.model.precision is not None
        for name in names:
            program = loaded[name]
            leaves = (
                example_values.inputs_of_program(program)
                if self.programs
                else example_values.saved_inputs(self.examples, name, program)
            )
            if any(spec.kind == OutputKind.GRADIENT_TO_PARAMETER for spec in program.graph_signature.output_specs):
                skipped[name] = f"{NOT} it trains, and a program also returns the gradients"
            elif leaves is None:
                skipped[name] = f"{NOT} its example inputs have a dtype that safetensors cannot hold"
            else:
                inputs, settings = layout.of_inputs(leaves, program), self.job.plan.comparisons[name]
                samples = [] if whole else self._samples(name, program)
                methods.append(ComparedMethod(name, program, inputs, settings, large, samples, converted))
        return methods, skipped

    def _samples(self, name: str, program: ExportedProgram) -> list[tuple[str, list[Any]]]:
        """The samples of a method: the name of each file, and its inputs in the method's order."""
        samples = self.job.plan.exported.methods[name].samples
        if samples is None:
            return []
        from torch.utils import _pytree as pytree

        from etplugins.comparison import layout
        from etplugins.edges import facts as edges

        found, path = [], ("methods", name, "samples")
        at_edges, _ = edges.of_program(program)
        for sample in plugins.load("samples", "files").read(samples, path, self.context):
            leaves, form = pytree.tree_flatten((sample.inputs, {}))
            leaves = edges.quantized(leaves, at_edges) if len(leaves) == len(at_edges) else leaves
            wrong = layout.misfit(leaves, program) if form == program.call_spec.in_spec else "it has other inputs"
            if wrong is not None:
                raise InputError.at(path, f"`{sample.name}` does not fit the method: {wrong}")
            found.append((sample.name, layout.of_inputs(leaves, program)))
        return found

    def _large(self) -> set[str]:
        """The names of large weights that no method changes, and that can be read again for each call."""
        from etbuild.model.tensor_facts import first_name

        if self.saved.packing is not None:
            return set()  # to unpack them takes longer than a call
        changed = {first_name(entry) for entry in self.saved.tensors if entry.name in self.saved.written}
        return {
            entry.name
            for entry in self.saved.tensors
            if entry.nbytes >= _LARGE and first_name(entry) not in changed and entry.name not in self.adapters
        }


def weights_of_adapters(job: LoweringJob[ComparePlan], names: Collection[str]) -> dict[str, torch.Tensor]:
    """The weights of adapters among the names of parameters and buffers."""
    files = job.plan.adapters
    return adapters().read_weights(files, names, job.inputs) if files else {}
