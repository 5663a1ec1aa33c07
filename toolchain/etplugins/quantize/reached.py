"""Finds the weights that stay floats in methods that the manifest quantizes, and why."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import cast

from etbuild.errors import Problem
from etbuild.plan.plan import Plan
from etbuild.report.parts import Added, Reported
from etbuild.report.patterns import pattern
from etbuild.results import GraphNode, GraphWeight, LeftInFloats, LoweringFacts, ReportedQuantization
from etplugins.quantize.parts import Quantize, TorchaoEntry

_TOLD = 0.05  # part of the bytes of all weights: a note reports more bytes in floats
_LISTED = 50  # in the report
_NAMED = 5  # in the note
_PART = re.compile(r"(^|\.)parametrizations\.(\w+)\.original\d+$")
"""The names of the tensors by which torchao replaces a weight."""
_OF_CODE = "reads it in code of its own"
_ONE_CALL = (
    "the model calls this layer several times, and the quantizer takes the first call only: call it once, with the "
    "inputs in one batch, such as `self.net(torch.cat([a, b])).chunk(2)`"
)
_NOT_LINEAR = (
    "its layer computes something else than a linear layer, or more: write that part as a `torch.nn.Linear` of its own"
)
_INSTEAD = (
    "torchao replaces the weights of linear layers and embeddings that the model calls. `torch.nn.MultiheadAttention` "
    "calls no linear layers: write its projections as `torch.nn.Linear`"
)


@dataclass
class _Weight:
    """A weight of a method, how the method is quantized, and the operators that read the weight."""

    facts: GraphWeight
    quantize: Quantize
    readers: list[GraphNode] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Its name in the module."""
        return self.facts["name"]


def report(program: Reported) -> Added:
    """The facts in a program's report about its quantization."""
    found = find(program.plan, program.lowering)
    return Added() if found is None else Added((), [*notes(found)], {"quantization": found})


def find(plan: Plan, lowering: LoweringFacts) -> ReportedQuantization | None:
    """The effect of `quantize`; None if the manifest quantizes no method.

    Args:
        plan: The plan.
        lowering: The facts of the lowering.
    """
    if not any(method.quantize for method in plan.methods.values()):
        return None
    weights = _weights(plan, lowering)
    quantized = {_whole(weight.name) for weight in weights.values() if _is_quantized(weight, weights)}
    left = [weight for weight in weights.values() if _is_in_floats(weight, quantized)]
    rows: dict[tuple[str, str], LeftInFloats] = {}
    for weight in left:
        kind = pattern(weight.name), _why(weight, quantized)
        row = rows.setdefault(kind, {"weights": kind[0], "count": 0, "bytes": 0, "why": kind[1]})
        row["count"] += 1
        row["bytes"] += weight.facts["bytes"]
    return {
        "weights": len(quantized) + len(left),
        "quantized": len(quantized),
        "bytes": sum(weight.facts["bytes"] for weight in weights.values()),
        "float_bytes": sum(row["bytes"] for row in rows.values()),
        "in_floats": sorted(rows.values(), key=lambda row: (-row["bytes"], row["weights"], row["why"]))[:_LISTED],
    }


def notes(found: ReportedQuantization) -> Iterator[Problem]:
    """A note if the weights in floats have more than a twentieth of the bytes of all weights."""
    if found["float_bytes"] <= _TOLD * found["bytes"]:
        return
    rows = found["in_floats"]
    shown = [f"{counted(row)}: {row['why']}" for row in rows[:_NAMED]]
    more = [f"the report lists {len(rows) - _NAMED} more"] if len(rows) > _NAMED else []
    instead = [_INSTEAD] if any(_OF_CODE in row["why"] for row in rows[:_NAMED]) else []
    yield Problem(summary(found), hint="\n".join([*shown, *more, *instead]))


