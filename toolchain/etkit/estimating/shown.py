"""Shows estimates: a table for people, and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from etkit.tables import size, table

if TYPE_CHECKING:
    from etkit.estimating.estimate import Estimate
    from etkit.estimating.limit import Limit

_HEADING = ("program", "files", "planned", "of it state", "delegates keep", "resident", "build", "estimated in")


def as_text(estimates: Sequence[Estimate], room: Limit) -> str:
    """A table with a row for each program, and what makes their memory large."""
    rows = [_HEADING, *(tuple(_cells(each, room)) for each in estimates)]
    return "\n".join([table(rows), *_lines(estimates)])


def _cells(estimate: Estimate, room: Limit) -> Iterator[str]:
    program = estimate.program
    yield estimate.name
    for count in (program.size, program.planned, program.state, program.kept, program.resident):
        yield size(count)
    yield size(estimate.peak) + ("" if estimate.fits(room) else " (too large)")
    yield f"{estimate.seconds:.0f} s"


def _lines(estimates: Sequence[Estimate]) -> Iterator[str]:
    for each in estimates:
        named = f"{each.name}: " if len(estimates) > 1 else ""
        for name, method in each.program.methods.items():
            for tensor in method.largest:
                yield f"{named}{name}: {tensor.shape} of {tensor.of} takes {size(tensor.bytes)} of planned memory"
        for name, why in each.with_weights.items():
            yield f"{named}{name} was lowered with its weights, because {why}"
        for line in each.advice:
            yield f"{named}{line}"


def as_json(estimates: Sequence[Estimate], room: Limit) -> dict[str, Any]:
    """The same as JSON data. Sizes are in bytes."""
    return {
        "schema": "executorch-estimate/v1",
        "memory": {"bytes": room.bytes, "of": room.of},
        "programs": [_as_json(each, room) for each in estimates],
    }


def _as_json(estimate: Estimate, room: Limit) -> dict[str, Any]:
    program = estimate.program
    return {
        "name": estimate.name,
        "files": dict(program.files),
        "planned": program.planned,
        "state": program.state,
        "kept": program.kept,
        "resident": program.resident,
        "weights": estimate.needs.weights,
        "build": estimate.peak,
        "build_depends_on": asdict(estimate.needs),
        "fits": estimate.fits(room),
        "methods": {
            name: {
                "planned": method.planned,
                "state": method.state,
                "kept": method.kept,
                "scratch": method.scratch,
                "largest": [{"tensor": each.shape, "bytes": each.bytes, "of": each.of} for each in method.largest],
            }
            for name, method in program.methods.items()
        },
        "with_weights": dict(estimate.with_weights),
        "advice": list(estimate.advice),
        "seconds": round(estimate.seconds, 3),
    }
