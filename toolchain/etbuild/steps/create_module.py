"""Makes the module of a program with its weights, for the steps that run its code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from etbuild.files.weights_suffixes import suffixes_of_plugins
from etbuild.inputs.step_context import StepContext
from etbuild.plan.parts import Weights
from etbuild.plan.step_plans import ExportPlan
from etbuild.steps.method_change import adapters

if TYPE_CHECKING:
    import torch

    from etbuild.model.packing import KeptWeights, Packing


def create_module(
    export_plan: ExportPlan,
    context: StepContext,
    weights: Weights = (),
    *,
    floats: bool = False,
    in_place: bool = False,
) -> torch.nn.Module:
    """Makes the module for the export of methods, like its user: with the factory, the checkpoint, and `eval()`.

    Args:
        export_plan: What to export.
        context: What every step needs.
        weights: Checkpoints to load, besides those that every export reads.
        floats: Whether the module will also be used without the quantization of its methods.
        in_place: Whether weights are written into the memory of the factory's tensors, so that everything that shares
            this memory has them too. This takes more memory than replacing the tensors.

    Raises:
        InputError: A declared input is missing or does not fit.
        BuildError: The module cannot be made.
    """
    from etbuild.model import module

    read = (*export_plan.weights, *weights)
    loaded = (export_plan.leaves_weights or bool(read)) and not any(entry.optional for entry in read)
    root = module.create(export_plan.model, context, loaded)
    if read:
        _load(root, export_plan, context, read, floats, in_place)
    module.for_inference(root, export_plan.model)
    module.normalize(root)
    if export_plan.adapters:
        adapters().attach(root, export_plan, context.inputs)
    return root


def _load(
    root: torch.nn.Module,
    export_plan: ExportPlan,
    context: StepContext,
    read: Weights,
    floats: bool,
    in_place: bool,
) -> None:
    """Loads checkpoints into a module."""
    from etbuild.model import module
    from etbuild.model.checkpoint import CheckpointTensors
    from etbuild.model.weights_files import describe_state

    facts, packing = describe_state(root), packing_of_module(root, export_plan)
    cast = export_plan.model.dtype is not None
    checkpoint = CheckpointTensors(read, context.inputs, facts, cast, root, packing)
    if module.loading_code(root) is not None:
        root.load_state_dict(checkpoint.by_name(), strict=False)
    elif in_place and export_plan.model.factory is not None:
        checkpoint.load_in_place(module.named_tensors(root))
    else:
        kept = _kept_weights(root, export_plan, packing is not None, floats)
        checkpoint.load_into(module.named_tensors(root), kept, context.spill)


def _kept_weights(root: torch.nn.Module, export_plan: ExportPlan, packed: bool, floats: bool) -> KeptWeights | None:
    """The object that keeps packed weights; None if no method keeps any. Raises InputError if they cannot exist."""
    if not export_plan.keeps_integers:
        return None
    from etbuild.export import quantizers
    from etbuild.model.packing import packed_checkpoints

    packed = packed or any(entry.file.endswith(suffixes_of_plugins()) for entry in export_plan.weights)
    kinds, unread = quantizers.of_weights().kept_weights(root, export_plan, packed, floats)
    return packed_checkpoints().keep(root, kinds, unread)


def packing_of_module(root: torch.nn.Module, export_plan: ExportPlan) -> Packing | None:
    """How the checkpoint of the module is packed; None if it is not. Only transformers' configuration tells."""
    if export_plan.model.huggingface is None:
        return None
    from etbuild.model.packing import packed_checkpoints

    return packed_checkpoints().packing_of(root)
