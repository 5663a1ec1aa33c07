"""The memory of a model before it is made: the bytes of its tensors. Only their shapes are computed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from etbuild.guard import children
from etbuild.inputs.step_context import StepContext
from etbuild.surroundings.library_output import library_messages_off, stdout_for_results

if TYPE_CHECKING:
    from etkit.local.pipeline import Pipeline


def made_by_code(pipeline: Pipeline) -> int | None:
    """The bytes of those parameters and buffers that the code of a model makes, and no checkpoint fills: the export has
    to hold them in memory. None if they are unknown, since the code computes with content.

    Args:
        pipeline: The build, whose export has not begun.
    """
    from etbuild.steps.export import import_torch

    with library_messages_off(), stdout_for_results():
        import_torch(pipeline.stage)
    return children.run_one(partial(_made_by_code, pipeline))


def _made_by_code(pipeline: Pipeline) -> int | None:
    import torch

    from etbuild.inputs.user_code import importable
    from etbuild.model import module
    from etbuild.surroundings.random_seeds import seed

    plan, used = pipeline.request.plan.export_plan, pipeline.request.files.used
    inputs = pipeline.request.files.inputs.only(pipeline.data(plan))
    with library_messages_off(used.sources), stdout_for_results():
        seed(plan.model.seed)
        with importable(used, inputs.data.values(), pipeline.watch), pipeline.stage("compute the shapes of the model"):
            try:
                with torch.device("meta"):
                    root = module.create(plan.model, StepContext(inputs), loaded=True)
            except Exception:  # noqa: BLE001 - the export makes the model in the usual way, and tells of errors
                return None
            filled = root.state_dict().keys() if plan.leaves_weights or plan.weights else ()
            made = [tensor for name, tensor in module.named_tensors(root).items() if name not in filled]
            return int(sum({id(tensor): tensor.nbytes for tensor in made}.values()))
