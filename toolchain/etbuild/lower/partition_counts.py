"""Checks that all methods have the same number of partitions if a backend pairs them.

Core ML and Qualcomm pair partitions to share weights. They refuse methods with different numbers of partitions, but
only after other partitions are compiled, and do not say where the methods differ. ExecuTorch runs the partitioners of
all methods before it calls the first backend. So the check can run as soon as the last partitioner has run.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any

from executorch.exir.backend.partitioner import Partitioner, PartitionResult
from executorch.exir.graph_module import get_control_flow_submodules
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from etbuild.errors import BuildError, DocumentPath, Problem
from etbuild.lower import named_data


@dataclass(frozen=True)
class _Operator:
    """An operator of a method's graph, by ExecuTorch's name. The partition is None if the backend does not take it. The
    layer is the innermost submodule of the model that contains it; empty if it is not known."""

    name: str
    partition: int | None
    layer: str

    def __str__(self) -> str:
        layer = f" of `{self.layer}`" if self.layer else ""
        return f"`{self.name}`{layer}, which it {'leaves out' if self.partition is None else 'takes'}"


@dataclass(frozen=True)
class _Method:
    """The result of a partitioner for a method: all operators, for each backend that takes some of them; and the size
    in bytes of each weight that the method reads, by name."""

    path: DocumentPath
    operators: dict[str, list[_Operator]]
    weights: dict[str, int]


class PartitionLint:
    """Collects and compares the results of the partitioners at one index of ExecuTorch's partitioner lists.

    Args:
        methods: The methods that have a partitioner at this index.
        otherwise: What to write in the manifest so that the numbers need not be equal; None if there is no such option.
    """

    def __init__(self, methods: set[str], otherwise: str | None) -> None:
        self._waiting = set(methods)
        self._otherwise = otherwise
        self._methods: dict[str, _Method] = {}

    def watched(self, partitioner: Partitioner, method: str, path: DocumentPath) -> Partitioner:
        """Returns a copy of a partitioner that records its result.

        The last of the copies to run raises a BuildError if the numbers of partitions differ.

        Args:
            partitioner: The partitioner. Several methods may share it.
            method: The method that the copy is for.
            path: The document path of the partitioner.
        """

        def partition_and_compare(program: ExportedProgram) -> PartitionResult:
            result = partitioner.partition(program)
            weights = {name: node.meta["val"].nbytes for node, name in named_data.weights(program) if node.users}
            self._methods[method] = _Method(path, _operators_by_backend(result), weights)
            if self._methods.keys() == self._waiting:
                _compare(self._methods, self._otherwise)
            return result

        looked_at = copy.copy(partitioner)  # a factory may return one partitioner for several methods
        looked_at.partition = partition_and_compare
        return looked_at


def operator_name(node: Node) -> str:
    """ExecuTorch's name of the operator that a node calls, such as `aten::add.Tensor`."""
    target: Any = node.target
    named = hasattr(target, "name") and callable(target.name)
    return str(target.name() if named else getattr(target, "__name__", target))


def _operators_by_backend(result: PartitionResult) -> dict[str, list[_Operator]]:
    module = result.tagged_exported_program.graph_module
    by_backend = {}
    for backend in sorted({spec.backend_id for spec in result.partition_tags.values()}):
        tags = {tag for tag, spec in result.partition_tags.items() if spec.backend_id == backend}
        numbers: dict[tuple[int, str], int] = {}
        by_backend[backend] = list(_operators(module, tags, numbers))
    return {backend: operators for backend, operators in by_backend.items() if _count(operators)}


def _operators(module: GraphModule, tags: set[str], numbers: dict[tuple[int, str], int]) -> Iterator[_Operator]:
    """The operators of a graph and its submodules. `tags` are those of one backend.

    A branch of control flow has its own partitions, even if the surrounding graph uses the same tag: `numbers` has them
    by the graph's id and the tag. Adds new partitions to it.
    """
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target is not operator.getitem:
            tag = node.meta.get("delegation_tag")
            number = numbers.setdefault((id(module), tag), len(numbers)) if tag in tags else None
            yield _Operator(operator_name(node), number, _layer(node))
    for _, submodule, _ in get_control_flow_submodules(module):
        yield from _operators(submodule, tags, numbers)


