"""The weights of methods for lowering: with their content and their shards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from etbuild.files.digests import file_digest
from etbuild.inputs.checkpoints import with_shards
from etbuild.inputs.given import Given
from etbuild.inputs.step_context import StepContext
from etbuild.plan.step_plans import ExportPlan, LowerPlan, MethodPlan
from etbuild.results import WeightDigests
from etbuild.steps.method_change import adapters

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

    from etbuild.emit.emitted import Emitted


def exported_with_weights(
    lower_plan: LowerPlan, export_plan: ExportPlan, context: StepContext
) -> tuple[dict[str, str], dict[str, ExportedProgram]]:
    """The shards of the parameters and buffers that have a tag, and the methods, exported with their weights."""
    from etbuild.lower import shards
    from etbuild.steps.export import export_with_weights

    facts, programs = export_with_weights(export_plan, context, lower_plan.weights, lower_plan.adapters)
    return shards.of_tensors(lower_plan, facts), programs


def check_of_adapters(
    lower_plan: MethodPlan, programs: Mapping[str, ExportedProgram], shard_of: Mapping[str, str]
) -> Callable[[Emitted], None]:
    """The check of the emitted methods from `Adapters.check_emitted`. It does nothing if no method has an adapter.

    Args:
        lower_plan: The lower plan.
        programs: The exported methods.
        shard_of: The shard of each parameter that has a tag, by name.
    """
    from etbuild.lower import shards

    names = shards.of_adapters(lower_plan, shard_of)
    return adapters().check_emitted(programs, names) if names else lambda _: None


def with_adapters(
    lower_plan: LowerPlan, parts: Sequence[Emitted], shard_of: Mapping[str, str], inputs: Given
) -> tuple[Sequence[Emitted], dict[str, torch.Tensor]]:
    """Emitted methods with the weights of adapters in place of the stand-ins, and these weights by name.

    Args:
        lower_plan: The lower plan.
        parts: The emitted methods.
        shard_of: The shard of each parameter that has a tag, by name.
        inputs: The declared inputs.
    """
    if not lower_plan.adapters:
        return parts, {}
    from etbuild.lower import shards

    weights = adapters().read_weights(lower_plan.adapters, shards.of_adapters(lower_plan, shard_of), inputs)
    return adapters().filled(parts, weights), weights


def described_weights(lower_plan: LowerPlan, inputs: Given) -> WeightDigests:
    """The digests of the files of weights, and of the tensors in them."""
    names = with_shards(lower_plan.weights_names, inputs)
    if not names:
        return {"data": {}, "tensors": {}}
    from etbuild.model.tensor_digests import tensors_of_files

    found = {name: inputs.find_data(name, path) for name, path in names.items()}
    return {"data": {name: file_digest(file) for name, file in found.items()}, "tensors": tensors_of_files(found)}
