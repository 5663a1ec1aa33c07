"""Makes the model with which the text of a language model's program is compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from etbuild.inputs.step_context import StepContext
from etbuild.steps.create_module import create_module
from etplugins.transformers.parts import settings_of

if TYPE_CHECKING:
    from etbuild.plan.plan import Plan


def language_model(plan: Plan, context: StepContext) -> torch.nn.Module:
    """A language model as transformers computes it: float32, without a cache, and not quantized.

    Args:
        plan: The plan of its program. Its model is one of transformers.
        context: The declared inputs.

    Returns:
        The module. It takes `input_ids`, int64 [1, seq], and returns a tuple with the scores first, [1, seq, vocab].
    """
    from etplugins.transformers import experts  # it imports transformers, which tests of other models do without

    source = plan.export_plan.model
    settings = settings_of(source)
    assert settings is not None, "the manifest is checked"
    plain = settings.replace(cache=None, task=None, attention=None, logits=None)
    methods = {name: method.replace(quantize=None) for name, method in plan.export_plan.methods.items()}
    model = source.replace(huggingface=plain, dtype="float32")
    export_plan = plan.export_plan.replace(model=model, methods=methods)
    root = create_module(export_plan, context, plan.lower_plan.weights, floats=True).float()
    experts.restore(root)
    return root