def _layer(node: Node) -> str:
    """The innermost submodule of the model that contains an operator; empty if it is not known."""
    stack: dict[str, tuple[str, Any]] = node.meta.get("nn_module_stack") or {}
    return next((name for name, _ in reversed(stack.values()) if name), "")


def _count(operators: list[_Operator]) -> int:
    return len({each.partition for each in operators} - {None})


def _compare(methods: dict[str, _Method], otherwise: str | None) -> None:
    problems = []
    for backend in sorted({backend for method in methods.values() for backend in method.operators}):
        # ExecuTorch does not pass a method without partitions to the backend.
        counts = {
            name: _count(each.operators[backend]) for name, each in sorted(methods.items()) if backend in each.operators
        }
        first = next(iter(counts))
        other = next((name for name in counts if counts[name] != counts[first]), None)
        if other is not None:
            message = _difference(backend, counts, {name: methods[name] for name in (first, other)})
            problems.append(Problem(message, methods[other].path, _hint(methods, otherwise)))
    BuildError.raise_if(problems)


def _difference(backend: str, counts: dict[str, int], pair: dict[str, _Method]) -> str:
    shown = ", ".join(f"{count} of `{name}`" for name, count in counts.items())
    parts = _parting(*(method.operators[backend] for method in pair.values()))
    differing = "; ".join(f"`{name}` has {each or 'nothing there'}" for name, each in zip(pair, parts, strict=True))
    wrong = f"{backend} needs the same number of partitions in each method, but would get {shown}"
    return f"{wrong}. The first difference: {differing}"


def _hint(methods: dict[str, _Method], otherwise: str | None) -> str:
    or_else = f", remove it from one of them, or write {otherwise}" if otherwise else ", or remove it from one of them"
    return (
        f"make it take the same operators in all methods{or_else}. "
        f"{_read_by_several(methods):,} bytes of weights are read by several methods"
    )


def _parting(one: list[_Operator], other: list[_Operator]) -> tuple[_Operator | None, _Operator | None]:
    """Finds the operators at which the partitions of two methods begin to differ.

    Aligns the operators that both methods have. If an operator of both is in different partitions, the cause is the
    last earlier difference with an operator that the backend does not take: only such operators end a partition.
    Without such a difference, the partitioner ended a partition at that operator for its own reasons.
    """
    tokens = [(each.name, each.partition is None) for each in one]
    codes = SequenceMatcher(a=tokens, b=[(each.name, each.partition is None) for each in other], autojunk=False)
    cuts: list[tuple[_Operator | None, _Operator | None]] = []
    for kind, a, b, c, d in codes.get_opcodes():
        sides = one[a:b], other[c:d]
        moved = next((pair for pair in zip(*sides, strict=False) if pair[0].partition != pair[1].partition), None)
        if kind == "equal" and moved:
            return cuts[-1] if cuts else moved
        if kind != "equal" and any(each.partition is None for side in sides for each in side):
            cuts.append((_first(sides[0]), _first(sides[1])))
    if cuts:
        return cuts[0]
    return next((a, b) for a, b in zip_longest(one, other) if not (a and b and a.partition == b.partition))


def _first(operators: list[_Operator]) -> _Operator | None:
    """The first operator that the backend does not take, or else the first operator."""
    return next((each for each in operators if each.partition is None), operators[0] if operators else None)


def _read_by_several(methods: dict[str, _Method]) -> int:
    seen: dict[str, list[int]] = {}
    for method in methods.values():
        for name, size in method.weights.items():
            seen.setdefault(name, []).append(size)
    return sum(sizes[0] for sizes in seen.values() if len(sizes) > 1)
