"""The largest memory of a build, of all its processes together, from what its program takes.

It is reached while the program is compared: then the weights are in memory in the form of PyTorch, in the pages of the
program's files, and in the form of the backends, beside the planned memory. A program that is too large for that is not
compared. `benchmarks/estimates` measured what the processes themselves take.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from etplugins.comparison.step import LARGEST_BYTES

if TYPE_CHECKING:
    from etkit.estimating.program import Program
    from etkit.local.pipeline import Request

MARGIN = 1.1
"""What a machine needs, divided by what is said: builds of `benchmarks/estimates` took up to 7 % more than was said."""
_PROCESSES = 575e6
_TRANSFORMERS = 60e6
_MODEL_OF_TRANSFORMERS = 125e6
_METHOD = 75e6
_QUANTIZES = 150e6
_OF_QUANTIZED = 2 / 3
"""The part of the weights in float32 that a build has in memory if it quantizes all methods: pages of the checkpoint,
and one weight at a time."""


@dataclass(frozen=True)
class Needs:
    """What the memory of a build depends on.

    Attributes:
        transformers: Whether making the model imports transformers.
        huggingface: Whether the manifest names a class or a task of transformers.
        quantized: Whether the weights of all methods are quantized.
        at_once: How many methods are lowered, and compared, at the same time.
        weights: The bytes of the weights in PyTorch.
        files: The bytes of the program's files.
        planned: The planned memory of all methods, in bytes.
        kept: What their delegates keep, in bytes.
    """

    transformers: bool
    huggingface: bool
    quantized: bool
    at_once: int
    weights: int
    files: int
    planned: int
    kept: int

    @classmethod
    def of(cls, request: Request, program: Program, weights: int, jobs: int) -> Needs:
        """The needs of a build with so many jobs."""
        named = request.plan.model.huggingface is not None
        methods = request.plan.export_plan.methods.values()
        return cls(
            named or "transformers" in request.files.used.packages,
            named,
            all(each.quantize is not None and not each.quantized_after_export for each in methods),
            min(jobs, len(request.plan.methods)),
            weights,
            program.size,
            program.planned,
            program.kept,
        )


def of_build(needs: Needs) -> int:
    """The largest memory of a build, in bytes."""
    imported = _TRANSFORMERS * needs.transformers + _MODEL_OF_TRANSFORMERS * needs.huggingface
    processes = _PROCESSES + imported + _QUANTIZES * needs.quantized + _METHOD * (needs.at_once - 1)
    is_compared = needs.files + needs.planned <= LARGEST_BYTES
    weights = needs.weights * (_OF_QUANTIZED if needs.quantized else 1)
    return round(processes + weights + needs.files + (needs.planned + needs.kept) * is_compared)
