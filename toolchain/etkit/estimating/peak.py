"""The largest memory of a build, of all its processes together, from what its program takes.

`benchmarks/estimates` compares it with what builds take, and says where the numbers come from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from etkit.estimating.program import Program
    from etkit.local.pipeline import Request


@dataclass(frozen=True)
class Needs:
    """What the memory of a build depends on.

    Attributes:
        transformers: Whether making the model imports transformers.
        at_once: How many methods are lowered, and compared, at the same time.
        weights: The bytes of the weights in PyTorch.
        files: The bytes of the program's files.
        planned: The planned memory of all methods, in bytes.
        kept: What their delegates keep, in bytes.
    """

    transformers: bool
    at_once: int
    weights: int
    files: int
    planned: int
    kept: int

    @classmethod
    def of(cls, request: Request, program: Program, weights: int, jobs: int) -> Needs:
        """The needs of a build with so many jobs."""
        imported = request.plan.model.huggingface is not None or "transformers" in request.files.used.packages
        return cls(
            imported,
            min(jobs, len(request.plan.methods)),
            weights,
            program.size,
            program.planned,
            program.kept,
        )


def of_build(needs: Needs) -> int:
    """The largest memory of a build, in bytes."""
    base = 550e6 if needs.transformers else 450e6
    return round(base + 100e6 * (needs.at_once - 1) + needs.weights + needs.files + needs.planned + needs.kept)