def summary(found: ReportedQuantization) -> str:
    """The number of quantized weights, and of bytes that are not quantized, as one line."""
    return (
        f"`quantize` quantized {found['quantized']} of {found['weights']} weights of 2 or more dimensions; "
        f"{found['float_bytes']:,} of {found['bytes']:,} bytes are left in floats"
    )


def counted(row: LeftInFloats) -> str:
    """The weights of a row, with their number and their bytes."""
    times = f"{row['count']} weights, " if row["count"] > 1 else ""
    return f"`{row['weights']}` ({times}{row['bytes']:,} bytes)"


def _weights(plan: Plan, lowering: LoweringFacts) -> dict[str, _Weight]:
    """The weights that quantized methods read, by name. Other weights of the same name, in a method with its own
    program, are listed by name and method."""
    weights: dict[str, _Weight] = {}
    for name, method in sorted(plan.methods.items()):
        graph = lowering["graphs"].get(name)
        if method.quantize is None or graph is None:
            continue
        own, quantize = [], cast("Quantize", method.quantize)
        for facts in graph["weights"]:
            found = weights.setdefault(facts["name"], _Weight(facts, quantize))
            if found.facts != facts:
                found = weights[f"{facts['name']}@{name}"] = _Weight(facts, quantize)
            own.append(found)
        for node in graph["nodes"]:
            for number in node.get("weights", ()):
                own[number].readers.append(node)
    return weights


def _whole(name: str) -> str:
    """The name of a weight, from the name of a part: `head.weight` for `head.parametrizations.weight.original0`."""
    return _PART.sub(r"\1\2", name)


def _is_quantized(weight: _Weight, weights: Mapping[str, _Weight]) -> bool:
    """Whether a tensor is a quantized weight or a part of one.

    PT2E keeps the weight as bytes that an operator dequantizes. With torchao, the first part is not in floats, or is
    missing because lowering may have packed it into a constant.
    """
    if not _PART.search(weight.name):
        in_bytes = weight.facts["dtype"] in ("int8", "uint8") and len(weight.facts["shape"]) > 1
        return in_bytes and any("quant" in reader["operator"] for reader in weight.readers)
    first = weights.get(re.sub(r"\d+$", "0", weight.name))
    return first is None or "float" not in first.facts["dtype"]


def _is_in_floats(weight: _Weight, quantized: set[str]) -> bool:
    facts = weight.facts
    part_of_quantized = _PART.search(weight.name) is not None and _whole(weight.name) in quantized
    return "parameter" in facts and "float" in facts["dtype"] and len(facts["shape"]) > 1 and not part_of_quantized


def _why(weight: _Weight, quantized: set[str]) -> str:
    """Why a weight stays in floats, as far as names and readers show. `quantized` has the names of quantized ones."""
    module, _, last = weight.name.rpartition(".")
    reader = weight.readers[0] if weight.readers else None
    operator = reader["operator"] if reader is not None else "nothing"
    layers = [each.get("layer", "") for each in weight.readers]
    if weight.quantize.after_export and f"{weight.name}_quantized" in quantized:  # as `pt2e` names it
        return _ONE_CALL
    if weight.quantize.after_export:
        return f"no quantizer of `pt2e` took its `{operator}`"
    if last != "weight" or (layers and all(layer and module.startswith(f"{layer}.") for layer in layers)):
        return f"`{pattern(next(filter(None, layers), module)) or 'the model'}` {_OF_CODE}"
    if operator == "aten::embedding":
        return "no entry of `torchao` with `layers: [embedding]` matches it"
    if len(weight.facts["shape"]) == 2:
        named = any(_names(entry, module) for entry in weight.quantize.torchao)
        return _NOT_LINEAR if named else "no entry of `torchao` matches it"
    return f"`{operator}` reads it, and torchao quantizes linear layers and embeddings only"


def _names(entry: TorchaoEntry, module: str) -> bool:
    """Whether an entry takes any linear layer with this name."""
    named = any(fnmatchcase(module, pattern) for pattern in entry.modules)
    return named and "linear" in entry.layers and not entry.keeps and not entry.fitting
