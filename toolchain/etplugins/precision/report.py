"""Says how many bytes 16-bit floats save in a program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from etbuild.errors import Problem
from etbuild.report.parts import Added, Reported
from etbuild.results import LoweringFacts

_TOLD = 0.1  # part of the bytes of all weights in float32: a note reports if less is saved
_WHY = "a backend may store them in float32, as XNNPACK does with the weights of convolutions"


def report(program: Reported) -> Added:
    """A note if 16-bit floats make a program hardly smaller."""
    lowering, precision = program.lowering, program.plan.model.precision
    graphs = lowering["graphs"].values()
    weights = {weight["name"]: weight for graph in graphs for weight in graph["weights"]}
    in_float32 = {
        name: weight["bytes"] * (2 if weight["dtype"] == precision.compute else 1) for name, weight in weights.items()
    }
    stored, known = 0, set[str]()
    for size, names in _blobs(lowering):
        if found := in_float32.keys() & {*names}:
            stored, known = stored + size, known | found
    before = sum(in_float32[name] for name in known)
    if not known or before - stored >= _TOLD * before:
        return Added()
    what = f"`compute: {precision.compute}` saves {max(before - stored, 0):,} of {before:,} bytes of weights"
    return Added(notes=[Problem(what, ("model", "dtype"), _WHY)])


def _blobs(lowering: LoweringFacts) -> Iterator[tuple[int, Iterable[str]]]:
    """Yields the size of each blob that is not inside of a delegate, with the weights that it is made of."""
    sizes, made_of = lowering["program"]["bytes"], lowering["blob_weights"]
    yield from zip(sizes["constants"], made_of["constants"], strict=True)
    for of_file in (sizes["named_data"], *lowering["named_data"].values()):
        for key, size in of_file.items():
            yield size, made_of["named_data"].get(key, [key])
