"""What `etbuild inspect` says beyond the facts of a file: its largest blobs and tensors, and what its build asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import itemgetter
from pathlib import Path
from typing import Any

from etbuild.files import flatbuffer, program_file, regular_files
from etbuild.results import BlobWeights, Index, MemoryPlan, ProgramFile, Report
from etkit.inspection import blob_names
from etkit.inspection.page import treemap
from etkit.tables import size

_BLOBS = 5  # the largest ones that are named
_SHARE = 0.25  # of the memory in use at the worst moment: smaller tensors are not named
_TENSORS = 2


@dataclass(frozen=True)
class LargeTensor:
    """A tensor of the planned memory: its shape, such as `float32[1, 8]`, its bytes, and what makes it."""

    shape: str
    bytes: int
    of: str


@dataclass(frozen=True)
class Details:
    """More about a program.

    Attributes:
        blobs: The names and sizes of the largest blobs.
        tensors: For each method, the tensors that make its planned memory large.
        no_backend: The methods for which the manifest names no partitioner. Empty if the index is not known.
        twice: Lines about weights that are stored more than once.
    """

    blobs: Sequence[tuple[str, int]] = ()
    tensors: Mapping[str, Sequence[LargeTensor]] = field(default_factory=dict)
    no_backend: Sequence[str] = ()
    twice: Sequence[str] = ()


def find(path: Path, facts: ProgramFile, index: Index | None, report: Report | None) -> Details:
    """The details of a program.

    Args:
        path: The file.
        facts: The result of `program_file.describe`.
        index: The index of its build, if it is known.
        report: The report of its build, if it is known.

    Raises:
        InputError: The file is damaged.
    """
    known = blob_names.of_report(report)
    plans = index["inputs"]["plan"]["methods"] if index is not None else {}
    return Details(
        blobs=_largest(facts, known),
        tensors=_tensors(path),
        no_backend=[name for name in facts["methods"] if name in plans and not plans[name].get("partitioners")],
        twice=[*_twice(report)],
    )


def _largest(facts: ProgramFile, known: BlobWeights) -> list[tuple[str, int]]:
    modules = treemap.modules(treemap.weights_of_blobs(facts["bytes"], known))
    cells = [cell for group in treemap.blobs(facts["bytes"], {}, known, modules) for cell in group.cells]
    largest = sorted(cells, key=lambda cell: (-cell.bytes, cell.name))[:_BLOBS]
    return [(cell.name, cell.bytes) for cell in largest]


def _tensors(path: Path) -> dict[str, list[LargeTensor]]:
    """For each method, the largest tensors at the moment when most of the planned memory is in use."""
    from etbuild.files import instructions

    with flatbuffer.read_safely(path):
        with regular_files.opened(path) as file:
            plans = program_file.read_program(file.read()).program.execution_plan
        return {plan.name: [*large_tensors(instructions.memory_plan(plan), plan)] for plan in plans}


def large_tensors(plan: MemoryPlan, method: Any = None) -> Iterator[LargeTensor]:
    """Yields the largest tensors at the moment when most of the planned memory is in use.

    Args:
        plan: The memory plan of a method.
        method: Its execution plan, which has the shapes; None if they are not known.
    """
    shapes, (moment, total) = {} if method is None else _shapes(method), _worst_moment(plan)
    worst = [tensor for tensor in plan["tensors"] if tensor["first"] <= moment <= tensor["last"]]
    for tensor in sorted(worst, key=lambda tensor: -tensor["bytes"])[:_TENSORS]:
        if tensor["bytes"] >= _SHARE * total:
            shape = shapes.get((tensor["arena"], tensor["offset"], tensor["bytes"]), "a tensor")
            yield LargeTensor(shape, tensor["bytes"], tensor["of"])


def _worst_moment(plan: MemoryPlan) -> tuple[int, int]:
    """The first instruction at which most bytes are in use, and these bytes."""
    change = Counter[int]()
    for tensor in plan["tensors"]:
        change[tensor["first"]] += tensor["bytes"]
        change[tensor["last"] + 1] -= tensor["bytes"]
    moments = sorted(change)
    in_use = accumulate(change[moment] for moment in moments)
    return max(zip(moments, in_use, strict=True), key=itemgetter(1), default=(0, 0))


def _shapes(plan: Any) -> dict[tuple[int, int, int], str]:
    """The dtype and shape of the tensors in planned memory, by arena, offset and bytes. Those that share one place may
    have different shapes: the first one counts."""
    from executorch.exir.schema import Tensor
    from executorch.exir.tensor import get_scalar_type

    found: dict[tuple[int, int, int], str] = {}
    for value in plan.values:
        tensor = value.val
        if isinstance(tensor, Tensor) and (place := tensor.allocation_info) is not None:
            dtype, count = get_scalar_type(tensor.scalar_type), 1
            for extent in tensor.sizes:
                count *= max(0, extent)
            offset = (place.memory_offset_high << 32) + place.memory_offset_low
            shape = f"{str(dtype).removeprefix('torch.')}{list(tensor.sizes)}"
            found.setdefault((place.memory_id, offset, count * int(dtype.itemsize)), shape)
    return found


def _twice(report: Report | None) -> Iterator[str]:
    """Yields a line for each weight that is stored more than once, the largest first."""
    for each in report["sharing"].get("duplicates", ()) if report is not None else ():
        times = "twice" if each["copies"] == len(("one", "other")) else f"{each['copies']} times"
        readers = " and ".join(each["readers"])
        yield f"{each['weight']} is stored {times}, {size(each['bytes'])} too many: {readers} hold it"
